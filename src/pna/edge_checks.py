"""Checks of an ``edge_index``, of numbers of nodes and of degrees."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from pna.converters import remedy
from pna.torch_internals import is_batched
from pna.visible import values_visible

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def plain(edge_index: Tensor) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            f"got edge_index of type {type(edge_index).__name__}, expected an integer tensor "
            f"(2, edges); {remedy(edge_index)}"
        )
    return edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index


def both_sizes(num_nodes: int | tuple[int, int] | None) -> tuple[int, int]:
    if num_nodes is None:
        raise ValueError(
            "got no num_nodes, expected the number of nodes or (senders, receivers): the largest "
            "index says nothing about isolated nodes; pass num_nodes=x.shape[0]"
        )
    pair = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    try:
        senders, receivers = [
            size if isinstance(size, int | torch.SymInt) else operator.index(size) for size in pair
        ]
    except (TypeError, ValueError):
        raise TypeError(
            f"got num_nodes={num_nodes!r}, expected a whole number or a pair of them: "
            "(senders, receivers)"
        ) from None
    if any(isinstance(size, int) and size < 0 for size in (senders, receivers)):
        raise ValueError(f"got num_nodes={num_nodes!r}, expected a count of at least 0")
    return senders, receivers


def check(
    edge_index: Tensor, num_nodes: int | tuple[int, int], degree: Tensor | None = None
) -> None:
    """Raise if ``edge_index`` (2, edges) has an index that is no node; the error says which one.

    It also raises if a `degree` (receivers,) is less than the number of edges of its node. The
    arguments are those of `Adjacency.from_edge_index`, which does the same on a CPU. On a GPU it
    does not wait for the device and can only say that there is such an index or degree. This
    function waits.
    """
    edge_index = plain(edge_index)
    _, num_receivers = sizes = both_sizes(num_nodes)
    check_edge_index(edge_index, *sizes)
    if degree is not None:
        check_degree_form(degree, num_receivers, edge_index.device)
        check_degree(degree, torch.bincount(edge_index[1].long(), minlength=num_receivers))


def check_edge_index(edge_index: Tensor, num_senders: int, num_receivers: int) -> None:
    """Raise unless these are integers (2, edges) and, if values are visible, existing nodes."""
    check_form(edge_index)
    if not values_visible():
        return
    if edge_index.is_meta:
        raise ValueError(
            "got an edge_index on the meta device, expected one with values, by which edges are "
            "sorted; pass it on a CPU or GPU"
        )
    if is_batched(edge_index):
        raise ValueError(
            "got an edge_index that torch.vmap maps over, expected the same edges for all; join "
            "different graphs with pna.Adjacency.disjoint_union, and call the layer once"
        )
    if edge_index.shape[1] == 0:
        return
    low, high = torch.aminmax(edge_index, dim=1)
    bounds = torch.stack([low, high]).tolist()
    for row, (role, size) in enumerate([("sender", num_senders), ("receiver", num_receivers)]):
        if bounds[0][row] >= 0 and bounds[1][row] < size:
            continue
        indices = edge_index[row].long()  # int8 may be too small for `size`
        edge = int(((indices < 0) | (indices >= size)).nonzero()[0])
        raise ValueError(
            f"got {role} {int(indices[edge])} in edge {edge}, expected a node, counted "
            f"from 0 (num_nodes is {size}); renumber the nodes or correct num_nodes"
        )


def check_form(edge_index: Tensor) -> None:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"got edge_index of shape {tuple(edge_index.shape)}, expected (2, edges): row 0 the "
            "senders, row 1 the receivers"
        )
    if edge_index.dtype not in _INTEGERS:
        raise TypeError(
            f"got edge_index of dtype {edge_index.dtype}, expected int64, int32, int16, int8 or "
            "uint8; convert it with edge_index.long()"
        )


def check_degree_form(degree: Tensor, num_receivers: int, device: torch.device) -> None:
    if not isinstance(degree, Tensor):
        raise TypeError(
            f"got degree of type {type(degree).__name__}, expected an integer tensor (receivers,); "
            "convert it with torch.as_tensor(degree)"
        )
    if degree.dim() != 1 or degree.shape[0] != num_receivers:
        raise ValueError(
            f"got degree of shape {tuple(degree.shape)}, expected ({num_receivers},): one for each "
            "receiver; in a sampled batch of PyG pass full_degree[batch.n_id]"
        )
    if degree.dtype not in _INTEGERS:
        raise TypeError(
            f"got degree of dtype {degree.dtype}, expected whole numbers; convert it with "
            "degree.long()"
        )
    if degree.device != device:
        raise ValueError(
            f"got degree on {degree.device} and edges on {device}, expected one device; move it "
            f"with degree.to({str(device)!r})"
        )


def check_degree(degree: Tensor, lengths: Tensor) -> None:
    """Raise if a degree is below the number of edges; waits for the device."""
    wrong = degree < lengths
    if wrong.any():
        node = int(wrong.nonzero()[0])
        raise ValueError(
            f"got degree {int(degree[node])} of node {node}, which has {int(lengths[node])} edges "
            "here, expected at least as many; pass in-degrees of the whole graph, in a sampled "
            "batch of PyG full_degree[batch.n_id]"
        )
