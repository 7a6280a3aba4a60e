"""What operators take of a graph: tensors one by one, as a list of them would cost more than a
small graph's kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna.adjacency import Adjacency, Rows
from pna.ops.operators import fold

_ROWS = [field.name for field in fields(Rows)]
_NAMES = [f"{side}_{name}" for side in ("in", "out") for name in _ROWS] + ["out_ranks"]

#: The arguments in the schema of an operator, and how many they are.
GRAPH = "".join(f"Tensor {name}, " for name in _NAMES)
COUNT = len(_NAMES)


class Sides(NamedTuple):
    """A graph as kernels walk it, by receiver and by sender."""

    incoming: Rows
    outgoing: Rows
    out_ranks: Tensor


def graph_arguments(adjacency: Adjacency) -> list[Tensor]:
    sides = (adjacency.incoming, adjacency.outgoing)
    return [*(getattr(side, name) for side in sides for name in _ROWS), adjacency.out_ranks]


def sides_of(arguments: Sequence[Tensor]) -> Sides:
    """The graph that they are of."""
    *tensors, out_ranks = arguments
    return Sides(Rows(*tensors[: len(_ROWS)]), Rows(*tensors[len(_ROWS) :]), out_ranks)


def side_by_side(name: str, terms: int) -> Callable[..., Any]:
    """A vmap rule for an operator of so many terms (rows, columns, …) or None, then a graph:
    members beside each other in the columns, in which layout they stay."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        if any(dim is not None for dim in in_dims[terms:]):
            raise ValueError("got a vmapped graph, expected one that all members share")
        folded = [
            None if term is None else fold(term, dim, 1, info.batch_size)
            for term, dim in zip(arguments[:terms], in_dims[:terms], strict=True)
        ]
        results = getattr(torch.ops.pna, name)(*folded, *arguments[terms:])
        apart = tuple(result.unflatten(1, (info.batch_size, -1)) for result in results)
        return apart, (1,) * len(apart)

    return rule
