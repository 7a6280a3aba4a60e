"""Set2Set, with one kernel for each pass: a program computes all steps of one graph of one member.

State and weights stay in registers. Products are plain float32 sums: those of one graph are too
small for tensor cores. The backward pass loops over the steps in reverse. It then loops over the
nodes and gathers the gradient of each from all steps. After the kernel, a batched product computes
the gradient of the weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.launcher import Kernel, next_power_of_2, on_device
from pna.ops.triton.products import unit_stride
from pna.population.set2set_cpu import Set2SetInputs, Set2SetResults

#: Nodes per tile.
_NODES = 32


@triton.jit
def _tanh(a):
    """tanh with a series near zero, where a difference of exponentials would cancel."""
    shrunk = tl.exp(-2 * tl.abs(a))
    far = (1 - shrunk) / (1 + shrunk)
    far = tl.where(a < 0, -far, far)
    s = a * a
    near = a * (1 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835)))))
    return tl.where(s < 0.04, near, far)


@triton.jit
def _program_ids():
    """Return graph, member and number of members, and the row of step 0 in the saved tensors with
    the stride between steps."""
    graph, member = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    graphs, members = tl.num_programs(0).to(tl.int64), tl.num_programs(1).to(tl.int64)
    return graph, member, members, member * graphs + graph, members * graphs


@triton.jit
def _rows(x, x_row, first, size, unit, live, BLOCK_N: tl.constexpr):
    """Return the features of BLOCK_N nodes from `first` on, and the mask of nodes that exist."""
    node = first + tl.arange(0, BLOCK_N)
    real = node < size
    pointers = x + node.to(tl.int64)[:, None] * x_row + unit[None, :]
    return tl.load(pointers, mask=real[:, None] & live[None, :], other=0), real


@Kernel
def _set2set_forward_kernel(
    x, x_row, x_member, indptr, steps, weight, bias, out, z, cells, norms, max_steps,
    H: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute all steps of one graph.

    weight is (members, 2H, H, 4) and bias (members, H, 4): the four gates of a unit are adjacent.
    """
    graph, member, members, here, stride = _program_ids()
    begin = tl.load(indptr + graph).to(tl.int64)
    size = (tl.load(indptr + graph + 1) - begin).to(tl.int32)
    count = tl.minimum(tl.load(steps + graph), max_steps).to(tl.int32)
    x += begin * x_row + member * x_member
    unit, gate = tl.arange(0, BLOCK_H), tl.arange(0, 4 * BLOCK_H)
    live, live_gate = unit < H, gate < 4 * H
    pointers = weight + member * (8 * H * H) + unit[:, None] * (4 * H) + gate[None, :]
    mask = live[:, None] & live_gate[None, :]
    from_h = tl.load(pointers, mask=mask, other=0)
    from_r = tl.load(pointers + 4 * H * H, mask=mask, other=0)
    start = tl.load(bias + member * (4 * H) + gate, mask=live_gate, other=0)
    h = tl.zeros([BLOCK_H], tl.float32)
    r = tl.zeros([BLOCK_H], tl.float32)
    c = tl.zeros([BLOCK_H], tl.float32)
    for step in range(count):
        gates = start + tl.sum(from_h * h[:, None] + from_r * r[:, None], 0)
        i_and_g, f_and_o = tl.split(tl.reshape(gates, [BLOCK_H, 2, 2]))
        i, g = tl.split(i_and_g)
        f, o = tl.split(f_and_o)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        c = f * c + i * g
        h = o * _tanh(c)
        peak = tl.full([], float("-inf"), tl.float32)
        total = tl.full([], 0.0, tl.float32)
        r = tl.zeros([BLOCK_H], tl.float32)
        for first in range(0, size, BLOCK_N):
            rows, real = _rows(x, x_row, first, size, unit, live, BLOCK_N)
            score = tl.where(real, tl.sum(rows * h[None, :], 1), float("-inf"))
            higher = tl.maximum(peak, tl.max(score, 0))
            share, fade = tl.exp(score - higher), tl.exp(peak - higher)
            total = total * fade + tl.sum(share, 0)
            r = r * fade + tl.sum(rows * share[:, None], 0)
            peak = higher
        if size > 0:
            r /= total
        row = here + step * stride
        tl.store(z + row * (2 * H) + unit, h, mask=live)
        tl.store(z + row * (2 * H) + H + unit, r, mask=live)
        to = cells + row * (5 * H) + unit
        tl.store(to, i, mask=live)
        tl.store(to + H, f, mask=live)
        tl.store(to + 2 * H, g, mask=live)
        tl.store(to + 3 * H, o, mask=live)
        tl.store(to + 4 * H, c, mask=live)
        tl.store(norms + 2 * row, peak)
        tl.store(norms + 2 * row + 1, total)
    result = out + (graph * members + member) * (2 * H) + unit
    tl.store(result, h, mask=live)
    tl.store(result + H, r, mask=live)
    # clear z of the steps not taken: the product that gives the weights' gradient reads them
    for step in range(tl.maximum(count, 0), max_steps):
        row = here + step * stride
        tl.store(z + row * (2 * H) + unit, tl.zeros([BLOCK_H], tl.float32), mask=live)
        tl.store(z + row * (2 * H) + H + unit, tl.zeros([BLOCK_H], tl.float32), mask=live)


