"""Kernels for a small graph: the inputs of U, and the gradients of messages.

The inputs of U and the gradient of every message are stored, which a large graph has no memory for.
No row is cut into segments. So a layer needs few kernels, and these few arguments.

Products of x, (nodes, columns, 2), hold the receivers' and the senders' part of a column next to
each other: that is the order of the weights of M.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pna.ops.request import BASIS, DENSE, KINDS, NO_EDGE, TABLE, Request, wide_type
from pna.ops.tracing import likely
from pna.ops.triton.launch import std_constants, triton_type
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv, next_power_of_2
from pna.ops.triton.messages import message
from pna.ops.triton.sequence import BufferLayout, BufferPart, LaunchSequence, Step, compile_all
from pna.ops.triton.small_products import ROWS, SHORT, RowProduct, SmallProducts, WeightSizes
from pna.ops.triton.statistics import std_of


@triton.jit
def _rows_and_columns(
    num_rows, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    return row, row < num_rows, column, column < COLUMNS


@triton.jit
def _input_offset(row, column, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """Where x of a row and column is in the inputs of U, (rows, towers, BLOCKS, WIDTH)."""
    begin = column // WIDTH * (BLOCKS * WIDTH) + column % WIDTH
    return row[:, None] * (COLUMNS * BLOCKS) + begin[None, :]


@triton.jit
def _scale(
    value, shift, degree, to, factors, row, live, mask, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    SCALERS: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Store every scaler times an aggregate, to which the receiver's part is added first."""
    if ((ONCE >> GROUP) & 1) != 0:
        value += shift
    if ((EACH >> GROUP) & 1) != 0:
        value += degree.to(WIDE)[:, None] * shift
    value = tl.where((degree > 0)[:, None], value, 0)
    for scaler in tl.static_range(SCALERS):
        factor = tl.load(factors + row * SCALERS + scaler, mask=live, other=0).to(WIDE)
        tl.store(to + (1 + scaler * GROUPS + GROUP) * WIDTH, factor[:, None] * value, mask=mask)


@triton.jit
def _slots(begin, end, step, num_edges):
    """The next four slots of each row, and which of them exist: (BLOCK_R, 4)."""
    slot = begin[:, None] + step + tl.arange(0, 4)[None, :]
    live = slot < end[:, None]
    return tl.where(live, slot, tl.minimum(begin, num_edges - 1)[:, None]), live


