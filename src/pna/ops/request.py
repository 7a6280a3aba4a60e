"""The arguments of a backend's kernels, and what they save for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency

#: Bytes of workspace for the gradient of an edge table or basis, computed in chunks of edges.
EDGE_WORKSPACE = 2**26

#: The statistics that the kernels compute, in the order of their numbers there.
KINDS = ("mean", "sum", "var", "std", "max", "min", "normalised_mean")

#: Statistics whose gradients are linear in the messages, with factors of each receiver.
LINEAR = KINDS[:4]

#: Forms of the edge term, as numbered in the kernels.
NO_EDGE, DENSE, TABLE, BASIS, WEIGHTS = range(5)


@dataclass(frozen=True)
class Request:
    """The statistics to compute, their order in the output, and the convention of std."""

    kinds: tuple[str, ...]
    epsilon: float
    clamp: bool

    def index(self, kind: str) -> int:
        """The index of a statistic in the output, or -1."""
        return self.kinds.index(kind) if kind in self.kinds else -1

    @property
    def needs_spread(self) -> bool:
        return "var" in self.kinds or "std" in self.kinds

    @property
    def needs_extrema(self) -> bool:
        return "max" in self.kinds or "min" in self.kinds


@dataclass(frozen=True)
class Messages:
    """The messages to every receiver: x_j, or x_j + e_ij or x_j · e_ij with an edge term.

    The edge term e is edge if `at` is None, edge[at] if `at` is integer, and at @ edge if it is
    floating point. An edge term (edges, heads) has one number for features / heads consecutive
    features. A weight for each edge is one head; the members of a population have a head each.
    """

    x: Tensor  # (senders, features)
    edge: Tensor | None  # (edges, features or heads) in the given order; or a table or basis
    at: Tensor | None  # (edges,) row of the table, or (edges, D) coefficients of the basis
    adjacency: Adjacency
    combine: str = "add"  # or "mul"

    @property
    def features(self) -> int:
        return self.x.shape[1]

    @property
    def form(self) -> int:
        """The form of the edge term."""
        if self.edge is None:
            return NO_EDGE
        if self.at is None:
            return DENSE if self.edge.shape[1] == self.features else WEIGHTS
        return BASIS if self.at.is_floating_point() else TABLE

    @property
    def is_product(self) -> bool:
        """Whether the edge term multiplies x."""
        return self.edge is not None and self.combine == "mul"


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs besides the inputs of the forward pass.

    The CPU kernels store the argmax and argmin as positions in the receiver's row of slots. A row
    of at most 255 slots stores one byte; 255 means none. A longer row stores the low byte there,
    and the full position, or -1, in `long_argmax`. The GPU kernels recompute both.
    """

    out: Tensor  # (receivers, kinds, features)
    mean: Tensor  # (receivers, features) in float32 or better; empty if `out` has it exactly
    argmax: Tensor  # (receivers, 2, features) uint8, argmax and argmin; or empty
    long_argmax: Tensor  # (long rows, 2, features) int32; or empty


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are accumulated."""
    return torch.promote_types(dtype, torch.float32)


def check_table(at: Tensor, length: int) -> None:
    """Raise if an index is outside the table; the error names the first such edge."""
    if at.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(at))
    if low >= 0 and high < length:
        return
    edge = int(((at < 0) | (at >= length)).nonzero()[0])
    raise ValueError(
        f"got row {int(at[edge])} of the edge table for edge {edge}, expected 0 to {length - 1} "
        f"(the table has {length} rows); correct the index or lengthen the table"
    )
