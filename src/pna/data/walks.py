"""Random-walk features: the probability that a walk returns to a node, or leads along an edge.

In a molecule they show the rings of an atom and a bond, which message passing cannot see with any
number of layers (Dwivedi and others, 2022).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.data.pairs import (
    append_columns,
    count_columns,
    edge_counts,
    edge_positions,
    in_order,
    node_positions,
)

RETURN, ARRIVAL = "return after", "arrival after"  # names of columns, before the step


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
        graphs = append_columns(graphs, "node", RETURN, return_probabilities(graphs, steps))
    if edge_steps:
        graphs = append_columns(graphs, "edge", ARRIVAL, arrival_probabilities(graphs, edge_steps))
    return graphs


def steps_of(graphs: GraphSet) -> tuple[int, int]:
    """The `steps` and `edge_steps` of `with_walks` that graphs have."""
    return count_columns(graphs.node_features, RETURN), count_columns(graphs.edge_features, ARRIVAL)


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
        parts.append(torch.stack(back, 2)[node_positions(some)])
    return in_order(parts, graphs, graphs.node_offsets, steps)


def arrival_probabilities(graphs: GraphSet, steps: int) -> Tensor:
    """The probability that a walk from the sender i of an edge is at its receiver j after 1, 2, …
    steps: P_ij, (P²)_ij, …, (edges, steps) float32."""
    _check_steps(steps)
    parts = []
    for some, walk in _transitions(graphs):
        at = edge_positions(some)
        power, found = walk, [walk[at]]
        for _ in range(steps - 1):
            power = power @ walk
            found.append(power[at])
        parts.append(torch.stack(found, 1))
    return in_order(parts, graphs, graphs.edge_offsets, steps)


def _transitions(graphs: GraphSet) -> Iterator[tuple[GraphSet, Tensor]]:
    """Batches of graphs, and their P, (graphs, nodes, nodes)."""
    for some, count in edge_counts(graphs, "walks"):
        yield some, count / count.sum(2, keepdim=True).clamp(min=1)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"got walks of steps={steps}, expected at least 1")
