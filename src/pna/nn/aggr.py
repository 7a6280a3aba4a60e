"""The aggregation of PNA as a module of PyG, for any of its `MessagePassing` layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.nn import aggr as pyg

from pna.adjacency import Adjacency, refuse_tracing
from pna.degree import DegreeStats, Power, counted_degree, factor, resolve_scalers
from pna.nn.conv.base import refuse_scripting
from pna.nn.conv.pyg import aggregator_of
from pna.ops.aggregate import aggregate


class DegreeScalerAggregation(pyg.DegreeScalerAggregation):
    """`torch_geometric.nn.DegreeScalerAggregation`, computed in one pass over the messages.

    It can be the `aggr` of any PyG layer. Arguments, weights and results are those of PyG's. Sum,
    mean, max, min, var, std and softmax are computed by the kernels of this package; if there is
    another aggregation, PyG computes all of them.

    Args:
        aggr: name, names or modules of PyG's aggregations.
        scaler: name or names of scalers, as in `pna.scale`.
        deg: histogram of in-degrees over the training set, or a `DegreeStats`.
        train_norm: learn δ.
        aggr_kwargs: arguments of the aggregations, as in PyG.

    Shapes:
        - **x**: (…, messages, …, features), with messages along `dim`
        - **index**: (messages,) the receiver of every message, in any order; or **ptr**:
          (receivers + 1,) the first message of every receiver, for sorted messages
        - **output**: (…, receivers, …, scalers × aggregators × features)
    """

    def __init__(
        self,
        aggr: str | Sequence[str | pyg.Aggregation] | pyg.Aggregation,
        scaler: str | Sequence[str],
        deg: Tensor | DegreeStats,
        train_norm: bool = False,
        aggr_kwargs: Any = None,
    ) -> None:
        histogram = deg.histogram if isinstance(deg, DegreeStats) else deg
        super().__init__(aggr, scaler, histogram, train_norm, aggr_kwargs)
        self.scaler = [scaler] if isinstance(scaler, str) else list(scaler)
        resolve_scalers(self.scaler)
        self._is_known = _is_known(self.aggr)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        refuse_tracing()
        axis = dim % x.dim()
        if not self._is_known or axis == x.dim() - 1:
            if index is None and ptr is not None:
                index = torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff())
            return super().forward(x, index, ptr, dim_size, dim)
        adjacency = _adjacency(x.shape[axis], index, ptr, dim_size)
        messages = x.movedim(axis, 0)
        aggregators = [aggregator_of(module, shared=True) for module in _modules(self.aggr)]
        results = aggregate(messages.flatten(1), adjacency, aggregators)
        degree = counted_degree(adjacency.degree, x.dtype)
        scalers = resolve_scalers(self.scaler)
        factors = torch.stack([self._factor(scaler, degree) for scaler in scalers], 1)
        scaled = (factors[:, :, None, None] * results[:, None]).to(x.dtype)
        # (receivers, scalers × aggregators, other axes, features): the second goes before the last
        out = scaled.flatten(1, 2).unflatten(2, messages.shape[1:]).movedim(1, -2)
        return out.flatten(-2).movedim(0, axis)

    def _factor(self, scaler: Any, degree: Tensor) -> Tensor:
        delta = self.avg_deg_log if isinstance(scaler, Power) else self.avg_deg_lin
        return factor(scaler, degree, scaler.alpha, delta)

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_scripting(self)


def _modules(aggr: Any) -> list[Any]:
    return list(aggr.aggrs) if isinstance(aggr, pyg.MultiAggregation) else [aggr]


def _is_known(aggr: Any) -> bool:
    """Whether all aggregations exist in this package, and their results are concatenated."""
    if isinstance(aggr, pyg.MultiAggregation) and aggr.mode != "cat":
        return False
    try:
        return all(aggregator_of(module, shared=True) for module in _modules(aggr))
    except ValueError:
        return False


def _adjacency(
    messages: int, index: Tensor | None, ptr: Tensor | None, dim_size: int | None
) -> Adjacency:
    """The graph in which every message is a sender of its own."""
    if ptr is not None:
        senders = torch.arange(messages, device=ptr.device)
        receivers = torch.repeat_interleave(ptr.diff(), output_size=messages)
        one_each = torch.arange(messages + 1, device=ptr.device)
        transpose = (one_each, receivers, senders - ptr[receivers])
        return Adjacency.from_csr(ptr, senders, messages, transpose=transpose)
    assert index is not None and dim_size is not None  # as PyG's __call__ sees to it
    if index.shape != (messages,):
        raise ValueError(
            f"got an index of shape {tuple(index.shape)} for {messages} messages, expected "
            f"({messages},): the receiver of every message"
        )
    edge_index = torch.stack([torch.arange(messages, device=index.device), index])
    return Adjacency.from_edge_index(edge_index, (messages, dim_size))
