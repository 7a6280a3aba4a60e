"""What is asked of the kernels of a backend, and what they keep for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Bytes in which the gradient of an edge table or basis is made, some edges at a time.
EDGE_WORKSPACE = 2**26

#: The statistics that the kernels know, in the order in which they number them.
KINDS = ("mean", "sum", "var", "std", "max", "min", "normalised_mean")


@dataclass(frozen=True)
class Request:
    """What is computed: which statistics, in which order, and the convention of std."""

    kinds: tuple[str, ...]
    epsilon: float
    clamp: bool

    def place(self, kind: str) -> int:
        """Where a statistic stands in the output, or -1."""
        return self.kinds.index(kind) if kind in self.kinds else -1

    @property
    def needs_spread(self) -> bool:
        return "var" in self.kinds or "std" in self.kinds

    @property
    def needs_extrema(self) -> bool:
        return "max" in self.kinds or "min" in self.kinds


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs of the forward pass besides its inputs.

    The CPU kernels remember an extremum by the place of its edge in the receiver's row: in one
    byte for rows of at most 255 slots, with 255 for none; a longer row keeps the lower byte there
    and the whole number, or -1, in `long_places`. The GPU kernels find it again.
    """

    out: Tensor  # (receivers, kinds, features)
    mean: Tensor  # (receivers, features) in float32 or better; empty where `out` has it exactly
    places: Tensor  # (receivers, 2, features) uint8, of the maximum and of the minimum; or empty
    long_places: Tensor  # (long rows, 2, features) int32; or empty


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
