"""`gru_cell` for few features on a CPU: gru.c, called through ctypes on Python threads.

A product of many rows with few features is limited by memory bandwidth, and plain torch reads and
writes every gate several times. The kernels write the gates once, and only if the backward pass
will need them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pna.ops import cpu
from pna.ops.operators import Fold, gradient_operator, operator, room

#: Kernel numbers, rows per chunk, and largest input and state width, all as in gru.c.
_PACK, _FORWARD, _PACK_BACKWARD, _BACKWARD, _FINISH = range(5)
_CHUNK, _WIDEST = 512, 64

#: Columns are padded to a multiple of this: the lanes of the widest vector.
_LANES = 8

_NUMBERS = ("is_double", "rows", "members", "inputs", "hidden", "across", "padded")
_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_POINTERS = (
    *("x", "h", *_PARAMETERS, "packed", "out", "gates", "grad", "grad_x", "grad_h", "partial"),
    *[f"grad_{name}" for name in _PARAMETERS],
)


_Problem = cpu.structure(_NUMBERS, _POINTERS)  # `struct gru` of gru.c
_kernel = cpu.kernel("gru", _Problem, 4, interface=1)
built = _kernel is not None  # a plain bool, which torch.compile can read


def takes(x: Tensor, h: Tensor) -> bool:
    """Return whether gru.c supports this input and state."""
    known = x.dtype in (torch.float32, torch.float64)
    return built and known and max(x.shape[1], h.shape[1]) <= _WIDEST


def gru_cell(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
    """Return the next state, as `pna.population.gru.gru_cell` does."""
    stacked = [p.unsqueeze(0) for p in parameters]
    inputs = Inputs(x.unsqueeze(1), h.unsqueeze(1), *stacked)
    return _gru_cell_cpu(inputs, torch.is_grad_enabled())[0].squeeze(1)


class _Task:
    """The `struct gru` passed to the kernels, and the tensors that it points to."""

    def __init__(self, tensors: dict[str, Tensor], padded: int) -> None:
        x, h = tensors["x"], tensors["h"]
        (rows, members, inputs), hidden = x.shape, h.shape[2]
        is_double = x.dtype == torch.float64
        across = _up(inputs)
        self.problem = _Problem(is_double, rows, members, inputs, hidden, across, padded)
        self.size = 3 * padded * (across + padded) + 4 * padded
        self.chunks = -(-rows // _CHUNK)
        self.tensors: list[Tensor] = []
        self.point(**tensors, packed=x.new_empty((members, self.size)))

    def point(self, **tensors: Tensor) -> None:
        """Set pointers of the struct to these non-empty tensors, and keep the tensors alive."""
        for name, tensor in tensors.items():
            tensor = tensor.contiguous()
            setattr(self.problem, name, tensor.data_ptr())
            self.tensors.append(tensor)

    def run(self, kernel: int) -> None:
        """Run a kernel over all chunks of rows of all members."""
        assert _kernel is not None
        run, problem, p = _kernel, ctypes.byref(self.problem), self.problem
        pieces = [(m, c, c + 1) for m in range(p.members) for c in range(self.chunks)]
        work = p.rows * p.members * 3 * p.hidden * (p.inputs + p.hidden)
        cpu.share(pieces, lambda *piece: run(problem, kernel, *piece), work)

    def run_for_members(self, kernel: int) -> None:
        """Run a kernel once per member, without chunks."""
        assert _kernel is not None
        for member in range(self.problem.members):
            _kernel(ctypes.byref(self.problem), kernel, member, 0, 0)


def _up(width: int) -> int:
    return -(-width // _LANES) * _LANES


class Inputs(NamedTuple):
    """As in `pna.population.gru`, with an additional axis of members."""

    x: Tensor  # (rows, members, inputs)
    h: Tensor  # (rows, members, hidden)
    weight_ih: Tensor  # (members, 3·hidden, inputs)
    weight_hh: Tensor  # (members, 3·hidden, hidden)
    bias_ih: Tensor  # (members, 3·hidden)
    bias_hh: Tensor  # (members, 3·hidden)


class Gates(NamedTuple):
    out: Tensor  # h', (rows, members, hidden)
    gates: Tensor  # as in gru.c; (rows, members, 0) if they are not kept


def _forward(inputs: Inputs, keep: bool) -> Gates:
    out, gates = _allocate(inputs.h, keep)
    if out.numel() > 0:
        task = _Task({**inputs._asdict(), "out": out}, _up(out.shape[2]))
        if keep:
            task.point(gates=gates)
        task.run_for_members(_PACK)
        task.run(_FORWARD)
    return Gates(out, gates)


def _allocate(h: Tensor, keep: bool) -> Gates:
    rows, members, hidden = h.shape
    width = 4 * _up(hidden) if keep else 0
    return Gates(h.new_empty(h.shape), h.new_empty((rows, members, width)))


def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    inputs: Inputs,
    gates: Tensor,
    gradients: tuple[Tensor, ...],
) -> None:
    x = inputs.x
    task = _Task({**inputs._asdict(), "grad": grad, "gates": gates}, gates.shape[2] // 4)
    given = zip(Inputs._fields, gradients, strict=True)
    task.point(**{f"grad_{n}": g for n, g in given if g.numel() > 0})
    if any(needs[2:]):
        task.point(partial=x.new_empty((x.shape[1], task.chunks, task.size)))
    task.run_for_members(_PACK_BACKWARD)
    task.run(_BACKWARD)
    if any(needs[2:]):
        task.run_for_members(_FINISH)


def _empty_gradients(
    needs: Sequence[bool], inputs: Inputs
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Allocate the gradients of either all parameters or none."""
    needed = (*needs[:2], *[any(needs[2:])] * 4)
    a, b, c, d, e, f = (room(t, n, inputs.x) for t, n in zip(inputs, needed, strict=True))
    return a, b, c, d, e, f


_gru_cell_cpu_backward = gradient_operator(
    "gru_cell_cpu_backward", _backward, of="pna.ops.gru_cell", allocate=_empty_gradients
)
_gru_cell_cpu = operator(
    "gru_cell_cpu",
    _forward,
    fake=_allocate,
    backward=_gru_cell_cpu_backward,
    differentiable=Inputs._fields,
    vmap=Fold({"x": 1, "h": 1, **dict.fromkeys(_PARAMETERS, 0)}, results=(1, 1), rows=("x", "h")),
)
