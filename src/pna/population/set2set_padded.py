"""Set2Set in plain torch: graphs padded to one size, all members and graphs a step at a time.

Graphs that take fewer steps than others continue to the end. Their result is read at their last
step, and their gradient enters there; it is 0 after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: Graphs are grouped by size if padding would make more than this many rows per node.
_WASTE = 4


class Graphs(NamedTuple):
    """What is read, and how: the nodes of every graph, its steps, and the LSTM."""

    x: Tensor  # (nodes, members, H)
    indptr: Tensor  # (graphs + 1,)
    steps: Tensor  # (graphs,)
    weight: Tensor  # (members, 4H, 2H)
    bias: Tensor  # (members, 4H)


class Saved(NamedTuple):
    """The result, and what the backward pass reads. Of steps that a graph does not take it may
    hold anything."""

    out: Tensor  # (graphs, members, 2H)
    z: Tensor  # (steps, members, graphs, 2H)
    cells: Tensor  # (steps, members, graphs, 5, H): σ(i), σ(f), tanh(g), σ(o) and c
    norms: Tensor  # (steps, members, graphs, 2): largest score, sum of exponentials; none on a CPU


@dataclass(frozen=True)
class _Group:
    """Some graphs of about one size, padded to the same length."""

    graphs: Tensor | slice  # which
    steps: Tensor  # (graphs,)
    count: int  # the largest of them
    nodes: Tensor  # (graphs, longest) which node stands here; any, where none does
    real: Tensor  # (graphs, longest) whether one does

    def padded(self, x: Tensor) -> Tensor:
        """x (nodes, members, H) as (members, graphs, longest, H), 0 where no node stands."""
        if self.nodes.shape[1] == 0 or x.shape[0] == 0:
            return x.new_zeros((x.shape[1], *self.nodes.shape, x.shape[2]))
        rows = x[self.nodes].masked_fill_(~self.real[:, :, None, None], 0)
        return rows.permute(2, 0, 1, 3).contiguous()


def _groups(indptr: Tensor, steps: Tensor) -> Iterator[_Group]:
    sizes = indptr.diff()
    largest = int(sizes.max())
    if largest * sizes.shape[0] <= _WASTE * max(int(sizes.sum()), 1):
        yield _group(slice(None), indptr, steps)
        return
    power = sizes.clamp(min=1).to(torch.float64).log2().ceil()
    for each in power.unique():
        yield _group((power == each).nonzero()[:, 0], indptr, steps)


def _group(graphs: Tensor | slice, indptr: Tensor, steps: Tensor) -> _Group:
    first, size = indptr[:-1][graphs, None].long(), indptr.diff()[graphs, None]
    place = torch.arange(int(size.max()))
    real = place < size
    taken = steps[graphs]
    nodes = torch.where(real, first + place, 0)
    return _Group(graphs, taken, int(taken.max().clamp(min=0)), nodes, real)


def _shares(rows: Tensor, h: Tensor, real: Tensor) -> Tensor:
    """softmax over nodes of x_n · h: (members, graphs, longest). A graph without nodes has shares
    too, of rows that are 0."""
    return _products(rows, h).masked_fill_(~real, torch.finfo(rows.dtype).min).softmax(2)


def _products(rows: Tensor, h: Tensor) -> Tensor:
    """x_n · h, by plain products: `bmm` takes thousands of small matrices one by one."""
    return (rows * h[:, :, None]).sum(3)


def forward(graphs: Graphs, saved: Saved) -> None:
    """Write the result of `set2set`, and z and cells of every step."""
    x, indptr, steps, weight, bias = graphs
    out, z, cells, _ = saved
    across, start = weight.mT.contiguous(), bias[:, None]
    for group in _groups(indptr, steps):
        rows = group.padded(x)
        members, count, _, width = rows.shape
        now, c = x.new_zeros((members, count, 2 * width)), x.new_zeros((members, count, width))
        result = out.new_zeros((count, members, 2 * width))
        for step in range(group.count):
            gates = torch.baddbmm(start, now, across).unflatten(2, (4, width))
            gates[:, :, :2].sigmoid_()
            gates[:, :, 2].tanh_()
            gates[:, :, 3].sigmoid_()
            i, f, g, o = gates.unbind(2)
            c = torch.addcmul(f * c, i, g)
            h = o * c.tanh()
            r = (rows * _shares(rows, h, group.real)[..., None]).sum(2)
            now = torch.cat([h, r], 2)
            z[step, :, group.graphs] = now
            cells[step, :, group.graphs, :4] = gates
            cells[step, :, group.graphs, 4] = c
            ends = group.steps == step + 1
            result[ends] = now[:, ends].transpose(0, 1)
        out[group.graphs] = result


def backward(
    grad: Tensor, graphs: Graphs, saved: Saved, grads: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add to the gradients of x, weight and bias."""
    x, indptr, steps, weight, _ = graphs
    _, z, cells, _ = saved
    grad_x, grad_weight, grad_bias = grads
    for group in _groups(indptr, steps):
        rows = group.padded(x)
        members, count, _, width = rows.shape
        upstream = grad[group.graphs].transpose(0, 1)
        to_rows = torch.zeros_like(rows)
        to_now, to_c = x.new_zeros((members, count, 2 * width)), x.new_zeros(1)
        for step in range(group.count - 1, -1, -1):
            enters = (group.steps == step + 1)[:, None]
            h, r = z[step, :, group.graphs].split(width, 2)
            i, f, g, o, c = cells[step, :, group.graphs].unbind(2)
            to_h, to_r = (to_now + upstream * enters).split(width, 2)
            share = _shares(rows, h, group.real)
            apart = _products(rows, to_r) - (r * to_r).sum(2, keepdim=True)
            to_score = (share * apart)[..., None]
            to_rows += share[..., None] * to_r[:, :, None]
            to_rows += to_score * h[:, :, None]
            to_h = to_h + (to_score * rows).sum(2)
            tanh_c = c.tanh()
            to_c = to_c + to_h * o * (1 - tanh_c.square())
            c_before = cells[step - 1, :, group.graphs, 4] if step > 0 else torch.zeros_like(c)
            to_gates = torch.cat(
                [
                    to_c * g * i * (1 - i),
                    to_c * c_before * f * (1 - f),
                    to_c * i * (1 - g.square()),
                    to_h * tanh_c * o * (1 - o),
                ],
                2,
            )
            to_c = to_c * f
            to_now = torch.bmm(to_gates, weight)
            grad_bias += to_gates.sum(1)
            if step > 0:
                grad_weight.baddbmm_(to_gates.mT, z[step - 1, :, group.graphs])
        grad_x[group.nodes[group.real]] = to_rows.permute(1, 2, 0, 3)[group.real]
