"""Products of tiles with the accuracy of float32, on the bfloat16 units of tensor cores; in TF32 if
torch's settings allow it; in bfloat16 if the inputs are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.backend import interpreting
from pna.ops.precision import is_exact
from pna.ops.triton.launcher import next_power_of_2


@triton.jit
def _nearest(a):
    """The bfloat16 number nearest to a, and the remainder, which is NaN if a is. Computed on the
    bits: a GPU has a far higher throughput of integer additions than of conversions."""
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
    """The parts that `product_of_parts` multiplies, computed once for several products."""
    if PRECISION == "thirds":
        return thirds(a)
    else:
        return a, a, a


@triton.jit
def product_of_parts(a_1, a_2, a_3, b_1, b_2, b_3, PRECISION: tl.constexpr):
    """a @ b from the parts of a and b, small terms first. The inner dimension of a tile is so short
    that accumulation in the tensor cores loses nothing to rounding."""
    if PRECISION == "thirds":
        total = tl.dot(a_3, b_1)
        total = tl.dot(a_2, b_2, total)
        total = tl.dot(a_1, b_3, total)
        total = tl.dot(a_2, b_1, total)
        total = tl.dot(a_1, b_2, total)
        return tl.dot(a_1, b_1, total)
    elif PRECISION == "bf16":
        return tl.dot(a_1.to(tl.bfloat16), b_1.to(tl.bfloat16))
    else:
        return tl.dot(a_1, b_1, input_precision=PRECISION)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b."""
    a_1, a_2, a_3 = parts(a, PRECISION)
    b_1, b_2, b_3 = parts(b, PRECISION)
    return product_of_parts(a_1, a_2, a_3, b_1, b_2, b_3, PRECISION)


def precision(z: Tensor) -> str:
    """How tiles are multiplied. The interpreter has no bfloat16 products and uses float32."""
    return product_kinds(z.dtype, z.dtype != torch.float32 or is_exact())[0]


def uncut_precision() -> str:
    """The same, for products where splitting into parts would cost more than it gains."""
    return product_kinds(torch.float32, is_exact())[1]


def product_kinds(dtype: torch.dtype, exact: bool) -> tuple[str, str]:
    """`precision` and `uncut_precision` for a dtype. `exact` says whether TF32 will not do for
    float32; it is exact for the narrower types."""
    if interpreting():
        return "ieee", "ieee"
    if dtype == torch.float32 and exact:
        return "thirds", "ieee"
    return "bf16" if dtype == torch.bfloat16 else "tf32", "tf32"


def unit_stride(tensor: Tensor) -> Tensor:
    """The tensor, copied unless its last dimension is contiguous."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def block_of(width: int) -> int:
    """Columns in a tile for this width: a power of two, and at least 16, as `tl.dot` requires."""
    return max(16, next_power_of_2(width))


def cut(width: int) -> tuple[int, int]:
    """A width split into a block and a rest, each padded to a power of two. The rest is 0 unless
    two blocks need less padding than one."""
    whole = block_of(width)
    if whole <= 32 or whole // 2 + block_of(width - whole // 2) >= whole:
        return whole, 0
    return whole // 2, block_of(width - whole // 2)
