"""The order of edges by receiver and by sender as an operator, for `torch.compile` on a GPU.

The compiler cannot see into a sort, which launches many kernels. It launches this kernel itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna.ops.operators import operator
from pna.ops.vmap_rules import one_by_one


class RankedEdges(NamedTuple):
    """The arrays of an `Adjacency` that order edges, in int32."""

    indptr: Tensor
    senders: Tensor
    out_indptr: Tensor
    out_receivers: Tensor
    edge_ids: Tensor
    out_ranks: Tensor


def _forward(
    edge_index: Tensor, num_senders: torch.SymInt, num_receivers: torch.SymInt
) -> RankedEdges:
    from pna.ops.triton.adjacency import rank_edges as rank

    ranked = _allocate(edge_index, num_senders, num_receivers)
    rank(edge_index, num_senders, num_receivers, ranked, edge_index.new_empty(1, dtype=torch.int32))
    return ranked


def _allocate(
    edge_index: Tensor, num_senders: torch.SymInt, num_receivers: torch.SymInt
) -> RankedEdges:
    edges = edge_index.shape[1]
    sizes: Any = (num_receivers + 1, edges, num_senders + 1, edges, edges, edges)
    return RankedEdges(*(edge_index.new_empty(size, dtype=torch.int32) for size in sizes))


def _no_gradients(grad: Tensor, needs: Sequence[bool]) -> Any:
    return ()


def _vmap(*given: Any) -> Any:
    return one_by_one(torch.ops.pna.rank_edges.default)(*given)


rank_edges = operator(
    "rank_edges",
    _forward,
    fake=_allocate,
    backward=_no_gradients,
    differentiable=(),
    vmap=_vmap,
)
