"""`pna.aggregate`: check the arguments and call the implementation for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.converters import remedy
from pna.ops import blocks, reference
from pna.ops.aggregators import FUSED, Aggregator, Softmax, Std, resolve
from pna.ops.backend import choose
from pna.ops.request import Messages, Request
from pna.ops.statistics import statistics

Combine = Literal["add", "mul"]
_COMBINE = get_args(Combine)

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def aggregate(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[str | Aggregator | type[Aggregator]],
    edge: Tensor | tuple[Tensor, Tensor] | None = None,
    combine: Combine = "add",
) -> Tensor:
    """Aggregate the messages that reach every node: (receivers, aggregators, features).

    x is (senders, features). Messages are x_j. With `edge`, they are x_j + e_ij, or x_j · e_ij if
    `combine` is "mul". `edge` is one of

    - e (edges, features), in the given order of the edges,
    - e (edges, 1): a weight for each edge, the same for all features,
    - a pair (table, index): e = table[index], with (types, features) and integers (edges,),
    - a pair (coefficients, basis): e = coefficients @ basis, with (edges, D) and (D, features).

    Any subset of mean, sum, var, std, max, min and normalised_mean is computed in one pass; with
    weights or a pair, no (edges, features) tensor is materialised. Other aggregators, including
    custom ones (`pna.aggregators.Aggregator`), materialise the messages of some receivers at a
    time.

    The result has the wider of the dtypes of x and `edge`, with or without autocast; sums are
    accumulated in float32 or better. Results are bitwise reproducible. A node without messages gets
    0. A NaN in a message makes that receiver and feature NaN in every aggregator, and affects
    nothing else. An infinite message does the same in var, std, moments, softmax and softmin; sum,
    mean, normalised_mean, max and min follow arithmetic. docs/aggregate.md has the rules for huge
    values.
    """
    chosen = resolve(aggregators)
    _check_features(x, adjacency)
    values, at = _split_edge(edge)
    _check_edge(x, adjacency, values, at)
    _check_combine(combine)
    _check_weights(chosen, adjacency)
    x, values, at = _in_one_type(x, values, at)
    backend = choose(x.device)
    if backend == "reference":
        return reference.aggregate(x, adjacency, chosen, values, at, combine=combine)
    results: list[Tensor | None] = [None] * len(chosen)
    fused, columns = one_pass(chosen)
    if fused is not None and not has_kernels(backend):
        return reference.aggregate(x, adjacency, chosen, values, at, combine=combine)
    if fused is not None:
        out = statistics(Messages(x, values, at, adjacency, combine), fused, backend)
        if len(columns) == len(chosen) == len(fused.kinds):
            return out
        for i, column in columns.items():
            results[i] = out[:, column]
    others = [i for i in range(len(chosen)) if i not in columns]
    if others:
        left = [chosen[i] for i in others]
        out = blocks.aggregate(x, adjacency, left, values, at, combine=combine)
        for k, i in enumerate(others):
            results[i] = out[:, k]
    return torch.stack([r for r in results if r is not None], dim=1)


def aggregate_messages(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: Tensor | tuple[Tensor, Tensor] | None,
    own: Tensor,
) -> Tensor:
    """Aggregate messages x_j + e_ij + own_i, materialised for some receivers at a time.

    It uses the definition of every aggregator, even if there is a kernel. own is (receivers,
    features).
    """
    x, values, at = _in_one_type(x, *_split_edge(edge))
    if choose(x.device) == "reference":
        return reference.aggregate(x, adjacency, aggregators, values, at, own)
    return blocks.aggregate(x, adjacency, aggregators, values, at, own)


def one_pass(aggregators: list[Aggregator]) -> tuple[Request | None, dict[int, int]]:
    """The request for the fused pass, and the index of each aggregator's result in its output."""
    kinds: list[str] = []
    columns: dict[int, int] = {}
    std: Std | None = None
    for i, aggregator in enumerate(aggregators):
        kind = FUSED.get(type(aggregator))
        if kind is None:
            continue
        if isinstance(aggregator, Std):
            if std is not None and (std.epsilon, std.clamp) != (
                aggregator.epsilon,
                aggregator.clamp,
            ):
                continue  # a second convention of std is computed by its definition
            std = aggregator
        if kind not in kinds:
            kinds.append(kind)
        columns[i] = kinds.index(kind)
    if not kinds:
        return None, {}
    std = std or Std()
    return Request(tuple(kinds), std.epsilon, std.clamp), columns


def has_kernels(backend: str) -> bool:
    """Whether kernels of the backend compute the statistics, instead of their definitions."""
    if backend == "triton":
        return fast_paths.is_on("statistics")
    return backend == "cpu" and fast_paths.is_on("cpu")


