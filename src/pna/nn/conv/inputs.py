"""Checks of the inputs of a layer. The error messages say what to do."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.request import check_table
from pna.visible import values_readable

#: Edge features up to this width are multiplied inside the kernel, wider ones before it.
NARROW = 16

#: Edges × columns of messages up to which a CPU multiplies narrow ones, or coefficients of a
#: basis, before the kernel too. The product then fits in its cache, and layers of small graphs have
#: a kernel for it.
_FEW_MESSAGES = 2**21

EdgeFeatures = Tensor | tuple[Tensor, Tensor] | None

_INDICES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def check_sizes(**sizes: Any) -> None:
    """Raise unless all sizes are integers of at least 1. None means that a size was not given."""
    for name, size in sizes.items():
        if size is None:
            continue
        if isinstance(size, tuple | list):
            raise TypeError(
                f"got {name}={size}, expected one number; only PNAConv takes two, those of "
                "senders and of receivers (bipartite)"
            )
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(
                f"got {name}={size!r}, expected a whole number of at least 1; pass it as an int"
            )
        if size < 1:
            remedy = "; leave it out where edges have no features" if name == "edge_dim" else ""
            raise ValueError(f"got {name}={size}, expected at least 1{remedy}")


def widths_of(in_channels: Any) -> tuple[int, int]:
    """Features of a sender and of a receiver, from one number or a pair."""
    pair = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
    if len(pair) != 2:
        raise TypeError(
            f"got in_channels={in_channels}, expected one number, or a pair: features of a sender "
            "and of a receiver"
        )
    for width in pair:
        check_sizes(in_channels=width)
    return pair[0], pair[1]


def check_pair(x: Any, widths: tuple[int, int], weight: Tensor) -> tuple[int, int]:
    """Return the numbers of senders and of receivers, after the features of both are checked."""
    if len(x) != 2 or not all(isinstance(part, Tensor) for part in x):
        kinds = ", ".join(type(part).__name__ for part in x)
        raise TypeError(
            f"got x of ({kinds}), expected a tensor, or a pair of tensors: the features of senders "
            f"(…, {widths[0]}) and of receivers (…, {widths[1]}), which the layer needs too"
        )
    remedy = "convert it with x.float(), or embed it if it holds categories"
    for part, role, width, index in zip(x, ("senders", "receivers"), widths, (0, 1), strict=True):
        expected = (role, f"in_channels[{index}]", width)
        _check_matrix(f"x of the {role}", part, expected, remedy, weight)
    if x[0].device != x[1].device:
        raise ValueError(
            f"got x of the senders on {x[0].device} and of the receivers on {x[1].device}, "
            "expected one device"
        )
    return x[0].shape[0], x[1].shape[0]


def check_features(x: Any, channels: int, weight: Tensor) -> None:
    """Raise unless x is (nodes, channels) and has the dtype of `weight`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"got x of type {type(x).__name__}, expected a tensor (nodes, {channels})")
    remedy = "convert it with x.float(), or embed it if it holds categories"
    _check_matrix("x", x, ("nodes", "in_channels", channels), remedy, weight)


def _check_matrix(
    name: str, tensor: Tensor, expected: tuple[str, str, int], remedy: str, weight: Tensor
) -> None:
    """Raise unless the tensor is a matrix of the expected width and dtype.

    `expected` contains the name of the rows, the argument that sets the width, and the width.
    """
    rows, argument, width = expected
    if not tensor.is_floating_point():
        raise TypeError(f"got {name} of dtype {tensor.dtype}, expected a floating type; {remedy}")
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise ValueError(
            f"got {name} of shape {tuple(tensor.shape)}, expected ({rows}, {width}): the layer "
            f"was made with {argument}={width}"
        )
    _check_type(name, tensor, weight)


def check_bipartite(x: tuple[Tensor, Tensor], adjacency: Adjacency) -> None:
    """Raise unless the adjacency has the device of x and its numbers of senders and receivers."""
    senders, receivers = (part.shape[0] for part in x)
    if (adjacency.num_senders, adjacency.num_receivers) != (senders, receivers):
        raise ValueError(
            f"got x of {senders} senders and {receivers} receivers and an adjacency of "
            f"{adjacency.num_senders} senders and {adjacency.num_receivers} receivers, expected as "
            "many of each; build it with num_nodes=(len(x[0]), len(x[1]))"
        )
    _check_device(x[0], adjacency)


def check_graph(x: Tensor, adjacency: Adjacency) -> None:
    """Raise unless the adjacency has the device and the number of nodes of x."""
    _check_device(x, adjacency)
    if not x.shape[0] == adjacency.num_senders == adjacency.num_receivers:
        raise ValueError(
            f"got x with {x.shape[0]} rows and an adjacency of {adjacency.num_senders} senders and "
            f"{adjacency.num_receivers} receivers, expected as many of each; build it with "
            "num_nodes=x.shape[0]"
        )


