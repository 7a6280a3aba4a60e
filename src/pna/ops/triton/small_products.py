"""Products of a small graph: of rows with a weight, and the gradients of all weights at once.

A product by cuBLAS takes the host two to five times as long as a launch, and a small graph waits
for the host.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv
from pna.ops.triton.products import precision, product, uncut_precision
from pna.ops.triton.sums import add_up_kernel

#: Rows in a tile, rows and columns of a block of a result, and inputs multiplied at a time.
_ROWS, _BLOCK, _DEPTH = 32, 64, 32

#: Rows in a tile of the sums over rows. Taller tiles take longer to compile.
_SHORT = 16

#: About how many programs compute the gradients of weights, and the most parts of their sums.
_PROGRAMS, _SPLITS = 256, 16


@partial(Kernel, unspecialised=("a_row", "inputs", "base_row", "based", "out_row", "outputs"))
def _rows_kernel(
    a, weight, base, out, num_rows, a_row, inputs, base_row, based, out_row, outputs,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """A tile of rows, of one tower, times its weight (inputs, outputs) or, if TRANSPOSED, (outputs,
    inputs). If `based` is not 0, base is added."""
    a_row, base_row, out_row = aligned(a_row, UNIT), aligned(base_row, UNIT), aligned(out_row, UNIT)
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
    total += tl.load(place, mask=mask & (based != 0), other=0).to(tl.float32)
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

    def splits(self, rows: int) -> int:
        """Into how many parts the sums over rows are divided."""
        return max(1, min(_PROGRAMS // self.blocks, _SPLITS, cdiv(rows, _SHORT)))


class SmallProducts:
    """The kernels for one dtype and precision. `unit` divides all widths."""

    def __init__(self, kind: str, sum_kind: str, unit: int) -> None:
        tile = dict(UNIT=unit, num_warps=4)
        self._rows = [
            PreparedKernel(
                _rows_kernel, TRANSPOSED=transposed, PRECISION=kind, BLOCK_R=_ROWS,
                BLOCK_K=_DEPTH, BLOCK_O=_BLOCK, **tile,
            )
            for transposed in (False, True)
        ]  # fmt: skip
        self._weights = PreparedKernel(
            _weights_kernel, PRECISION=sum_kind, BLOCK_R=_SHORT, BLOCK=_BLOCK, **tile
        )
        self._add_up = PreparedKernel(add_up_kernel, UNIT=1, BLOCK_S=16, BLOCK=256, num_warps=4)

    def multiply(
        self, a: Tensor, weight: Tensor, out: Tensor, base: Tensor | None = None,
        transposed: bool = False,
    ) -> None:  # fmt: skip
        """Write a (rows, towers × inputs) times weight (towers, inputs, outputs), contiguous, plus
        base to out (rows, towers × outputs). The weight may be `transposed`: (towers, outputs,
        inputs). Base has the shape of out, or that of a row."""
        towers, inputs, outputs = weight.shape
        if transposed:
            inputs, outputs = outputs, inputs
        rows, based, base_row = a.shape[0], 1, 0
        if base is None:
            base, based = out, 0
        elif base.dim() == 2:
            base_row = base.stride(0)
        self._rows[transposed](
            (cdiv(rows, _ROWS), towers, cdiv(outputs, _BLOCK)), a, weight, base, out, rows,
            a.stride(0), inputs, base_row, based, out.stride(0), outputs,
        )  # fmt: skip

    def gradients(
        self, above: Tensor, of_u: Tensor, of_products: Tensor, x: Tensor,
        mixing: tuple[Tensor, Tensor], sizes: WeightSizes, out: Tensor,
    ) -> None:  # fmt: skip
        """Write the gradients of all weights and biases to out, in the order of `sizes.lengths`.

        `above` is the gradient of the result of U; `mixing` that of the result of the mixing layer,
        and its inputs."""
        rows, splits = x.shape[0], sizes.splits(likely(x.shape[0]))
        partial = out.new_empty((splits, sizes.total), dtype=torch.float32)
        self._weights(
            (sizes.blocks, splits), above, of_u, of_products, x, *mixing, partial, rows, splits,
            *sizes,
        )  # fmt: skip
        self._add_up((cdiv(sizes.total, 256),), partial, out, splits, sizes.total)


def products_of(x: Tensor, sizes: WeightSizes) -> SmallProducts:
    """The kernels for a layer of these sizes."""
    sums = uncut_precision() if x.dtype == torch.float32 else "tf32"
    return _prepared(precision(x), sums, unit_of(sizes.outputs, sizes.width))


_prepared = cache(SmallProducts)
