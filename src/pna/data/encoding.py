"""How the columns of one graph became features, so that other graphs are read alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pna.data.attributes import is_numbered
from pna.data.elements import GraphElements, marker_of

#: Metadata of a set of one graph, and data of a run: `encoding_of` the nodes and the edges.
ENCODING = "encoding"
_SHOWN = 8  # names that an error lists
#: The types of an encoding in a file.
FACTS = {
    "features": list[str],
    "mean": list[float],
    "std": list[float],
    "categories": dict[str, list[str]],
}


def encoding_of(elements: GraphElements, split: int) -> dict[str, Any]:
    """Names, means and deviations of the numbers, and the categories, as values of JSON."""
    row = split if len(elements.mean) > 1 else 0
    return {
        "features": list(elements.features),
        "mean": elements.mean[row].tolist(),
        "std": elements.std[row].tolist(),
        "categories": {name: list(values) for name, values in elements.categories.items()},
    }


def encoded_as(
    elements: GraphElements, what: str, wanted: Mapping[str, Any], split: int
) -> GraphElements:
    """The same nodes or edges with the columns, means and categories of an encoding.

    Columns are found by their names. Missing numbers become the mean of the encoding.
    """
    if encoding_of(elements, split) == wanted:
        return elements
    names = _names(elements.features, wanted["features"])
    numbers = dict(zip(names, elements.x.unbind(1), strict=True))
    names = _names([*elements.categories], [*wanted["categories"]])
    categories = dict(zip(names, elements.categories.values(), strict=True))
    codes = dict(zip(names, elements.codes.unbind(1), strict=True))
    markers = {marker_of(name): name for name in wanted["features"]}
    for marker, name in markers.items():
        if name in numbers:  # without a missing number there is no marker
            numbers.setdefault(marker, torch.zeros(elements.count))
    expected = [*wanted["features"], *wanted["categories"]]
    found = [name for name in wanted["features"] if name in numbers]
    found += [name for name in wanted["categories"] if name in codes]
    more = {*numbers, *codes} - {*expected} - {*markers}
    _check_columns(what, expected, {*expected} - {*found}, more)
    x = [numbers[name] for name in wanted["features"]]
    for index, (name, mean) in enumerate(zip(wanted["features"], wanted["mean"], strict=True)):
        if (missing := numbers.get(marker_of(name))) is not None:
            x[index] = torch.where(missing > 0, torch.tensor(mean), x[index])
    new = [
        _recoded(elements, what, name, codes[name], categories[name], values)
        for name, values in wanted["categories"].items()
    ]
    return replace(
        elements,
        x=torch.stack(x, 1) if x else elements.x[:, :0],
        mean=torch.tensor([wanted["mean"]]),
        std=torch.tensor([wanted["std"]]),
        codes=torch.stack(new, 1) if new else elements.codes[:, :0],
        features=tuple(wanted["features"]),
        categories={name: tuple(values) for name, values in wanted["categories"].items()},
    )


def _names(own: Sequence[str], wanted: Sequence[str]) -> Sequence[str]:
    """The names of columns; columns that are only numbered are taken in their order."""
    same = len(own) == len(wanted) and (is_numbered(own) or is_numbered(wanted))
    return wanted if same else own


def _check_columns(
    what: str, expected: Sequence[str], lacking: Collection[str], more: Collection[str]
) -> None:
    known = f"{', '.join(expected[:_SHOWN])}{', …' if len(expected) > _SHOWN else ''}" or "none"
    if lacking:
        raise ValueError(
            f"got a graph without the {what} feature {min(lacking)!r}, with another kind of it, or "
            "with one value in all of its rows, expected the features that the model was trained "
            f"with: {known}; add the column, or declare it (--numeric, --categorical)"
        )
    if more:
        raise ValueError(
            f"got a graph with the {what} feature {min(more)!r}, expected those that the model was "
            f"trained with: {known}; leave it out (--ignore {min(more)})"
        )


def _recoded(
    elements: GraphElements,
    what: str,
    name: str,
    codes: Tensor,
    own: Sequence[str],
    wanted: Sequence[str],
) -> Tensor:
    """Codes of categories as indices in those that a model was trained with."""
    index = {value: code for code, value in enumerate(wanted)}
    found = torch.tensor([index.get(value, -1) for value in own], dtype=codes.dtype)[codes.long()]
    if bool((found < 0).any()):
        row = int((found < 0).nonzero()[0])
        value = own[int(codes[row])]
        raise ValueError(
            f"got {repr(value) if value else 'no value'} as {name} of the {what} "
            f"{elements.name(row)!r}, expected one of the {len(wanted)} categories that the model "
            "was trained with; replace it by one of them, or train with it"
        )
    return found
