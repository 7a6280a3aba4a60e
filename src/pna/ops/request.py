"""What the kernels of a backend are asked for, and what they save for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency

#: Bytes of workspace for the gradient of an edge table or basis, which takes some edges at a time.
EDGE_WORKSPACE = 2**26

#: The statistics that the kernels know, in the order in which they number them.
KINDS = ("mean", "sum", "var", "std", "max", "min", "normalised_mean")


@dataclass(frozen=True)
class Request:
    """What is computed: which statistics, in which order, and the convention of std."""

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
    """What reaches every receiver: x_j, or x_j + e_ij where there is an edge term.

    The edge term e is `edge` itself, edge[at] or at @ edge, for `at` absent, whole or real numbers.
    """

    x: Tensor  # (senders, features)
    edge: Tensor | None  # (edges, features), as the edges were given; a table or a basis
    at: Tensor | None  # (edges,) row of the table, or (edges, D) coefficients of the basis
    adjacency: Adjacency

    @property
    def features(self) -> int:
        return self.x.shape[1]


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs of the forward pass besides its inputs.

    The CPU kernels store the argmax and argmin as the position of the edge in the receiver's row:
    in one byte for rows of at most 255 slots, with 255 for none. A longer row stores the lower byte
    there and the whole number, or -1, in `long_argmax`. The GPU kernels recompute both.
    """

    out: Tensor  # (receivers, kinds, features)
    mean: Tensor  # (receivers, features) in float32 or better; empty where `out` has it exactly
    argmax: Tensor  # (receivers, 2, features) uint8, of the maximum and of the minimum; or empty
    long_argmax: Tensor  # (long rows, 2, features) int32; or empty


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums are kept."""
    return torch.promote_types(dtype, torch.float32)


def check_table(at: Tensor, length: int) -> None:
    """Refuse an index that leaves the table, naming the first edge that has one."""
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
