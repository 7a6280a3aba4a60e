"""Features, targets and tags of many graphs as columns with names, checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.data.structure import small_type
from pna.names import lookup, unique
from pna.stored import parse_json


def as_columns(name: str, values: Any, rows: int, level: str) -> Tensor | None:
    """A copy of features or targets as (rows, columns) on the CPU; None where there are none."""
    if values is None:
        return None
    tensor = torch.as_tensor(values).detach().cpu()
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if tensor.dim() != 2 or tensor.shape[0] != rows:
        raise ValueError(
            f"got {name} of shape {tuple(tensor.shape)}, expected ({rows}, columns): a row for "
            f"each {level}"
        )
    if tensor.shape[1] == 0:
        return None
    return computable(tensor).clone(memory_format=torch.contiguous_format)


def computable(columns: Tensor) -> Tensor:
    """Numbers of a type that torch computes with: it can hold large unsigned ones, and no more."""
    unsigned = (torch.uint16, torch.uint32, torch.uint64)
    return columns.long() if columns.dtype in unsigned else columns


def column_names(kind: str, names: Sequence[str] | None, columns: Tensor | None) -> tuple[str, ...]:
    """A name for each column, by default its number."""
    width = 0 if columns is None else columns.shape[1]
    if names is None:
        return _numbers(width)
    checked = unique(kind, names)
    if len(checked) != width:
        raise ValueError(
            f"got {len(checked)} {kind} ({', '.join(checked)}) for {width} columns, expected a "
            "name for each"
        )
    return checked


def is_numbered(names: Sequence[str]) -> bool:
    """Whether columns were given no names."""
    return tuple(names) == _numbers(len(names))


def _numbers(width: int) -> tuple[str, ...]:
    return tuple(map(str, range(width)))


def as_tags(
    kind: str, values: Any, names: Sequence[str] | None, num_graphs: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The tag of every graph as a place in a tuple of names, and that.

    `values` are names, or places in `names`; by default these are in the order they occur in.
    """
    if values is None:
        return None, () if names is None else unique(f"{kind}s", names)
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (num_graphs,):
        raise ValueError(
            f"got {kind} of shape {array.shape}, expected ({num_graphs},): one for each graph"
        )
    if array.dtype.kind == "U":
        words = array.tolist()
        known = unique(f"{kind}s", dict.fromkeys(words) if names is None else names)
        places = {name: place for place, name in enumerate(known)}
        numbers = torch.tensor([lookup(kind, word, places) for word in words], dtype=torch.int64)
    else:
        numbers, known = _places(kind, array, names)
    return numbers.to(small_type(len(known) - 1)), known


def _places(
    kind: str, array: np.ndarray, names: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(
            f"got {kind} of dtype {array.dtype}, expected names, or integers with {kind}s to name "
            "them"
        )
    known = () if names is None else unique(f"{kind}s", names)
    wrong = (array < 0) | (array >= len(known))
    if wrong.any():
        graph = int(wrong.argmax())
        raise ValueError(
            f"got {kind} {array[graph]} of graph {graph}, expected a place among {len(known)} "
            f"{kind}s; pass their names as {kind}s=[...]"
        )
    return torch.from_numpy(array.astype(np.int64)), known


def tagged(
    kind: str, wanted: str | Collection[str], tags: Tensor | None, names: Sequence[str]
) -> Tensor:
    """Which graphs have one of the wanted tags, (graphs,) bool."""
    if tags is None:
        raise ValueError(
            f"got {kind}={wanted!r} where graphs have no {kind}, expected a set made with one"
        )
    places = {name: place for place, name in enumerate(names)}
    words = [wanted] if isinstance(wanted, str) else list(wanted)
    chosen = torch.tensor([lookup(kind, word, places) for word in words], dtype=torch.int64)
    return torch.isin(tags.long(), chosen)


def maxima(targets: Tensor | None, rows: Tensor) -> tuple[float, ...]:
    """Maximum of every target over some rows; 1 where there is none that can be divided by."""
    if targets is None:
        return ()
    values = targets[rows.to(targets.device)].double()
    values = torch.cat([values, values.new_full((1, values.shape[1]), -torch.inf)])
    largest = torch.where(values.isnan(), -torch.inf, values).amax(0).tolist()
    return tuple(value if 0 < value < float("inf") else 1.0 for value in largest)


def as_json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A copy of metadata as a file will hold it."""
    if not isinstance(metadata, dict | None):
        raise TypeError(f"got metadata of type {type(metadata).__name__}, expected a dict")
    try:
        return parse_json(json.dumps(metadata or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"got metadata that JSON cannot hold ({error}), expected text, numbers, lists and dicts"
        ) from None
