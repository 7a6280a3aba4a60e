"""Products of tiles that are as accurate as float32, on units that multiply bfloat16; or as TF32,
where torch is told that it will do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.backend import interpreting
from pna.ops.precision import is_exact


@triton.jit
def _nearest(a):
    """The bfloat16 number nearest to a, and what is left of a; NaN is left. Done on its bits: a
    GPU adds many more whole numbers than it converts."""
    bits = (a.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
    near = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return near, a - bits.to(tl.float32, bitcast=True)


@triton.jit
def thirds(a):
    """a as a sum of three bfloat16 numbers."""
    high, rest = _nearest(a)
    middle, rest = _nearest(rest)
    return high, middle, rest.to(tl.bfloat16)


@triton.jit
def parts(a, PRECISION: tl.constexpr):
    """What `product_of_parts` multiplies: found once, for a factor of several products."""
    if PRECISION == "thirds":
        return thirds(a)
    else:
        return a, a, a


@triton.jit
def product_of_parts(a_1, a_2, a_3, b_1, b_2, b_3, PRECISION: tl.constexpr):
    """a @ b of two numbers' parts, small terms first; short enough that the unit's own sums lose
    nothing by rounding."""
    if PRECISION == "thirds":
        total = tl.dot(a_3, b_1)
        total = tl.dot(a_2, b_2, total)
        total = tl.dot(a_1, b_3, total)
        total = tl.dot(a_2, b_1, total)
        total = tl.dot(a_1, b_2, total)
        return tl.dot(a_1, b_1, total)
    else:
        return tl.dot(a_1, b_1, input_precision=PRECISION)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b."""
    a_1, a_2, a_3 = parts(a, PRECISION)
    b_1, b_2, b_3 = parts(b, PRECISION)
    return product_of_parts(a_1, a_2, a_3, b_1, b_2, b_3, PRECISION)


def precision(z: Tensor) -> str:
    """How numbers are multiplied; in the interpreter, which knows no bfloat16 products, as such."""
    if interpreting():
        return "ieee"
    return "thirds" if z.dtype == torch.float32 and is_exact() else "tf32"


def uncut_precision() -> str:
    """How they are where cutting them in parts would cost more than it wins."""
    return "ieee" if interpreting() or is_exact() else "tf32"


def unit_stride(tensor: Tensor) -> Tensor:
    """The tensor, copied where its last numbers do not stand side by side."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def block_of(width: int) -> int:
    """How many columns a tile of so many has: a power of two, and as many as can be multiplied."""
    return max(16, triton.next_power_of_2(width))


def cut(width: int) -> tuple[int, int]:
    """A width in a block and the rest of it, each a power of two with room: all in one, and no
    rest, where two leave no less room unused."""
    whole = block_of(width)
    if whole <= 32 or whole // 2 + block_of(width - whole // 2) >= whole:
        return whole, 0
    return whole // 2, block_of(width - whole // 2)
