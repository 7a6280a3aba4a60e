"""What operators take of a graph: tensors one by one, as a list of them would cost more than a
small graph's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from torch import Tensor

from pna.adjacency import Adjacency, Rows

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
