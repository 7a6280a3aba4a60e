"""What architectures share: predictions, readouts, heads, and how features enter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.conv.mlp import Gate
from pna.nn.family import KINDS
from pna.nn.linear import MLP
from pna.nn.norm import BatchNorm
from pna.nn.pooling import ClusterReadout
from pna.nn.readout import max_nodes, mean_nodes, sum_nodes


@dataclass(frozen=True)
class Prediction:
    """What a model says of a batch; None where it was made without such targets."""

    node: Tensor | None  # (nodes, targets)
    graph: Tensor | None  # (graphs, targets)
    own_loss: Tensor | None = None  # (graphs,) what a model that pools adds to that of its errors


Reduction = Literal["sum", "mean", "max"]

READOUTS: dict[Reduction, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "sum": sum_nodes,
    "mean": mean_nodes,
    "max": max_nodes,
}


def node_head(width: int, targets: int, final: str) -> MLP:
    return MLP([width, width, width, targets], "leaky_relu", None if final == "none" else final)


def graph_head(width: int, inside: int, targets: int, final: str) -> MLP | None:
    if targets == 0:
        return None
    last = None if final == "none" else final
    norm = partial(BatchNorm, level="graph")
    return MLP([width, inside, inside, targets], "relu", last, norm=norm)


def narrow_head(width: int, inside: Sequence[int] | None, targets: int, final: str) -> MLP | None:
    if targets == 0:
        return None
    inside = (width // 2, width // 4) if inside is None else inside
    return MLP([width, *inside, targets], last=None if final == "none" else final)


def gate(convolution: str, width: int) -> nn.Module:
    """What the last states pass before they are read."""
    return Gate(width) if KINDS[convolution].gated else nn.Identity()


def cluster_readout(
    convolution: str, width: int, clusters: int | None, graph_targets: int
) -> ClusterReadout | None:
    """What reads graphs by their clusters, in a model that does."""
    if not KINDS[convolution].pooled:
        if clusters is not None:
            raise ValueError(
                f"got clusters={clusters} for {convolution!r}, which makes none of its nodes; "
                "leave it out, or take 'diffpool'"
            )
        return None
    if graph_targets == 0:
        raise ValueError(
            f"got no targets of graphs for {convolution!r}, which pools graphs to predict theirs; "
            "take 'sage', which has its layers"
        )
    return ClusterReadout(width, 8 if clusters is None else clusters)


def with_clusters(
    read: Tensor, clusters: ClusterReadout | None, state: Tensor, batch: Batch
) -> tuple[Tensor, Tensor | None]:
    """What was read of every graph, beside what its clusters say, and their loss."""
    if clusters is None:
        return read, None
    said, loss = clusters(state, batch)
    return torch.cat([read, said], 1), loss


def columns_of(batch: Batch) -> Tensor:
    if batch.x is None:
        raise ValueError(
            "got graphs whose nodes have no features, expected some; give every node a 1, say"
        )
    return batch.x


def features_of(batch: Batch, first: nn.Module) -> Tensor:
    """Node features, in the type of the weights."""
    return columns_of(batch).to(next(first.parameters()).dtype)


def edge_features_of(batch: Batch, first: Any) -> Tensor | None:
    """Edge features, in the type of the weights; none where the model was made without them."""
    if first.edge_dim is None:
        return None
    if batch.edge_attr is None:
        raise ValueError("got a batch without edge features, expected those it was made for")
    return batch.edge_attr.to(next(first.parameters()).dtype)