@triton.jit
def _messages(
    slot, products, senders, edge, at, edge_ids, column, live_column, types,
    COLUMNS: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The senders' part of the messages in these slots: (BLOCK_R, 4, BLOCK_C)."""
    value = message(
        products + 1, 2 * COLUMNS, senders, edge, at, edge_ids, tl.reshape(slot, [4 * BLOCK_R]),
        column, live_column[None, :], COLUMNS, types, EDGE, DEPTH, WIDE, False, 2,
    )  # fmt: skip
    return tl.reshape(value, [BLOCK_R, 4, BLOCK_C])


@partial(
    Kernel,
    unspecialised=(
        "num_rows",
        "num_edges",
        "types",
    ),
)
def _inputs_kernel(
    inputs, kept, products, bias, x, factors, indptr, senders, edge, at, edge_ids,
    num_rows, num_edges, types,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, SCALERS: tl.constexpr,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    EPSILON: tl.constexpr, LEAST: tl.constexpr, NEXT: tl.constexpr, CLAMP: tl.constexpr,
    KEPT: tl.constexpr, KEEP_STD: tl.constexpr, KEEP_MAX: tl.constexpr, KEEP_MIN: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The inputs of U. Kept (rows, KEPT, COLUMNS) are what `kept_of` names."""
    row, live, column, live_column = _rows_and_columns(num_rows, COLUMNS, BLOCK_R, BLOCK_C)
    mask = live[:, None] & live_column[None, :]
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    degree = end - begin
    count = tl.maximum(degree, 1).to(WIDE)[:, None]
    steps = tl.max(degree)
    mean = tl.zeros([BLOCK_R, BLOCK_C], WIDE)
    odd = tl.zeros([BLOCK_R, BLOCK_C], tl.int32)
    largest = tl.full([BLOCK_R, BLOCK_C], float("-inf"), WIDE)
    smallest = tl.full([BLOCK_R, BLOCK_C], float("inf"), WIDE)
    for step in range(0, steps, 4):
        slot, more = _slots(begin, end, step, num_edges)
        value = _messages(
            slot, products, senders, edge, at, edge_ids, column, live_column, types,
            COLUMNS, EDGE, DEPTH, WIDE, BLOCK_R, BLOCK_C,
        )  # fmt: skip
        mean += tl.sum(tl.where(more[:, :, None], value / count[:, None, :], 0), 1)
        largest = tl.maximum(largest, tl.max(tl.where(more[:, :, None], value, float("-inf")), 1))
        smallest = tl.minimum(smallest, tl.min(tl.where(more[:, :, None], value, float("inf")), 1))
        odd = tl.maximum(odd, tl.max((value != value).to(tl.int32), 1))
    largest = tl.where(odd > 0, float("nan"), largest)
    smallest = tl.where(odd > 0, float("nan"), smallest)
    mean = tl.where(largest == smallest, largest, mean)  # so that equal messages have variance 0
    rest = tl.zeros([BLOCK_R, BLOCK_C], WIDE)
    spread = tl.zeros([BLOCK_R, BLOCK_C], WIDE)
    at_max = tl.full([BLOCK_R, BLOCK_C], 2147483647, tl.int32)
    at_min = at_max
    if VAR + STD + MAX + MIN > -4:
        for step in range(0, steps, 4):
            slot, more = _slots(begin, end, step, num_edges)
            value = _messages(
                slot, products, senders, edge, at, edge_ids, column, live_column, types,
                COLUMNS, EDGE, DEPTH, WIDE, BLOCK_R, BLOCK_C,
            )  # fmt: skip
            away = tl.where(more[:, :, None], value - mean[:, None, :], 0)
            rest += tl.sum(away, 1)
            spread += tl.sum(away * away, 1)
            there = tl.broadcast_to(slot.to(tl.int32)[:, :, None], [BLOCK_R, 4, BLOCK_C])
            is_max = (value == largest[:, None, :]) | (value != value)
            at_max = tl.minimum(at_max, tl.min(tl.where(is_max, there, 2147483647), 1))
            is_min = (value == smallest[:, None, :]) | (value != value)
            at_min = tl.minimum(at_min, tl.min(tl.where(is_min, there, 2147483647), 1))
    at_max = tl.where((degree > 0)[:, None], at_max, 0)
    at_min = tl.where((degree > 0)[:, None], at_min, 0)
    rest /= count
    var = (spread - rest * rest * count) / count
    var = tl.where(var < 0, 0, var)
    to = inputs + _input_offset(row, column, COLUMNS, WIDTH, 1 + GROUPS * SCALERS)
    own = tl.load(x + row[:, None] * WIDTH + (column % WIDTH)[None, :], mask=mask)
    tl.store(to, own, mask=mask)
    part = products + row[:, None] * (2 * COLUMNS) + column[None, :] * 2
    shift = tl.load(part, mask=mask, other=0).to(WIDE)
    shift += tl.load(bias + column, mask=live_column, other=0).to(WIDE)[None, :]
    keep = kept + row[:, None] * (KEPT * COLUMNS) + column[None, :]
    if MEAN >= 0:
        _scale(mean, shift, degree, to, factors, row, live, mask, MEAN, GROUPS, SCALERS, ONCE,
               EACH, WIDTH, WIDE)  # fmt: skip
    if SUM >= 0:
        _scale(mean * count, shift, degree, to, factors, row, live, mask, SUM, GROUPS, SCALERS,
               ONCE, EACH, WIDTH, WIDE)  # fmt: skip
    if VAR + STD > -2:
        tl.store(keep, mean, mask=mask)
        tl.store(keep + COLUMNS, rest, mask=mask)
        if VAR >= 0:
            _scale(var, shift, degree, to, factors, row, live, mask, VAR, GROUPS, SCALERS, ONCE,
                   EACH, WIDTH, WIDE)  # fmt: skip
        if STD >= 0:
            std = std_of(var, EPSILON, LEAST, NEXT, CLAMP, WIDE)
            tl.store(keep + KEEP_STD * COLUMNS, std, mask=mask)
            _scale(std, shift, degree, to, factors, row, live, mask, STD, GROUPS, SCALERS, ONCE,
                   EACH, WIDTH, WIDE)  # fmt: skip
    if MAX >= 0:
        tl.store(keep + KEEP_MAX * COLUMNS, at_max.to(tl.float32, bitcast=True), mask=mask)
        _scale(largest, shift, degree, to, factors, row, live, mask, MAX, GROUPS, SCALERS, ONCE,
               EACH, WIDTH, WIDE)  # fmt: skip
    if MIN >= 0:
        tl.store(keep + KEEP_MIN * COLUMNS, at_min.to(tl.float32, bitcast=True), mask=mask)
        _scale(smallest, shift, degree, to, factors, row, live, mask, MIN, GROUPS, SCALERS, ONCE,
               EACH, WIDTH, WIDE)  # fmt: skip


@triton.jit
def _unscale(
    source, factors, row, live, mask, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    SCALERS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of an aggregate: the sum over scalers of factor times gradient."""
    total = tl.zeros(mask.shape, WIDE)
    for scaler in tl.static_range(SCALERS):
        factor = tl.load(factors + row * SCALERS + scaler, mask=live, other=0).to(WIDE)
        total += factor[:, None] * tl.load(
            source + (1 + scaler * GROUPS + GROUP) * WIDTH, mask=mask, other=0
        ).to(WIDE)
    return total


@triton.jit
def _add_shift(shift, grad, degree, GROUP: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
               WIDE: tl.constexpr):  # fmt: skip
    if ((ONCE >> GROUP) & 1) != 0:
        shift += grad
    if ((EACH >> GROUP) & 1) != 0:
        shift += degree.to(WIDE)[:, None] * grad
    return shift


@partial(
    Kernel,
    unspecialised=(
        "num_rows",
        "num_edges",
        "types",
    ),
)
def _gradients_kernel(
    grad, kept, products, factors, indptr, senders, edge, at, edge_ids, of_products, of_messages,
    num_rows, num_edges, types,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, SCALERS: tl.constexpr,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    KEPT: tl.constexpr, KEEP_STD: tl.constexpr, KEEP_MAX: tl.constexpr, KEEP_MIN: tl.constexpr,
    LEAST: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradients of the receivers' part and of every message: with an edge term in the given
    order of edges, else in that of slots."""
    row, live, column, live_column = _rows_and_columns(num_rows, COLUMNS, BLOCK_R, BLOCK_C)
    mask = live[:, None] & live_column[None, :]
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    degree = end - begin
    count = tl.maximum(degree, 1).to(WIDE)[:, None]
    source = grad + _input_offset(row, column, COLUMNS, WIDTH, 1 + GROUPS * SCALERS)
    keep = kept + row[:, None] * (KEPT * COLUMNS) + column[None, :]
    zero = tl.zeros([BLOCK_R, BLOCK_C], WIDE)
    flat, slope, of_max, of_min, shift = zero, zero, zero, zero, zero
    mean, rest, at_max, at_min = zero, zero, zero.to(tl.int32), zero.to(tl.int32)
    if MEAN >= 0:
        g = _unscale(source, factors, row, live, mask, MEAN, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, g, degree, MEAN, ONCE, EACH, WIDE)
        flat += g / count
    if SUM >= 0:
        g = _unscale(source, factors, row, live, mask, SUM, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, g, degree, SUM, ONCE, EACH, WIDE)
        flat += g
    if VAR + STD > -2:
        mean = tl.load(keep, mask=mask, other=0)
        rest = tl.load(keep + COLUMNS, mask=mask, other=0)
    if VAR >= 0:
        g = _unscale(source, factors, row, live, mask, VAR, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, g, degree, VAR, ONCE, EACH, WIDE)
        slope += 2 * g / count
    if STD >= 0:
        g = _unscale(source, factors, row, live, mask, STD, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, g, degree, STD, ONCE, EACH, WIDE)
        std = tl.load(keep + KEEP_STD * COLUMNS, mask=mask, other=1)
        slope += tl.where(std == tl.full([1, 1], LEAST, WIDE), 0, g / (count * std))
    if MAX >= 0:
        of_max = _unscale(source, factors, row, live, mask, MAX, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, of_max, degree, MAX, ONCE, EACH, WIDE)
        at_max = tl.load(keep + KEEP_MAX * COLUMNS, mask=mask, other=0).to(tl.int32, bitcast=True)
    if MIN >= 0:
        of_min = _unscale(source, factors, row, live, mask, MIN, GROUPS, SCALERS, WIDTH, WIDE)
        shift = _add_shift(shift, of_min, degree, MIN, ONCE, EACH, WIDE)
        at_min = tl.load(keep + KEEP_MIN * COLUMNS, mask=mask, other=0).to(tl.int32, bitcast=True)
    to = of_products + row[:, None] * (2 * COLUMNS) + column[None, :] * 2
    tl.store(to, shift, mask=mask)
    for step in range(0, tl.max(degree), 4):
        slot, more = _slots(begin, end, step, num_edges)
        result = tl.broadcast_to(flat[:, None, :], [BLOCK_R, 4, BLOCK_C])
        if VAR + STD > -2:
            value = _messages(
                slot, products, senders, edge, at, edge_ids, column, live_column, types,
                COLUMNS, EDGE, DEPTH, WIDE, BLOCK_R, BLOCK_C,
            )  # fmt: skip
            away = (value - mean[:, None, :]) - rest[:, None, :]
            result += tl.where(slope[:, None, :] == 0, 0, slope[:, None, :] * away)
        there = slot.to(tl.int32)[:, :, None]
        if MAX >= 0:
            result += tl.where(there == at_max[:, None, :], of_max[:, None, :], 0)
        if MIN >= 0:
            result += tl.where(there == at_min[:, None, :], of_min[:, None, :], 0)
        if EDGE != 0:
            slot = tl.load(edge_ids + slot)
        place = of_messages + slot.to(tl.int64)[:, :, None] * COLUMNS + column[None, None, :]
        tl.store(place, result, mask=more[:, :, None] & live_column[None, None, :])


@partial(
    Kernel,
    unspecialised=(
        "num_rows",
        "num_edges",
    ),
)
def _senders_kernel(
    of_messages, out_indptr, receivers, out_ranks, indptr, edge_ids, of_products, num_rows,
    num_edges, COLUMNS: tl.constexpr, EDGE: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of the senders' part: the sum of the gradients of a sender's messages."""
    row, live, column, live_column = _rows_and_columns(num_rows, COLUMNS, BLOCK_R, BLOCK_C)
    begin = tl.load(out_indptr + row, mask=live, other=0)
    end = tl.load(out_indptr + row + 1, mask=live, other=0)
    total = tl.zeros([BLOCK_R, BLOCK_C], WIDE)
    for step in range(0, tl.max(end - begin), 4):
        place, more = _slots(begin, end, step, num_edges)
        slot = tl.load(indptr + tl.load(receivers + place)) + tl.load(out_ranks + place)
        if EDGE != 0:
            slot = tl.load(edge_ids + slot)
        source = of_messages + slot.to(tl.int64)[:, :, None] * COLUMNS + column[None, None, :]
        mask = more[:, :, None] & live_column[None, None, :]
        total += tl.sum(tl.load(source, mask=mask, other=0).to(WIDE), 1)
    to = of_products + row[:, None] * (2 * COLUMNS) + column[None, :] * 2 + 1
    tl.store(to, total, mask=live[:, None] & live_column[None, :])


def kept_of(request: Request) -> list[str]:
    """The statistics that the forward pass keeps: the mean and its rounding error, the std, and the
    slots of the extrema, as the bits of a float."""
    kept = ["mean", "rest"] if request.needs_spread else []
    return kept + [kind for kind in ("std", "max", "min") if kind in request.kinds]


class SmallKind(NamedTuple):
    """All that the kernels of a layer are compiled for."""

    request: Request
    times: tuple[int, ...]
    scalers: int
    sizes: WeightSizes
    dtype: torch.dtype
    factors: torch.dtype
    indices: torch.dtype  # of all arrays of the graph
    depth: int | None  # of a basis; -1 for a table, -2 for a value of each edge; None without edges
    at: torch.dtype | None  # of the rows of a table, or the coefficients of a basis
    exact: bool  # no TF32


#: Names of the tensors of a pass, and of its numbers. What a layer does not have is 0.
_INPUTS = (
    "x", "pre", "bias", "post", "post_bias", "mixing", "mixing_bias", "factors", "edge", "at",
)  # fmt: skip
_INDICES = ("indptr", "senders", "ids")
_KEPT = ("hidden", "products", "statistics")
_MADE_AGAIN = "of_u"  # in the backward pass: it has many columns
FORWARD = (*_INPUTS, *_INDICES, *_KEPT, _MADE_AGAIN, "out")
_OUTGOING = ("out_indptr", "receivers", "out_ranks")
_WORKSPACE = ("above", _MADE_AGAIN, "grad_u", "of_products", "of_messages", "partial")
BACKWARD = (*_INPUTS, *_INDICES, *_OUTGOING, *_KEPT, *_WORKSPACE, "grad", "of_weights", "of_x")
NUMBERS = ("rows", "edges", "types", "row_tiles", "blocks", "splits")


class SmallLaunches:
    """The launches of both passes of a layer, and the buffers between them."""

    def __init__(self, kind: SmallKind) -> None:
        sizes, dtype = kind.sizes, kind.dtype
        towers, outputs, inputs, products, width, mixed = sizes
        block = min(64, next_power_of_2(products // 2))
        self.sizes, self.kept, self._tall = sizes, len(kept_of(kind.request)), 256 // block
        self._most_splits, self._seen = sizes.most_splits, set[int]()
        aggregation, gradients, senders = _aggregation(kind, self._tall, block)
        by, of_towers = SmallProducts(dtype, kind.exact, sizes), "hidden" if mixed else "out"
        forward = [
            by.rows(RowProduct("x", "pre", "products", 1, width, products, True)),
            aggregation,
            by.rows(
                RowProduct("of_u", "post", of_towers, *sizes[:3:2], outputs, True, "post_bias")
            ),
        ]
        to_inputs = by.rows(RowProduct("above", "post", "grad_u", towers, outputs, inputs))
        backward = [aggregation, to_inputs, gradients, senders, *by.weights()]
        if mixed:
            mixing = RowProduct("hidden", "mixing", "out", 1, mixed, mixed, True, "mixing_bias")
            forward.append(by.rows(mixing))
            backward.insert(0, by.rows(RowProduct("grad", "mixing", "above", 1, mixed, mixed)))
        to_x = RowProduct(
            "of_products", "pre", "of_x", 1, products, width, base="grad_u", bases=towers,
            base_row=towers * inputs, base_step=inputs,
        )  # fmt: skip
        types = dict.fromkeys((*FORWARD, *BACKWARD), dtype)
        types |= dict.fromkeys((*_INDICES, *_OUTGOING), kind.indices)
        types |= dict(statistics=wide_type(dtype), partial=torch.float32)
        types |= dict(factors=kind.factors, at=kind.at or dtype)
        self.forward = LaunchSequence(forward, {name: types[name] for name in FORWARD}, NUMBERS)
        self._backward = [
            LaunchSequence(steps, {name: types[name] for name in BACKWARD}, NUMBERS)
            for steps in (backward, [*backward, by.rows(to_x)])
        ]
        columns = dict(
            hidden=mixed, products=products, of_u=towers * inputs,
            statistics=self.kept * products // 2, above=mixed, grad_u=towers * inputs,
            of_products=products, of_messages=products // 2, partial=sizes.total,
        )  # fmt: skip
        rows = dict(of_messages="edges", partial="splits")
        self.buffer, self.scratch, self.workspace = (
            BufferLayout(
                [
                    BufferPart(name, rows.get(name, "rows"), columns[name], types[name])
                    for name in of
                ]
            )
            for of in (_KEPT, (_MADE_AGAIN,), _WORKSPACE)
        )

    def backward(self, for_x: bool) -> LaunchSequence:
        """The backward pass, with or without the gradient of x."""
        return self._backward[for_x]

    def numbers(self, rows: int, edges: int, types: int) -> dict[str, int]:
        """The values of `NUMBERS`, in order."""
        splits = min(self._most_splits, cdiv(likely(rows), SHORT))
        tiles = cdiv(rows, ROWS), cdiv(rows, self._tall)
        return dict(zip(NUMBERS, (rows, edges, types, *tiles, splits), strict=True))

    def is_ready(self, device: torch.device) -> bool:
        """Whether the sequences can be launched on a device. Compiles them at the first call."""
        if device.type != "cuda":
            return False
        if device.index not in self._seen:
            self._seen.add(device.index)
            compile_all([self.forward, *self._backward], device.index)
        return self.forward.is_ready(device.index) and self._backward[1].is_ready(device.index)


def _aggregation(kind: SmallKind, tall: int, block: int) -> tuple[Step, Step, Step]:
    """The inputs of U; the gradients of the receivers' parts and of all messages; and those of the
    senders' parts."""
    request, sizes, kept = kind.request, kind.sizes, kept_of(kind.request)
    columns, wide = sizes.products // 2, wide_type(kind.dtype)
    tile = dict(WIDE=triton_type(wide), BLOCK_R=tall, BLOCK_C=block, num_warps=4)
    std = std_constants(request, wide)
    keep = {f"KEEP_{name.upper()}": kept.index(name) if name in kept else -1
            for name in ("std", "max", "min")}  # fmt: skip
    form = {None: NO_EDGE, -2: DENSE, -1: TABLE}.get(kind.depth, BASIS)
    shared = dict(
        COLUMNS=columns, WIDTH=sizes.width, GROUPS=len(request.kinds), SCALERS=kind.scalers,
        **{name.upper(): request.index(name) for name in KINDS if name != "normalised_mean"},
        ONCE=sum(1 << a for a, often in enumerate(kind.times) if often == 1),
        EACH=sum(1 << a for a, often in enumerate(kind.times) if often == 2),
        KEPT=len(kept), **keep, EDGE=form, DEPTH=max(kind.depth or 0, 0), **tile,
    )  # fmt: skip
    edge = "ids" if kind.depth is None else "edge"
    at = "ids" if kind.at is None else "at"
    grid, numbers = ("blocks", cdiv(columns, block)), ("rows", "edges", "types")
    aggregation = Step(
        PreparedKernel(_inputs_kernel, **shared, **std, CLAMP=request.clamp), grid,
        ("of_u", "statistics", "products", "bias", "x", "factors", "indptr", "senders", edge, at,
         "ids", *numbers),
    )  # fmt: skip
    gradients = Step(
        PreparedKernel(_gradients_kernel, **shared, LEAST=std["LEAST"]), grid,
        ("grad_u", "statistics", "products", "factors", "indptr", "senders", edge, at, "ids",
         "of_products", "of_messages", *numbers),
    )  # fmt: skip
    senders = Step(
        PreparedKernel(_senders_kernel, COLUMNS=columns, EDGE=form, **tile), grid,
        ("of_messages", "out_indptr", "receivers", "out_ranks", "indptr", "ids", "of_products",
         "rows", "edges"),
    )  # fmt: skip
    return aggregation, gradients, senders


small_launches = cache(SmallLaunches)
