"""The edges of many graphs as flat tensors: sorted when built, checked when read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SMALL = (torch.uint8, torch.int16, torch.int32)


@dataclass(frozen=True, eq=False)
class Structure:
    """The edges of every graph, by receiver and by sender, with nodes numbered within the graph."""

    node_offsets: Tensor  # (graphs + 1,) int64
    edge_offsets: Tensor  # (graphs + 1,) int64
    degree: Tensor  # (nodes,)
    senders: Tensor  # (edges,) by receiver
    out_degree: Tensor  # (nodes,)
    receivers: Tensor  # (edges,) by sender
    out_ranks: Tensor  # (edges,) by sender: index among the edges of the receiver


def sort_edges(sizes: Any, edge_index: Any, edge_counts: Any) -> tuple[Structure, Tensor]:
    """The structure of concatenated graphs, and the given index of every edge by receiver."""
    sizes = _counts("sizes", sizes)
    edge_counts = _counts("edge_counts", edge_counts)
    if len(sizes) != len(edge_counts):
        raise ValueError(
            f"got {len(sizes)} sizes and {len(edge_counts)} edge_counts, expected one of each for "
            "every graph"
        )
    edges = _integers("edge_index", edge_index)
    num_nodes, num_edges = int(sizes.sum()), int(edge_counts.sum())
    if edges.shape != (2, num_edges):
        raise ValueError(
            f"got edge_index of shape {edges.shape}, expected (2, {num_edges}): row 0 the senders, "
            "row 1 the receivers, of as many edges as edge_counts says"
        )
    _check_ends(edges, sizes, edge_counts)
    before = np.repeat(np.cumsum(sizes) - sizes, edge_counts)
    edge_ids = np.argsort(edges[1] + before, kind="stable")
    senders, receivers = edges[0][edge_ids], edges[1][edge_ids]
    owner = receivers + before  # the edges of a graph are still consecutive
    degree = np.bincount(owner, minlength=num_nodes)
    ranks = np.arange(num_edges) - (np.cumsum(degree) - degree)[owner]
    by_sender = np.argsort(senders + before, kind="stable")
    structure = Structure(
        node_offsets=offsets(torch.from_numpy(sizes)),
        edge_offsets=offsets(torch.from_numpy(edge_counts)),
        degree=_shrunk(degree),
        senders=_shrunk(senders),
        out_degree=_shrunk(np.bincount(senders + before, minlength=num_nodes)),
        receivers=_shrunk(receivers[by_sender]),
        out_ranks=_shrunk(ranks[by_sender]),
    )
    return structure, torch.from_numpy(edge_ids)


def offsets(counts: Tensor) -> Tensor:
    """The start of every segment of these lengths, and the end of the last, int64."""
    ends = counts.cumsum(0, dtype=torch.int64)
    return torch.cat([ends.new_zeros(1), ends])


def small_type(largest: int) -> torch.dtype:
    """The smallest integer type that holds 0 to `largest`."""
    return next(dtype for dtype in (*SMALL, torch.int64) if largest <= torch.iinfo(dtype).max)


def _shrunk(numbers: NDArray[Any]) -> Tensor:
    largest = int(numbers.max()) if len(numbers) else 0
    return torch.from_numpy(numbers).to(small_type(largest))


def _integers(name: str, values: Any) -> NDArray[np.int64]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)  # an empty list is one of floats
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"got {name} of dtype {array.dtype}, expected integers; convert them with "
            f"{name}.astype('int64')"
        )
    return array.astype(np.int64)


def _counts(name: str, values: Any) -> NDArray[np.int64]:
    array = _integers(name, values)
    if array.ndim != 1:
        raise ValueError(f"got {name} of shape {array.shape}, expected (graphs,)")
    if len(array) and array.min() < 0:
        graph = int(array.argmin())
        raise ValueError(f"got {name}[{graph}] = {array[graph]}, expected a count of at least 0")
    return array


def _check_ends(
    edges: NDArray[np.int64], sizes: NDArray[np.int64], edge_counts: NDArray[np.int64]
) -> None:
    limits = np.repeat(sizes, edge_counts)
    for role, ends in zip(("sender", "receiver"), edges, strict=True):
        wrong = (ends < 0) | (ends >= limits)
        if not wrong.any():
            continue
        index = int(wrong.argmax())
        graph = int(np.searchsorted(np.cumsum(edge_counts), index, side="right"))
        edge = index - int(edge_counts[:graph].sum())
        raise ValueError(
            f"got {role} {ends[index]} in edge {edge} of graph {graph}, which has "
            f"{limits[index]} nodes; expected nodes numbered from 0 within their graph"
        )


def check_structure(structure: Structure) -> None:
    """Raise a ValueError unless all tensors agree with each other and no edge leaves its graph."""
    _check_types(structure)
    for name, rows in (("node_offsets", structure.degree), ("edge_offsets", structure.senders)):
        starts = getattr(structure, name)
        if len(starts) == 0 or starts[0] != 0 or (starts.diff() < 0).any():
            raise ValueError(f"{name} do not start at 0, or do not grow")
        if starts[-1] != len(rows):
            raise ValueError(f"{name} end at {starts[-1]} where there are {len(rows)} rows")
        if starts.amin() < 0 or starts.amax() > len(rows):  # differences may overflow
            raise ValueError(f"{name} lead out of the {len(rows)} rows there are")
    shapes = (
        (structure.node_offsets, structure.edge_offsets, "node_offsets and edge_offsets"),
        (structure.degree, structure.out_degree, "degree and out_degree"),
        (structure.senders, structure.receivers, "senders and receivers"),
        (structure.senders, structure.out_ranks, "senders and out_ranks"),
    )
    for one, other, names in shapes:
        if len(one) != len(other):
            raise ValueError(f"{names} have {len(one)} and {len(other)} rows")
    for name in ("degree", "out_degree"):
        if (getattr(structure, name) < 0).any():
            raise ValueError(f"{name} is below 0 at node {_first(getattr(structure, name) < 0)}")
        ends = offsets(getattr(structure, name))[structure.node_offsets]
        wrong = (ends != structure.edge_offsets).nonzero()
        if len(wrong):
            raise ValueError(f"{name} does not sum to the edges of graph {int(wrong[0]) - 1}")
    _check_edges(structure)


def _first(wrong: Tensor) -> int:
    return int(wrong.nonzero()[0])


def _check_edges(structure: Structure) -> None:
    """No edge may leave its graph, and each edge by sender must be one edge by receiver."""
    graph = torch.repeat_interleave(structure.edge_offsets.diff())
    senders, receivers = structure.senders.long(), structure.receivers.long()
    sizes, rank = structure.node_offsets.diff()[graph], structure.out_ranks.long()
    for name, ends in (("senders", senders), ("receivers", receivers)):
        outside = (ends < 0) | (ends >= sizes)
        if outside.any():
            raise ValueError(f"{name} lead out of graph {int(graph[_first(outside)])}")
    before = structure.node_offsets[graph]
    receivers = receivers + before
    outside = (rank < 0) | (rank >= structure.degree.long()[receivers])
    if outside.any():
        index = _first(outside)
        raise ValueError(f"out_ranks lead out of their receiver in graph {int(graph[index])}")
    slot = offsets(structure.degree)[receivers] + rank
    sender = torch.repeat_interleave(structure.out_degree.long())
    same = senders[slot] + before == sender
    if not same.all() or (torch.bincount(slot, minlength=len(slot)) != 1).any():
        raise ValueError("edges by sender are not the edges by receiver")


def _check_types(structure: Structure) -> None:
    for field in fields(structure):
        tensor: Tensor = getattr(structure, field.name)
        allowed = (torch.int64,) if field.name.endswith("_offsets") else SMALL
        if tensor.dim() != 1 or tensor.dtype not in allowed:
            raise ValueError(
                f"{field.name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, expected "
                f"one axis and {' or '.join(map(str, allowed))}"
            )