def _check_device(x: Tensor, adjacency: Adjacency) -> None:
    if x.device != adjacency.device:
        raise ValueError(
            f"got x on {x.device} and an adjacency on {adjacency.device}, expected one device; "
            "move it with adjacency.to(x.device)"
        )


def check_edges(
    edge_attr: EdgeFeatures,
    adjacency: Adjacency,
    width: int | None,
    weight: Tensor,
    basis: bool = False,
) -> None:
    """Raise unless a layer made with ``edge_dim=width`` accepts these edge features.

    With `basis`, a pair may also be (basis, coefficients).
    """
    if edge_attr is None:
        if width is None:
            return
        raise ValueError(
            f"got no edge_attr, expected (edges, {width}) or a pair (table, index): "
            f"the layer was made with edge_dim={width}"
        )
    if width is None:
        raise ValueError(
            "got edge_attr, expected none: the layer was made without edge_dim; pass "
            "edge_dim=edge_attr.shape[1] when making it"
        )
    pair = isinstance(edge_attr, tuple | list)
    given: tuple[Any, ...] = tuple(edge_attr) if pair else (edge_attr,)
    if len(given) > 2 or not all(isinstance(part, Tensor) for part in given):
        kinds = " and ".join(type(part).__name__ for part in given)
        raise TypeError(
            f"got edge_attr of {kinds}, expected a tensor (edges, {width}) or a pair of tensors "
            "(table, index)"
        )
    features, rows = given[0], given[-1]
    mixed = basis and pair and rows.dim() == 2 and rows.is_floating_point()
    remedy = "convert them with edge_attr.float(), or give categories as (table, index)"
    _check_matrix("edge features", features, ("…", "edge_dim", width), remedy, weight)
    if any(part.device != adjacency.device for part in given):
        raise ValueError(
            f"got edge features on {features.device} and a graph on {adjacency.device}, expected "
            "one device"
        )
    if rows.shape[:1] != (adjacency.num_edges,):
        raise ValueError(
            f"got edge features of {len(rows)} edges, expected {adjacency.num_edges}, one row "
            "for each edge in the order of edge_index"
        )
    if mixed:
        _check_type("coefficients of edges", rows, weight)
        if rows.shape[1] != len(features) or len(features) > NARROW:
            raise ValueError(
                f"got coefficients of edges of shape {tuple(rows.shape)} for a basis of "
                f"{len(features)} rows, expected (edges, {len(features)}) and a basis of at most "
                f"{NARROW} rows; or pass coefficients @ basis"
            )
    elif pair:
        if rows.dtype not in _INDICES or rows.dim() != 1:
            raise TypeError(
                f"got an edge index of dtype {rows.dtype} and shape {tuple(rows.shape)}, expected "
                "whole numbers (edges,), a row of the table for each edge"
            )
        if rows.device.type == "cpu" and values_readable():
            check_table(rows, len(features))


def _check_type(name: str, tensor: Tensor, weight: Tensor) -> None:
    """Raise unless the dtype is that of the layer; autocast converts all dtypes except float64."""
    if tensor.dtype == weight.dtype:
        return
    double = torch.float64 in (tensor.dtype, weight.dtype)
    if double or not torch.is_autocast_enabled(tensor.device.type):
        raise TypeError(
            f"got {name} of dtype {tensor.dtype} for a layer of {weight.dtype}, expected one type; "
            f"convert one of them with .to({weight.dtype})"
            + ("" if double else ", or call the layer under torch.autocast")
        )


def edge_inputs(
    edge_attr: EdgeFeatures, columns: int | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Convert edge features to the form that `edge_term` accepts.

    It is (table, index) as given. Features of every edge become (None, features) if they are
    multiplied inside the kernel, else (features, None); (basis, coefficients) are kept, or become
    (features, None). `columns` is the width of a message; without it, all narrow features are
    multiplied inside the kernel.
    """
    if isinstance(edge_attr, tuple | list):
        table, rows = edge_attr
        if rows.is_floating_point() and _are_few(rows, columns):
            return rows @ table, None
        return table, rows
    if edge_attr is None or edge_attr.shape[1] > NARROW or _are_few(edge_attr, columns):
        return edge_attr, None
    return None, edge_attr


def _are_few(edge_attr: Tensor, columns: int | None) -> bool:
    """Whether messages are so few that a CPU multiplies narrow edge features before the kernel."""
    if columns is None or torch.compiler.is_compiling() or edge_attr.device.type != "cpu":
        return False
    few = edge_attr.shape[0] * columns <= _FEW_MESSAGES
    return few and fast_paths.is_on("edge_products")


def working_type(x: Tensor) -> torch.dtype:
    """Return the dtype in which products of x are computed: that of autocast if it is enabled."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def converted(x: Tensor, *others: Tensor | None) -> list[Any]:
    """Return all tensors in the dtype in which products of x are computed. Indices are kept."""
    dtype = working_type(x)
    return [
        tensor.to(dtype) if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in (x, *others)
    ]
