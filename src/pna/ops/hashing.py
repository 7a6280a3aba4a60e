"""A hash of integers: random numbers that are a function of what they are for.

Counter-based numbers need no generator whose state must be saved, and do not depend on the order in
which they are drawn.
"""

from __future__ import annotations

from torch import Tensor

_MIX = 0x45D9F3B3335B369  # odd, so that multiplication by it is invertible
GOLDEN = 0x1E3779B97F4A7C15


def scramble(numbers: Tensor) -> Tensor:
    """Hash every int64: each bit of the result depends on all bits of the input."""
    numbers = (numbers + 1) * GOLDEN
    for shift in (29, 32):
        numbers = (numbers ^ (numbers >> shift)) * _MIX
    return numbers ^ (numbers >> 30)
