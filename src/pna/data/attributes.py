"""Features, targets and tags of graphs: converted to tensors with named columns, and checked."""

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
    """A copy of features or targets as (rows, columns) on the CPU; None without columns."""
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


def as_weights(values: Any, num_graphs: int) -> Tensor | None:
    """A copy of the weights of graphs as float32 on the CPU; raises if they are not weights."""
    if values is None:
        return None
    weights = torch.as_tensor(values).detach().cpu().float().clone()
    if weights.shape != (num_graphs,):
        raise ValueError(
            f"got sample_weight of shape {tuple(weights.shape)}, expected ({num_graphs},): one for "
            "each graph"
        )
    odd = ~((weights >= 0) & weights.isfinite())
    if bool(odd.any()):
        graph = int(odd.nonzero()[0])
        raise ValueError(
            f"got {weights[graph]:g} as sample_weight of graph {graph}, expected a finite number "
            "of at least 0; correct it"
        )
    return weights


def computable(columns: Tensor) -> Tensor:
    """Columns of a type that torch computes with. It can only store large unsigned integers."""
    unsigned = (torch.uint16, torch.uint32, torch.uint64)
    return columns.long() if columns.dtype in unsigned else columns


def column_names(kind: str, names: Sequence[str] | None, columns: Tensor | None) -> tuple[str, ...]:
    """A name for each column, by default its number."""
    width = 0 if columns is None else columns.shape[1]
    if names is None:
        return tuple(map(str, range(width)))
    checked = unique(kind, names)
    if len(checked) != width:
        raise ValueError(
            f"got {len(checked)} {kind} ({', '.join(checked)}) for {width} columns, expected a "
            "name for each"
        )
    return checked


def is_numbered(names: Sequence[str]) -> bool:
    """Whether columns have no names but their numbers."""
    return list(names) == [str(i) for i in range(len(names))]


def as_tags(
    kind: str, values: Any, names: Sequence[str] | None, num_graphs: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The tag of every graph as an index in a tuple of names, and the tuple.

    `values` are names, or indices in `names`. By default `names` are in order of occurrence.
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
        return _indices(kind, words, known).to(small_type(len(known) - 1)), known
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
            f"got {kind} {array[graph]} of graph {graph}, expected an index of {len(known)} "
            f"{kind}s; pass their names as {kind}s=[...]"
        )
    return torch.from_numpy(array.astype(np.int64)).to(small_type(len(known) - 1)), known


def _indices(kind: str, words: Sequence[str], names: Sequence[str]) -> Tensor:
    indices = {name: index for index, name in enumerate(names)}
    return torch.tensor([lookup(kind, word, indices) for word in words], dtype=torch.int64)


def has_tag(
    kind: str, wanted: str | Collection[str], tags: Tensor | None, names: Sequence[str]
) -> Tensor:
    """Which graphs have one of the wanted tags, (graphs,) bool."""
    if tags is None:
        raise ValueError(
            f"got {kind}={wanted!r} for graphs without a {kind}, expected a set that has one; make "
            f"it with {kind}=[…], a name for each graph"
        )
    words = [wanted] if isinstance(wanted, str) else list(wanted)
    return torch.isin(tags.long(), _indices(kind, words, names).to(tags.device))


def maxima(targets: Tensor | None, rows: Tensor) -> tuple[float, ...]:
    """Maximum of every target over some rows; 1 if it is not positive and finite."""
    if targets is None:
        return ()
    values = targets[rows.to(targets.device)].double()
    values = torch.cat([values, values.new_full((1, values.shape[1]), -torch.inf)])
    largest = torch.where(values.isnan(), -torch.inf, values).amax(0).tolist()
    return tuple(value if 0 < value < float("inf") else 1.0 for value in largest)


def as_json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A copy of metadata as it is read back from a file."""
    if not isinstance(metadata, dict | None):
        raise TypeError(f"got metadata of type {type(metadata).__name__}, expected a dict")
    try:
        return parse_json(json.dumps(metadata or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"got metadata that JSON cannot hold ({error}), expected text, numbers, lists and dicts"
        ) from None
