"""`gru_cell` of few features on a CPU: gru.c, called through ctypes on Python threads.

Between many rows of few features a product is read more than it is multiplied, and plain torch
reads and writes every gate several times over. The kernels write the gates once, where there are
gradients to come, which the backward pass reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna.ops import cpu
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    fold,
    library,
    one_by_one,
    room,
)

#: Kernels, numbered as in gru.c, the rows of a chunk there, and the widest input and state.
_PACK, _FORWARD, _PACK_BACKWARD, _BACKWARD, _FINISH = range(5)
_CHUNK, _WIDEST = 512, 64

#: Columns are padded to a multiple of the numbers of any vector.
_LANES = 8

_NUMBERS = ("is_double", "rows", "members", "inputs", "hidden", "across", "padded")
_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_POINTERS = (
    *("x", "h", *_PARAMETERS, "packed", "out", "gates", "grad", "grad_x", "grad_h", "partial"),
    *[f"grad_{name}" for name in _PARAMETERS],
)


class _Problem(ctypes.Structure):
    """`struct gru` of gru.c, which says what each field is."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in _NUMBERS],
        *[(name, ctypes.c_void_p) for name in _POINTERS],
    )


_kernel = cpu.kernel("gru", _Problem, 4, interface=1)
built = _kernel is not None  # a plain fact, which compiled code can read


def takes(x: Tensor, h: Tensor) -> bool:
    """Whether gru.c is of use for an input and a state like these."""
    known = x.dtype in (torch.float32, torch.float64)
    return built and known and max(x.shape[1], h.shape[1]) <= _WIDEST


def gru_cell(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
    """The next state; as in `pna.population.gru`."""
    stacked = [p.unsqueeze(0) for p in parameters]
    keep = torch.is_grad_enabled()
    return torch.ops.pna.gru_cell_cpu(x.unsqueeze(1), h.unsqueeze(1), *stacked, keep)[0].squeeze(1)


class _Task:
    """A problem as the kernels see it, and the tensors that must outlive their calls."""

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
        """Let fields of the problem point at tensors that are not empty, and keep those alive."""
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
        """Run a kernel that knows no chunks."""
        assert _kernel is not None
        for member in range(self.problem.members):
            _kernel(ctypes.byref(self.problem), kernel, member, 0, 0)


def _up(width: int) -> int:
    return -(-width // _LANES) * _LANES


_INPUTS = "Tensor x, Tensor h, Tensor weight_ih, Tensor weight_hh, Tensor bias_ih, Tensor bias_hh"
library.define(f"gru_cell_cpu({_INPUTS}, bool keep) -> (Tensor, Tensor)")
library.define(
    "gru_cell_cpu_backward(Tensor grad, bool[] needs, Tensor x, Tensor h, Tensor weight_ih, "
    "Tensor weight_hh, Tensor gates) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "gru_cell_cpu", "CompositeExplicitAutograd")
def _forward(
    x: Tensor, h: Tensor, w_i: Tensor, w_h: Tensor, b_i: Tensor, b_h: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """h' (rows, members, hidden) and, if they are to be kept, the gates of gru.c.

    x and h are (rows, members, …), weights (members, 3·hidden, …), biases (members, 3·hidden).
    """
    out, gates = _allocate(x, h, keep)
    if out.numel() > 0:
        parameters = dict(zip(_PARAMETERS, (w_i, w_h, b_i, b_h), strict=True))
        task = _Task({"x": x, "h": h, **parameters, "out": out}, _up(h.shape[2]))
        if keep:
            task.point(gates=gates)
        task.run_for_members(_PACK)
        task.run(_FORWARD)
    return out, gates


def _allocate(x: Tensor, h: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    rows, members, hidden = h.shape
    width = 4 * _up(hidden) if keep else 0
    return h.new_empty(h.shape), h.new_empty((rows, members, width))


@torch.library.register_fake("pna::gru_cell_cpu", lib=library)
def _(x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _allocate(x, h, rest[-1])


@torch.library.impl(library, "gru_cell_cpu_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, of h, and of the parameters; `needs` is of these three, and those not
    needed have no length."""
    grads = _empty_gradients(needs, x, h, weight_ih, weight_hh)
    if h.numel() == 0:
        for gradient in grads:
            gradient.zero_()
        return grads
    tensors = {"x": x, "h": h, "weight_ih": weight_ih, "weight_hh": weight_hh}
    task = _Task({**tensors, "grad": grad, "gates": gates}, gates.shape[2] // 4)
    names = ("x", "h", *_PARAMETERS)
    task.point(**{f"grad_{n}": g for n, g in zip(names, grads, strict=True) if g.numel() > 0})
    if needs[2]:
        task.point(partial=x.new_empty((x.shape[1], task.chunks, task.size)))
    task.run_for_members(_PACK_BACKWARD)
    task.run(_BACKWARD)
    if needs[2]:
        task.run_for_members(_FINISH)
    return grads


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, h: Tensor, w_i: Tensor, w_h: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    of = (x, h, w_i, w_h, w_i[:, :, 0] if w_i.shape[2] else w_h[:, :, 0], w_h[:, :, 0])
    needed = (*needs[:2], *[needs[2]] * 4)
    a, b, c, d, e, f = (room(t, n, x) for t, n in zip(of, needed, strict=True))
    return a, b, c, d, e, f


@torch.library.register_fake("pna::gru_cell_cpu_backward", lib=library)
def _(grad: Tensor, needs: Sequence[bool], *inputs: Tensor) -> Any:
    return _empty_gradients(needs, *inputs[:4])


class _Differentiable(Function):
    """The operator and its gradients; those of the gates are never asked for."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        out, gates = below_autograd(torch.ops.pna.gru_cell_cpu.default, keyset, inputs)
        ctx.mark_non_differentiable(gates)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], gates)
        return out, gates

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
        _, for_x, for_h, *for_parameters, _ = ctx.needs_input_grad
        wanted = (for_x, for_h, *for_parameters)
        if grad is None or not any(wanted):
            return (None,) * 8
        needs = [for_x, for_h, any(for_parameters)]
        grads = torch.ops.pna.gru_cell_cpu_backward(grad, needs, *ctx.saved_tensors)
        return None, *[g if w else None for g, w in zip(grads, wanted, strict=True)], None


differentiate("gru_cell_cpu", _Differentiable)
differentiate_once("gru_cell_cpu_backward", "pna.ops.gru_cell")


@torch.library.register_vmap("pna::gru_cell_cpu", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], x: Tensor, h: Tensor, *rest: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Members of a vmap are members; where they have no parameters of their own, rows."""
    batch, (*parameters, keep) = info.batch_size, rest
    x, h = (fold(t, d, 1, batch) for t, d in zip((x, h), in_dims[:2], strict=True))
    if all(d is None for d in in_dims[2:6]):
        x, h = (t.unflatten(1, (batch, -1)).flatten(0, 1) for t in (x, h))
        results = torch.ops.pna.gru_cell_cpu(x, h, *parameters, keep)
        out, gates = (r.unflatten(0, (-1, batch)) for r in results)
        return (out, gates), (1, 1)
    own = [fold(p, d, 0, batch) for p, d in zip(parameters, in_dims[2:6], strict=True)]
    results = torch.ops.pna.gru_cell_cpu(x, h, *own, keep)
    out, gates = (r.unflatten(1, (batch, -1)) for r in results)
    return (out, gates), (1, 1)


torch.library.register_vmap(
    "pna::gru_cell_cpu_backward", one_by_one("gru_cell_cpu_backward"), lib=library
)
