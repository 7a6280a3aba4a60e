"""Random-walk features: the probability that a walk returns to a node, or leads along an edge.

In a molecule they show the rings of an atom and a bond, which message passing cannot see with any
number of layers (Dwivedi and others, 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pna.data.graphset import GraphSet

#: Larger graphs are refused: a matrix of all pairs of nodes would not fit in memory.
MOST_NODES = 1 << 14

_PAIRS = 1 << 20  # pairs of nodes that are processed at a time


def with_walks(graphs: GraphSet, steps: int = 16, edge_steps: int = 0) -> GraphSet:
    """Append `return_probabilities` to the node features, and, if `edge_steps`, append
    `arrival_probabilities` to the edge features.

    Columns of integers remain categories. The metadata ``node_values`` and ``edge_values`` have
    their number of categories, and 0 for a column of numbers.
    """
    if steps == edge_steps == 0:
        raise ValueError(
            "got walks of no steps, for nodes and for edges, expected some; pass steps"
        )
    if steps:
        graphs = _append_columns(graphs, "node", "return", return_probabilities(graphs, steps))
    if edge_steps:
        graphs = _append_columns(
            graphs, "edge", "arrival", arrival_probabilities(graphs, edge_steps)
        )
    return graphs


def steps_of(graphs: GraphSet) -> tuple[int, int]:
    """The `steps` and `edge_steps` of `with_walks` that graphs have."""
    nodes = sum(name.startswith("return after ") for name in graphs.node_features)
    return nodes, sum(name.startswith("arrival after ") for name in graphs.edge_features)


def return_probabilities(graphs: GraphSet, steps: int) -> Tensor:
    """The probability that a walk is back at its start after 1, 2, … steps: the diagonals of P, P²,
    …, (nodes, steps) float32.

    P_ij is the fraction of the edges of sender i that j receives. A walk ends at a node that sends
    no edge.
    """
    _check_steps(steps)
    parts = []
    for some, walk in _transitions(graphs):
        powers = [walk]
        while 2 * len(powers) < steps:
            powers.append(powers[-1] @ walk)
        # the diagonal of PᵃPᵇ is the sum of Pᵃ_ij Pᵇ_ji over j, without a matrix product
        pairs = [((step - 1) // 2, step // 2 - 1) for step in range(2, steps + 1)]
        back = [walk.diagonal(dim1=1, dim2=2)]
        back += [(powers[a] * powers[b].mT).sum(2) for a, b in pairs]
        there = torch.arange(walk.shape[1]) < some.sizes[:, None]  # rows that are nodes
        parts.append(torch.stack(back, 2)[there.to(walk.device)])
    return _in_order(parts, graphs, graphs.node_offsets, steps)


def arrival_probabilities(graphs: GraphSet, steps: int) -> Tensor:
    """The probability that a walk from the sender i of an edge is at its receiver j after 1, 2, …
    steps: P_ij, (P²)_ij, …, (edges, steps) float32."""
    _check_steps(steps)
    parts = []
    for some, walk in _transitions(graphs):
        graph, (sender, receiver) = _graph_of_edge(some), some.edges
        power, found = walk, [walk[graph, sender, receiver]]
        for _ in range(steps - 1):
            power = power @ walk
            found.append(power[graph, sender, receiver])
        parts.append(torch.stack(found, 1))
    return _in_order(parts, graphs, graphs.edge_offsets, steps)


def _append_columns(graphs: GraphSet, what: str, word: str, numbers: Tensor) -> GraphSet:
    """Append columns of numbers to the features of nodes or edges."""
    features, names = ("x", "node_features") if what == "node" else ("edge_attr", "edge_features")
    present: Tensor | None = getattr(graphs, features)
    known: tuple[str, ...] = getattr(graphs, names)
    added = tuple(f"{word} after {step}" for step in range(1, numbers.shape[1] + 1))
    if set(added) & set(known):
        raise ValueError(
            f"got graphs whose {what}s have the feature {added[0]!r} already, expected graphs "
            "without walks; use the set from before walks were added"
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


def _transitions(graphs: GraphSet) -> Iterator[tuple[GraphSet, Tensor]]:
    """Batches of graphs of similar size, the smallest first, and their P, (graphs, nodes, nodes),
    with zeros beyond the nodes of a graph."""
    order = _by_size(graphs)
    sizes = graphs.sizes[order]
    if len(sizes) and int(sizes[-1]) > MOST_NODES:
        raise ValueError(
            f"got a graph of {int(sizes[-1]):,} nodes, expected at most {MOST_NODES:,}: walks "
            "need a matrix of all pairs of nodes"
        )
    # padded to the largest, the graphs of a batch have at most _PAIRS pairs
    first = 0
    while first < len(order):
        padded_pairs = torch.arange(1, len(order) - first + 1) * sizes[first:].square()
        last = first + max(int((padded_pairs <= _PAIRS).sum()), 1)
        some = graphs[order[first:last]]
        yield some, _walk(some)
        first = last


def _walk(graphs: GraphSet) -> Tensor:
    width = int(graphs.sizes.max())
    sender, receiver = graphs.edges
    graph = _graph_of_edge(graphs)
    count = graphs.senders.new_zeros(len(graphs), width, width, dtype=torch.float32)
    one = torch.ones((), device=graphs.device)
    count.index_put_((graph, sender, receiver), one, accumulate=True)
    return count / count.sum(2, keepdim=True).clamp(min=1)


def _by_size(graphs: GraphSet) -> Tensor:
    return graphs.sizes.argsort(stable=True)


def _graph_of_edge(graphs: GraphSet) -> Tensor:
    return torch.repeat_interleave(graphs.edge_counts).to(graphs.device)


def _in_order(parts: list[Tensor], graphs: GraphSet, offsets: Tensor, steps: int) -> Tensor:
    """Put the rows of graphs sorted by size into the order of the set."""
    order = _by_size(graphs)
    counts = offsets.diff()[order]
    shift = offsets[:-1][order] - (counts.cumsum(0) - counts)
    rows = torch.arange(int(offsets[-1])) + torch.repeat_interleave(shift, counts)
    out = torch.zeros(len(rows), steps, device=graphs.device)
    out[rows.to(graphs.device)] = torch.cat([out[:0], *parts])
    return out


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"got walks of steps={steps}, expected at least 1")
