"""Products of a small graph: of rows with a weight, and the gradients of all weights at once.

A product by cuBLAS takes the host two to five times as long as a launch, and a small graph waits
for the host.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
import triton.language as tl

from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv
from pna.ops.triton.products import product, product_kinds
from pna.ops.triton.sequence import Step
from pna.ops.triton.sums import add_up_kernel

#: Rows in a tile, rows and columns of a block of a result, and inputs multiplied at a time.
ROWS, _BLOCK, _DEPTH = 32, 64, 32

#: Rows in a tile of the sums over rows. Taller tiles take longer to compile.
SHORT = 16

#: About how many programs compute the gradients of weights, and the most parts of their sums.
_PROGRAMS, _SPLITS = 256, 16

#: Elements of the gradients that one program sums over all parts.
_SUMMED = 256


@partial(
    Kernel,
    unspecialised=("a_row", "inputs", "base_row", "base_step", "bases", "out_row", "outputs"),
)
def _rows_kernel(
    a, weight, base, out, num_rows, a_row, inputs, base_row, base_step, bases, out_row, outputs,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """A tile of rows, of one tower, times its weight (inputs, outputs) or, if TRANSPOSED, (outputs,
    inputs). Then as many bases are added, which are `base_step` apart."""
    a_row, base_row, out_row = aligned(a_row, UNIT), aligned(base_row, UNIT), aligned(out_row, UNIT)
    base_step = aligned(base_step, UNIT)
    inputs, outputs = aligned(inputs, UNIT), aligned(outputs, UNIT)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = (row < num_rows)[:, None]
    tower = tl.program_id(1)
    output = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    mask = live & (output < outputs)[None, :]
    a += tower * inputs
    weight += tower * inputs * outputs
    total = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
    for k in range(0, inputs, BLOCK_K):
        column = k + tl.arange(0, BLOCK_K)
        place = a + row[:, None] * a_row + column[None, :]
        tile = tl.load(place, mask=live & (column < inputs)[None, :], other=0)
        if TRANSPOSED:
            place = weight + column[:, None] + output[None, :] * inputs
        else:
            place = weight + column[:, None] * outputs + output[None, :]
        there = (column < inputs)[:, None] & (output < outputs)[None, :]
        own = tl.load(place, mask=there, other=0)
        total += product(tile.to(tl.float32), own.to(tl.float32), PRECISION)
    place = base + row[:, None] * base_row + (tower * outputs + output)[None, :]
    for _ in range(bases):
        total += tl.load(place, mask=mask, other=0).to(tl.float32)
        place += base_step
    tl.store(out + row[:, None] * out_row + (tower * outputs + output)[None, :], total, mask=mask)


@partial(Kernel, unspecialised=("towers", "outputs", "inputs", "products", "width", "mixed"))
def _weights_kernel(
    above, of_u, of_products, x, grad, hidden, partial, num_rows, splits,
    towers, outputs, inputs, products, width, mixed,
    PRECISION: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of the gradient of a weight: the sum over some rows of outer products aᵀb. Blocks of
    the first column also sum a itself, which is the gradient of a bias. A row of `partial` has all
    that `WeightSizes.lengths` lists. Every other column of products is a sender's, without bias."""
    outputs, inputs, width = aligned(outputs, UNIT), aligned(inputs, UNIT), aligned(width, UNIT)
    products, mixed = aligned(products, UNIT), aligned(mixed, UNIT)
    of_post, of_pre = towers * outputs * inputs, products * width
    weights = of_post + of_pre + mixed * mixed
    of_towers = towers * tl.cdiv(outputs, BLOCK) * tl.cdiv(inputs, BLOCK)
    of_message = tl.cdiv(products, BLOCK) * tl.cdiv(width, BLOCK)
    block = tl.program_id(0)
    a, b, wide, deep = above, of_u, outputs, inputs
    a_row, b_row = towers * outputs, towers * inputs
    begin, sums, step = 0, weights, 1
    if block >= of_towers + of_message:
        a, b, wide, deep, a_row, b_row = grad, hidden, mixed, mixed, mixed, mixed
        begin, sums = of_post + of_pre, weights + towers * outputs + products // 2
        block -= of_towers + of_message
    elif block >= of_towers:
        a, b, wide, deep, a_row, b_row = of_products, x, products, width, products, width
        begin, sums, step = of_post, weights + towers * outputs, 2
        block -= of_towers
    across = tl.cdiv(deep, BLOCK)
    tower = block // (tl.cdiv(wide, BLOCK) * across)
    block -= tower * tl.cdiv(wide, BLOCK) * across
    i = (block // across) * BLOCK + tl.arange(0, BLOCK)
    j = (block % across) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    added = tl.zeros([BLOCK], tl.float32)
    for top in range(tl.program_id(1) * BLOCK_R, num_rows, splits * BLOCK_R):
        row = (top + tl.arange(0, BLOCK_R)).to(tl.int64)
        live = (row < num_rows)[:, None]
        place = a + row[:, None] * a_row + (tower * wide + i)[None, :]
        left = tl.load(place, mask=live & (i < wide)[None, :], other=0).to(tl.float32)
        place = b + row[:, None] * b_row + (tower * deep + j)[None, :]
        right = tl.load(place, mask=live & (j < deep)[None, :], other=0).to(tl.float32)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
        added += tl.sum(left, 0)
    size = weights + towers * outputs + products // 2 + mixed
    partial += tl.program_id(1).to(tl.int64) * size
    place = partial + begin + (tower * wide + i)[:, None] * deep + j[None, :]
    tl.store(place, total, mask=(i < wide)[:, None] & (j < deep)[None, :])
    first = (i < wide) & (i % step == 0) & (block % across == 0)
    tl.store(partial + sums + tower * (wide // step) + i // step, added, mask=first)


class WeightSizes(NamedTuple):
    """Sizes of the weights of a layer: of U (towers, outputs, inputs), of M (products, width), and
    of the mixing layer (mixed, mixed), where 0 means that there is none."""

    towers: int
    outputs: int
    inputs: int
    products: int
    width: int
    mixed: int

    @property
    def lengths(self) -> list[int]:
        """Elements of the three weights, and of their biases."""
        towers, outputs, inputs, products, width, mixed = self
        weights = [towers * outputs * inputs, products * width, mixed * mixed]
        return [*weights, towers * outputs, products // 2, mixed]

    @property
    def total(self) -> int:
        return sum(self.lengths)

    @property
    def blocks(self) -> int:
        """Blocks of all gradients."""
        towers, *sizes = self
        outputs, inputs, products, width, mixed = (cdiv(size, _BLOCK) for size in sizes)
        return towers * outputs * inputs + products * width + mixed * mixed

    @property
    def most_splits(self) -> int:
        """Into how many parts the sums over rows are divided at most."""
        return max(1, min(_PROGRAMS // self.blocks, _SPLITS))


class RowProduct(NamedTuple):
    """a (rows, towers × inputs) times weight (towers, inputs, outputs), all by name, to out (rows,
    towers × outputs). The weight may be `transposed`: (towers, outputs, inputs). Added are `bases`
    matrices with rows `base_row` apart, which are `base_step` elements apart from each other."""

    a: str
    weight: str
    out: str
    towers: int
    inputs: int
    outputs: int
    transposed: bool = False
    base: str | None = None
    bases: int = 1
    base_row: int = 0
    base_step: int = 0


class SmallProducts:
    """The launches of products for a layer of these sizes."""

    def __init__(self, dtype: torch.dtype, exact: bool, sizes: WeightSizes) -> None:
        unit = unit_of(sizes.outputs, sizes.width)
        kind, sum_kind = product_kinds(dtype, exact)
        self._sizes = sizes
        self._rows, self._weights, self._add_up = _prepared(kind, sum_kind, unit)

    def rows(self, of: RowProduct) -> Step:
        """A product of rows."""
        bases = 0 if of.base is None else of.bases
        return Step(
            self._rows[of.transposed],
            ("row_tiles", of.towers, cdiv(of.outputs, _BLOCK)),
            (of.a, of.weight, of.base or of.out, of.out, "rows", of.towers * of.inputs, of.inputs,
             of.base_row, of.base_step, bases, of.towers * of.outputs, of.outputs),
        )  # fmt: skip

    def weights(self) -> list[Step]:
        """The gradients of all weights and biases, in the order of `WeightSizes.lengths`."""
        sizes, mixing = self._sizes, ("grad", "hidden")
        if sizes.mixed == 0:
            mixing = ("above", "of_u")  # not read
        first = Step(
            self._weights, (sizes.blocks, "splits"),
            ("above", "of_u", "of_products", "x", *mixing, "partial", "rows", "splits", *sizes),
        )  # fmt: skip
        second = ("partial", "of_weights", "splits", sizes.total)
        return [first, Step(self._add_up, (cdiv(sizes.total, _SUMMED),), second)]


@cache
def _prepared(
    kind: str, sum_kind: str, unit: int
) -> tuple[list[PreparedKernel], PreparedKernel, PreparedKernel]:
    tile = dict(UNIT=unit, num_warps=4)
    rows = [
        PreparedKernel(
            _rows_kernel, TRANSPOSED=transposed, PRECISION=kind, BLOCK_R=ROWS, BLOCK_K=_DEPTH,
            BLOCK_O=_BLOCK, **tile,
        )
        for transposed in (False, True)
    ]  # fmt: skip
    weights = PreparedKernel(
        _weights_kernel, PRECISION=sum_kind, BLOCK_R=SHORT, BLOCK=_BLOCK, **tile
    )
    sums = PreparedKernel(add_up_kernel, UNIT=1, BLOCK_S=_SPLITS, BLOCK=_SUMMED, num_warps=4)
    return rows, weights, sums
