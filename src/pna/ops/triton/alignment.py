"""How many numbers kernels move at a time.

The compiler reads four numbers at once where it knows that they begin at a multiple of four. Of
sizes it is told at run time it knows this of multiples of sixteen alone, and four models of 75
features have 300. So the host says of what the sizes are multiples by which a launch finds its
rows, and the kernel has the compiler know it.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl


def unit_of(*sizes: int) -> int:
    """What all sizes are multiples of: 4, 2 or 1."""
    return math.gcd(4, *sizes)


@triton.jit
def aligned(size, UNIT: tl.constexpr):
    """A size, known to be a multiple of UNIT: the compiler sees it in the product. It is rounded
    down, which changes nothing where it is one, so UNIT must be `unit_of` all that goes in."""
    if UNIT > 1:
        return size // UNIT * UNIT
    return size
