"""States of edges that a model updates between its layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.nn.linear import MLP
from pna.ops.edges import Slots, from_receivers, from_senders


class EdgeUpdate(nn.Module):
    """e_ij + MLP([x_i, x_j, e_ij]) / 2, where i sends to j, as in Multi-GNN (Egressy and others).

    Args:
        width: features of a node.
        edge_width: features of an edge, and of the layer inside the MLP.

    Shapes:
        - **sender**, **receiver**: (edges, width)
        - **state**: (edges, edge_width)
        - **output**: (edges, edge_width)
    """

    def __init__(self, width: int, edge_width: int) -> None:
        super().__init__()
        self.mlp = MLP([2 * width + edge_width, edge_width, edge_width])

    def forward(self, sender: Tensor, receiver: Tensor, state: Tensor) -> Tensor:
        return torch.add(state, self.mlp(torch.cat([sender, receiver, state], 1)), alpha=0.5)


class EdgeStates:
    """The states of some edges in the course of a forward pass.

    Args:
        edges: the edges.
        first: their first states, (edges, edge_width), in slot order.
        symmetric: follow every edge in both directions; `in_given_order` is the mean.
    """

    def __init__(self, edges: Adjacency, first: Tensor, symmetric: bool = False) -> None:
        self._slots = Slots.of(edges)
        self._states = [first] * (1 + symmetric)
        self._sorted = replace(edges, edge_ids=self._slots.by_receiver.neighbours)

    def in_slot_order(self) -> tuple[Adjacency, Tensor]:
        """The edges as if they were given in slot order, and their states in this order."""
        return self._sorted, self._states[0]

    def update(self, update: nn.Module, x: Tensor) -> None:
        """Update all states, given those of the nodes (nodes, width)."""
        ends = from_senders(x, self._slots), from_receivers(x, self._slots)
        both = (ends, ends[::-1])
        self._states = [
            update(*pair, state) for pair, state in zip(both, self._states, strict=False)
        ]

    def in_given_order(self) -> Tensor:
        """The states, (edges, edge_width), in the given order of the edges."""
        first, *other = self._states
        mean = (first + other[0]) / 2 if other else first
        return mean.index_select(0, slot_of_edge(self._slots.adjacency))


def slot_of_edge(edges: Adjacency) -> Tensor:
    """The slot of every edge in the given order, (edges,)."""
    ids = edges.edge_ids
    slots = torch.arange(edges.num_edges, dtype=ids.dtype, device=ids.device)
    return torch.empty_like(ids).index_copy(0, ids.long(), slots)
