"""Kernels for a small graph: the inputs of U, and the gradients of messages.

The inputs of U and the gradient of every message are stored, which a large graph has no memory for.
No row is cut into segments. So a layer needs few kernels, and these few arguments.

Products of x, (nodes, columns, 2), hold the receivers' and the senders' part of a column next to
each other: that is the order of the weights of M.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.request import BASIS, DENSE, NO_EDGE, TABLE, Request, wide_type
from pna.ops.triton.launch import std_constants, triton_type
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv, next_power_of_2
from pna.ops.triton.messages import message
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


#: An edge term as in `Messages`: edge, and at.
EdgeTerm = tuple[Tensor | None, Tensor | None]


def kept_of(request: Request) -> list[str]:
    """What the forward pass keeps for the backward pass, besides the inputs of U: the mean and its
    rounding error, the std, and the slots of the extrema, as the bits of a float."""
    kept = ["mean", "rest"] if request.needs_spread else []
    return kept + [kind for kind in ("std", "max", "min") if kind in request.kinds]


class SmallKernels:
    """The kernels for one kind of layer, dtype and edge term.

    `depth` is that of a basis, -1 for a table, -2 for a value of each edge and None without edges.
    """

    def __init__(
        self, request: Request, times: tuple[int, ...], scalers: int, width: int, towers: int,
        dtype: torch.dtype, depth: int | None,
    ) -> None:  # fmt: skip
        columns = towers * width
        wide, self.kept = wide_type(dtype), len(kept_of(request))
        block = min(64, next_power_of_2(columns))
        self._tall, self._blocks = 256 // block, cdiv(columns, block)
        tile = dict(WIDE=triton_type(wide), BLOCK_R=self._tall, BLOCK_C=block, num_warps=4)
        kinds = ("mean", "sum", "var", "std", "max", "min")
        std = std_constants(request, wide)
        kept = kept_of(request)
        keep = {f"KEEP_{kind.upper()}": kept.index(kind) if kind in kept else -1
                for kind in ("std", "max", "min")}  # fmt: skip
        edge = {None: NO_EDGE, -2: DENSE, -1: TABLE}.get(depth, BASIS)
        shared = dict(
            COLUMNS=columns, WIDTH=width, GROUPS=len(request.kinds), SCALERS=scalers,
            **{kind.upper(): request.index(kind) for kind in kinds},
            ONCE=sum(1 << a for a, often in enumerate(times) if often == 1),
            EACH=sum(1 << a for a, often in enumerate(times) if often == 2),
            KEPT=len(kept), **keep, EDGE=edge, DEPTH=max(depth or 0, 0), **tile,
        )  # fmt: skip
        self._inputs = PreparedKernel(_inputs_kernel, **shared, **std, CLAMP=request.clamp)
        self._gradients = PreparedKernel(_gradients_kernel, **shared, LEAST=std["LEAST"])
        self._senders = PreparedKernel(_senders_kernel, COLUMNS=columns, EDGE=edge, **tile)

    def forward(
        self, products: Tensor, bias: Tensor, x: Tensor, factors: Tensor, graph: Adjacency,
        term: EdgeTerm, inputs: Tensor, kept: Tensor,
    ) -> None:  # fmt: skip
        """Write the inputs of U and what the backward pass needs."""
        (edge, at), nodes, ids = term, x.shape[0], graph.edge_ids
        self._inputs(
            self._grid(nodes), inputs, kept, products, bias, x, factors, graph.incoming.indptr,
            graph.incoming.neighbours, ids if edge is None else edge, ids if at is None else at,
            ids, nodes, ids.shape[0], 0 if edge is None else edge.shape[0],
        )  # fmt: skip

    def backward(
        self, grad: Tensor, kept: Tensor, products: Tensor, factors: Tensor, graph: Adjacency,
        term: EdgeTerm, of_products: Tensor, of_messages: Tensor,
    ) -> None:  # fmt: skip
        """Write the gradients of the products and of every message."""
        (edge, at), nodes, ids = term, products.shape[0], graph.edge_ids
        incoming, outgoing = graph.incoming, graph.outgoing
        self._gradients(
            self._grid(nodes), grad, kept, products, factors, incoming.indptr, incoming.neighbours,
            ids if edge is None else edge, ids if at is None else at, ids, of_products, of_messages,
            nodes, ids.shape[0], 0 if edge is None else edge.shape[0],
        )  # fmt: skip
        self._senders(
            self._grid(nodes), of_messages, outgoing.indptr, outgoing.neighbours, graph.out_ranks,
            incoming.indptr, ids, of_products, nodes, ids.shape[0],
        )  # fmt: skip

    def _grid(self, nodes: int) -> tuple[int, int]:
        return cdiv(nodes, self._tall), self._blocks


small_kernels = cache(SmallKernels)


def depth_of(edge: Tensor | None, at: Tensor | None) -> int | None:
    """The form of an edge term as in `Messages`."""
    if edge is None:
        return None
    if at is None:
        return -2
    return edge.shape[0] if at.is_floating_point() else -1
