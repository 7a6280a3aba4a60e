"""Encodings from matrices of all pairs of nodes: graphs by size, and the columns that they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pna.data.graphset import GraphSet

#: Larger graphs are refused: a matrix of all pairs of nodes would not fit in memory.
MOST_NODES = 1 << 14

_PAIRS = 1 << 20  # pairs of nodes that are processed at a time


def edge_counts(
    graphs: GraphSet, what: str, dtype: torch.dtype = torch.float32, padded: bool = True
) -> Iterator[tuple[GraphSet, Tensor]]:
    """Batches of graphs, the smallest first, and the number of edges from node i to node j,
    (graphs, nodes, nodes). `what` needs them. Graphs without nodes are left out.

    If `padded`, graphs of similar size are in a batch, with zeros beyond the nodes of a graph. Else
    all graphs of a batch have the same size.
    """
    order = _by_size(graphs)
    sizes = graphs.sizes[order]
    if len(sizes) and int(sizes[-1]) > MOST_NODES:
        raise ValueError(
            f"got a graph of {int(sizes[-1]):,} nodes, expected at most {MOST_NODES:,}: {what} "
            "need a matrix of all pairs of nodes"
        )
    # padded to the largest, the graphs of a batch have at most _PAIRS pairs
    first = int((sizes == 0).sum())
    while first < len(order):
        padded_pairs = torch.arange(1, len(order) - first + 1) * sizes[first:].square()
        fit = padded_pairs <= _PAIRS
        if not padded:
            fit &= sizes[first:] == sizes[first]
        last = first + max(int(fit.sum()), 1)
        some = graphs[order[first:last]]
        width = int(some.sizes.max())
        count = some.senders.new_zeros(len(some), width, width, dtype=dtype)
        one = torch.ones((), dtype=dtype, device=count.device)
        count.index_put_(edge_positions(some), one, accumulate=True)
        yield some, count
        first = last


def edge_positions(graphs: GraphSet) -> tuple[Tensor, Tensor, Tensor]:
    """The entry of every edge in matrices of all pairs: graph, sender and receiver."""
    sender, receiver = graphs.edges
    return torch.repeat_interleave(graphs.edge_counts).to(graphs.device), sender, receiver


def node_positions(graphs: GraphSet) -> Tensor:
    """Which rows of padded matrices are nodes, (graphs, most nodes)."""
    sizes = graphs.sizes
    return (torch.arange(int(sizes.max())) < sizes[:, None]).to(graphs.device)


def in_order(parts: list[Tensor], graphs: GraphSet, offsets: Tensor, columns: int) -> Tensor:
    """Put the rows of all batches of `edge_counts` into the order of the set."""
    order = _by_size(graphs)
    counts = offsets.diff()[order]
    shift = offsets[:-1][order] - (counts.cumsum(0) - counts)
    rows = torch.arange(int(offsets[-1])) + torch.repeat_interleave(shift, counts)
    out = torch.zeros(len(rows), columns, device=graphs.device)
    out[rows.to(graphs.device)] = torch.cat([out[:0], *parts])
    return out


def append_columns(graphs: GraphSet, what: str, word: str, numbers: Tensor) -> GraphSet:
    """Append columns of numbers to the features of nodes or edges; their names are the word and a
    number from 1.

    Columns of integers remain categories. The metadata ``node_values`` and ``edge_values`` have
    their number of categories, and 0 for a column of numbers.
    """
    features, names = ("x", "node_features") if what == "node" else ("edge_attr", "edge_features")
    present: Tensor | None = getattr(graphs, features)
    known: tuple[str, ...] = getattr(graphs, names)
    added = tuple(f"{word} {number}" for number in range(1, numbers.shape[1] + 1))
    if set(added) & set(known):
        raise ValueError(
            f"got graphs whose {what}s have the feature {added[0]!r} already, expected graphs "
            "without it; use the set from before it was added"
        )
    metadata = dict(graphs.metadata)
    kinds = _kinds(present, metadata.get(f"{what}_values"))
    if any(kinds):
        metadata[f"{what}_values"] = [*kinds, *[0] * len(added)]
    if present is not None:
        wide = present if present.is_floating_point() else present.float()
        numbers = torch.cat([wide, numbers.to(wide.dtype)], 1)
    columns: dict[str, Any] = {features: numbers, names: (*known, *added)}
    return replace(graphs, **columns, metadata=metadata)


def _kinds(columns: Tensor | None, declared: list[int] | None) -> list[int]:
    """The number of categories of each column; 0 for a column of numbers."""
    if columns is None:
        return []
    if declared is not None:
        return list(declared)
    if columns.is_floating_point() or len(columns) == 0:
        return [0] * columns.shape[1]
    return [int(largest) + 1 for largest in columns.amax(0).tolist()]


def count_columns(names: Sequence[str], word: str) -> int:
    """How many of these columns `append_columns` has added with this word."""
    return sum(name.startswith(f"{word} ") for name in names)


def _by_size(graphs: GraphSet) -> Tensor:
    return graphs.sizes.argsort(stable=True)
