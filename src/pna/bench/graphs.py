"""Graphs to measure on."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform_edges(num_nodes: int, num_edges: int, device: torch.device | str) -> Tensor:
    """An edge_index whose senders and receivers are drawn from all nodes alike, in int32."""
    random = torch.Generator(device).manual_seed(0)
    shape = (2, num_edges)
    return torch.randint(num_nodes, shape, device=device, generator=random, dtype=torch.int32)