@Kernel
def _set2set_backward_kernel(
    grad, x, x_row, x_member, indptr, steps, weight, z, cells, norms,
    grad_x, grad_r, grad_gates, grad_bias, max_steps,
    H: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write one graph's gradients of x, of the gates and r at every step, and of the bias."""
    graph, member, members, here, stride = _program_ids()
    begin = tl.load(indptr + graph).to(tl.int64)
    size = (tl.load(indptr + graph + 1) - begin).to(tl.int32)
    count = tl.minimum(tl.load(steps + graph), max_steps).to(tl.int32)
    x += begin * x_row + member * x_member
    unit = tl.arange(0, BLOCK_H)
    live = unit < H
    pointers = weight + member * (8 * H * H) + unit[:, None] * (2 * H) + unit[None, :]
    mask = live[:, None] & live[None, :]
    h_to_i = tl.load(pointers, mask=mask, other=0)
    r_to_i = tl.load(pointers + H, mask=mask, other=0)
    h_to_f = tl.load(pointers + 2 * H * H, mask=mask, other=0)
    r_to_f = tl.load(pointers + 2 * H * H + H, mask=mask, other=0)
    h_to_g = tl.load(pointers + 4 * H * H, mask=mask, other=0)
    r_to_g = tl.load(pointers + 4 * H * H + H, mask=mask, other=0)
    h_to_o = tl.load(pointers + 6 * H * H, mask=mask, other=0)
    r_to_o = tl.load(pointers + 6 * H * H + H, mask=mask, other=0)
    own = (graph * members + member) * (2 * H) + unit
    to_h = tl.load(grad + own, mask=live, other=0)
    to_r = tl.load(grad + own + H, mask=live, other=0)
    to_c = tl.zeros([BLOCK_H], tl.float32)
    sum_i = tl.zeros([BLOCK_H], tl.float32)
    sum_f = tl.zeros([BLOCK_H], tl.float32)
    sum_g = tl.zeros([BLOCK_H], tl.float32)
    sum_o = tl.zeros([BLOCK_H], tl.float32)
    for back in range(count):
        step = count - 1 - back
        row = here + step * stride
        h = tl.load(z + row * (2 * H) + unit, mask=live, other=0)
        r = tl.load(z + row * (2 * H) + H + unit, mask=live, other=0)
        cell = cells + row * (5 * H) + unit
        i = tl.load(cell, mask=live, other=0)
        f = tl.load(cell + H, mask=live, other=0)
        g = tl.load(cell + 2 * H, mask=live, other=0)
        o = tl.load(cell + 3 * H, mask=live, other=0)
        c = tl.load(cell + 4 * H, mask=live, other=0)
        earlier = cell + 4 * H - stride * (5 * H)
        c_before = tl.load(earlier, mask=live & (step > 0), other=0)
        peak, total = tl.load(norms + 2 * row), tl.load(norms + 2 * row + 1)
        tl.store(grad_r + row * H + unit, to_r, mask=live)
        along = tl.sum(r * to_r, 0)
        for first in range(0, size, BLOCK_N):
            rows, real = _rows(x, x_row, first, size, unit, live, BLOCK_N)
            score = tl.sum(rows * h[None, :], 1)
            share = tl.where(real, tl.exp(score - peak) / total, 0)
            to_score = share * (tl.sum(rows * to_r[None, :], 1) - along)
            to_h += tl.sum(rows * to_score[:, None], 0)
        tanh_c = _tanh(c)
        to_c += to_h * o * (1 - tanh_c * tanh_c)
        to_i = to_c * g * i * (1 - i)
        to_f = to_c * c_before * f * (1 - f)
        to_g = to_c * i * (1 - g * g)
        to_o = to_h * tanh_c * o * (1 - o)
        to_c *= f
        to = grad_gates + row * (4 * H) + unit
        tl.store(to, to_i, mask=live)
        tl.store(to + H, to_f, mask=live)
        tl.store(to + 2 * H, to_g, mask=live)
        tl.store(to + 3 * H, to_o, mask=live)
        sum_i += to_i
        sum_f += to_f
        sum_g += to_g
        sum_o += to_o
        i_, f_, g_, o_ = to_i[:, None], to_f[:, None], to_g[:, None], to_o[:, None]
        to_h = tl.sum((h_to_i * i_ + h_to_f * f_) + (h_to_g * g_ + h_to_o * o_), 0)
        to_r = tl.sum((r_to_i * i_ + r_to_f * f_) + (r_to_g * g_ + r_to_o * o_), 0)
    to = grad_bias + (graph * members + member) * (4 * H) + unit
    tl.store(to, sum_i, mask=live)
    tl.store(to + H, sum_f, mask=live)
    tl.store(to + 2 * H, sum_g, mask=live)
    tl.store(to + 3 * H, sum_o, mask=live)
    for step in range(tl.maximum(count, 0), max_steps):
        row = here + step * stride
        for of in tl.static_range(4):
            to = grad_gates + row * (4 * H) + of * H + unit
            tl.store(to, tl.zeros([BLOCK_H], tl.float32), mask=live)
    tl.debug_barrier()  # threads read below what others have written to grad_r
    for first in range(0, size, BLOCK_N):
        rows, real = _rows(x, x_row, first, size, unit, live, BLOCK_N)
        to_rows = tl.zeros([BLOCK_N, BLOCK_H], tl.float32)
        for step in range(count):
            row = here + step * stride
            h = tl.load(z + row * (2 * H) + unit, mask=live, other=0)
            r = tl.load(z + row * (2 * H) + H + unit, mask=live, other=0)
            to_r = tl.load(grad_r + row * H + unit, mask=live, other=0)
            peak, total = tl.load(norms + 2 * row), tl.load(norms + 2 * row + 1)
            share = tl.exp(tl.sum(rows * h[None, :], 1) - peak) / total
            to_score = share * (tl.sum(rows * to_r[None, :], 1) - tl.sum(r * to_r, 0))
            to_rows += share[:, None] * to_r[None, :] + to_score[:, None] * h[None, :]
        node = begin + first + tl.arange(0, BLOCK_N)
        own_rows = grad_x + (node[:, None] * members + member) * H + unit[None, :]
        tl.store(own_rows, to_rows, mask=real[:, None] & live[None, :])


def forward(given: Set2SetInputs, saved: Set2SetResults) -> None:
    """Write the result of `set2set`, and what the backward pass reads of every step."""
    x, indptr, steps, weight, bias = given
    max_steps, members, graphs, _ = saved.z.shape
    x, width = unit_stride(x), x.shape[2]
    by_unit = weight.unflatten(1, (4, width)).permute(0, 3, 2, 1).contiguous()
    with on_device(x):
        _set2set_forward_kernel[(graphs, members)](
            x, x.stride(0), x.stride(1), indptr.contiguous(), steps.contiguous(), by_unit,
            bias.unflatten(1, (4, width)).mT.contiguous(), *saved,
            max_steps, **_tile(width),
        )  # fmt: skip


def backward(
    grad: Tensor, given: Set2SetInputs, saved: Set2SetResults, grads: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Write the gradients of x, weight and bias."""
    x, indptr, steps, weight, _ = given
    _, z, cells, norms = saved
    grad_x, grad_weight, grad_bias = grads
    max_steps, members, graphs, _ = z.shape
    x, width = unit_stride(x), x.shape[2]
    grad_r = z.new_empty((max_steps, members, graphs, width))
    grad_gates = z.new_empty((max_steps, members, graphs, 4 * width))
    of_graphs = z.new_empty((graphs, members, 4 * width))
    with on_device(x):
        _set2set_backward_kernel[(graphs, members)](
            grad.contiguous(), x, x.stride(0), x.stride(1), indptr.contiguous(),
            steps.contiguous(), weight.contiguous(), z, cells, norms,
            grad_x, grad_r, grad_gates, of_graphs, max_steps, **_tile(width),
        )  # fmt: skip
    torch.sum(of_graphs, 0, out=grad_bias)
    if max_steps > 1:
        after, before = grad_gates[1:].flatten(0, 1), z[:-1].flatten(0, 1)
        of_steps = torch.bmm(after.mT, before).unflatten(0, (max_steps - 1, members))
        torch.sum(of_steps, 0, out=grad_weight)


def _tile(width: int) -> dict[str, int]:
    """Choose the number of warps such that each thread holds 64 elements of the weights."""
    block = next_power_of_2(width)
    warps = max(1, block * block // 256)
    return dict(H=width, BLOCK_H=block, BLOCK_N=_NODES, num_warps=warps, num_stages=1)