def _split_edge(
    edge: Tensor | tuple[Tensor, Tensor] | None,
) -> tuple[Tensor | None, Tensor | None]:
    """An edge term as (e, None), (table, index) or (basis, coefficients)."""
    if edge is None or isinstance(edge, Tensor):
        return edge, None
    if not (isinstance(edge, tuple | list) and len(edge) == 2):
        raise TypeError(
            f"got edge of type {type(edge).__name__}, expected a tensor (edges, features) or a "
            "pair: (table, index) or (coefficients, basis)"
        )
    first, second = edge
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        raise TypeError(
            f"got edge as a pair of {type(first).__name__} and {type(second).__name__}, expected "
            "two tensors: (table, index) or (coefficients, basis)"
        )
    if first.is_floating_point() and second.is_floating_point() and second.dim() == 1:
        raise TypeError(
            f"got an edge index of dtype {second.dtype}, expected whole numbers into the table; "
            "convert it with index.long()"
        )
    if second.is_floating_point():
        return second, first
    return first, second


def _in_one_type(
    x: Tensor, values: Tensor | None, at: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x and the edge term in the wider of their dtypes."""
    if values is not None and values.dtype != x.dtype:
        dtype = torch.promote_types(x.dtype, values.dtype)
        x, values = x.to(dtype), values.to(dtype)
    if at is not None and at.is_floating_point():
        at = at.to(x.dtype)
    return x, values, at


def _check_features(x: Tensor, adjacency: Adjacency) -> None:
    if not isinstance(adjacency, Adjacency):
        raise TypeError(
            f"got adjacency of type {type(adjacency).__name__}, expected a pna.Adjacency; "
            f"{remedy(adjacency)}"
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"got x of type {type(x).__name__}, expected a tensor (senders, features)")
    if x.dim() != 2:
        raise ValueError(
            f"got x of shape {tuple(x.shape)}, expected (senders, features); "
            "flatten the feature axes into one, or use torch.vmap for a batch of them"
        )
    if x.dtype not in _FLOATS:
        raise TypeError(
            f"got x of dtype {x.dtype}, expected one of float64, float32, bfloat16, float16; "
            "convert it with x.float()"
        )
    if x.shape[0] != adjacency.num_senders:
        raise ValueError(
            f"got x with {x.shape[0]} rows, expected {adjacency.num_senders}, one for each sender "
            "of the adjacency; build it with num_nodes=x.shape[0]"
        )
    if x.device != adjacency.device:
        raise ValueError(
            f"got x on {x.device} and an adjacency on {adjacency.device}, expected one device; "
            "move it with adjacency.to(x.device)"
        )


def _check_combine(combine: str) -> None:
    if combine not in _COMBINE:
        raise ValueError(
            f"got combine={combine!r}, expected 'add' for messages x_j + e_ij or 'mul' for "
            "x_j · e_ij"
        )


def _check_weights(aggregators: list[Aggregator], adjacency: Adjacency) -> None:
    for aggregator in aggregators:
        weight = aggregator.weight if isinstance(aggregator, Softmax) else None
        if weight is not None and tuple(weight.shape) != (adjacency.num_edges,):
            raise ValueError(
                f"got softmax weights of shape {tuple(weight.shape)}, expected "
                f"({adjacency.num_edges},): one for each edge, in the order they were given"
            )


def _check_edge(x: Tensor, adjacency: Adjacency, values: Tensor | None, at: Tensor | None) -> None:
    if values is None:
        return
    edges, features = adjacency.num_edges, x.shape[1]
    for tensor in (values, at):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(
                f"got edge on {tensor.device} and x on {x.device}, expected one device"
            )
    if values.dtype not in _FLOATS:
        raise TypeError(
            f"got edge of dtype {values.dtype}, expected one of float64, float32, bfloat16, "
            "float16; types of edges are given as (table, index)"
        )
    if at is None:
        if tuple(values.shape) not in ((edges, features), (edges, 1)):
            raise ValueError(
                f"got edge of shape {tuple(values.shape)}, expected ({edges}, {features}), one row "
                f"for each edge, as wide as x, or ({edges}, 1), one weight for each edge; "
                + _remedy(values, adjacency)
            )
        return
    if values.dim() != 2 or values.shape[1] != features:
        raise ValueError(
            f"got an edge table or basis of shape {tuple(values.shape)}, expected two axes, the "
            f"last of {features}, as wide as x"
        )
    if at.is_floating_point():
        if tuple(at.shape) != (edges, values.shape[0]):
            raise ValueError(
                f"got coefficients of shape {tuple(at.shape)}, expected ({edges}, "
                f"{values.shape[0]}): one row for each edge, one column for each row of the basis"
            )
        return
    if at.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise TypeError(
            f"got an edge index of dtype {at.dtype}, expected whole numbers into the table"
        )
    if tuple(at.shape) != (edges,):
        raise ValueError(
            f"got an edge index of shape {tuple(at.shape)}, expected ({edges},): a row of the "
            "table for each edge"
        )


def _remedy(edge: Tensor, adjacency: Adjacency) -> str:
    """What to do about an edge term of the wrong shape."""
    if edge.dim() == 1 and edge.shape[0] == adjacency.num_edges:
        return "write weight[:, None] for weights (edges,)"
    if edge.dim() > 0 and edge.shape[0] == adjacency.num_edges:
        return "give narrow ones as (coefficients, basis)"
    if edge.dim() > 0 and edge.shape[0] == adjacency.num_senders:
        return "combine a weight for each node with x itself, before the call"
    return "give one row for each edge, in the order of the edges of the adjacency"
