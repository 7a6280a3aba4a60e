"""Vectorised loads and stores: tell the compiler which sizes are multiples of 4 or 2.

The compiler loads four elements at once if it knows that their offset is a multiple of four. Among
integers passed at run time, Triton detects only multiples of 16, and four models of 75 features
have 300. So the host finds a common divisor of all sizes and strides that a launch computes offsets
from, and the kernel passes it on to the compiler.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from pna.ops.tracing import divisor, is_tracing


def unit_of(*sizes: int) -> int:
    """The largest of 4, 2 and 1 that divides all sizes."""
    return math.gcd(4, *(map(divisor, sizes) if is_tracing() else sizes))


@triton.jit
def aligned(size, UNIT: tl.constexpr):
    """A size as a product with UNIT, so that the compiler knows that it is a multiple. Other sizes
    would be rounded down, so UNIT must be `unit_of` of all sizes passed in."""
    if UNIT > 1:
        return size // UNIT * UNIT
    return size
