"""Steps that simplify a failing case of `fuzz`: smaller graphs, rounder numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pna.testing.definition import EdgeList


def halves(count: int) -> Iterator[list[int]]:
    """Indices 0 … count − 1 without a half, a quarter, an eighth …, at last without one of them."""
    size = count // 2
    while size > 0:
        for first in range(0, count, size):
            yield [i for i in range(count) if not first <= i < first + size]
        size //= 2


def all_but_one(count: int) -> Iterator[list[int]]:
    """Indices 0 … count − 1 without one of them, if something is left."""
    if count > 1:
        for i in range(count):
            yield [k for k in range(count) if k != i]


def select(case: Any, keep: list[int], **axes: int) -> Any:
    """A case with fewer entries along an axis of each of these tensors."""
    fewer = torch.tensor(keep, dtype=torch.int64)
    return replace(case, **{n: getattr(case, n).index_select(a, fewer) for n, a in axes.items()})


def rounder(values: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Numbers with fewer digits, if they have more."""
    short = [float(f"{v:.2g}") for v in values.flatten().tolist()]
    for other in (values.round(), torch.tensor(short, dtype=torch.float64).view_as(values)):
        other = other.to(dtype).double()
        if not torch.equal(other.nan_to_num(), values.nan_to_num()):
            yield other


def without_transform(case: Any) -> Iterator[Any]:
    """The same case by kernels alone, if it ran under vmap or torch.compile."""
    if case.mode in ("vmap", "compile"):
        yield replace(case, mode="triton" if case.device == "cuda" else "c")


def with_edges(case: Any, keep: list[int]) -> Any:
    """The case with fewer edges of its graph and its edge term."""
    graph = select(case.graph, keep, senders=0, receivers=0)
    return replace(case, graph=graph, edge=case.edge.with_edges(keep))


def with_nodes(graph: EdgeList, senders: Tensor, receivers: Tensor) -> EdgeList:
    """Only these nodes, in ascending order. They must include the ends of all edges."""
    return EdgeList(
        torch.searchsorted(senders, graph.senders),
        torch.searchsorted(receivers, graph.receivers),
        len(senders),
        len(receivers),
    )
