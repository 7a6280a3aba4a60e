"""Linear maps on an Arm CPU, where torch is slow for products with a transposed weight.

`torch.nn.functional.linear` multiplies by a transposed view of the weight. It calls a library that
takes 0.6 ms per call, however small, and the same for every member of a vmap and every tower. A
product with a contiguous copy of the transpose calls another library, which takes 0.03 ms. Autograd
would multiply by the transpose of that copy, which is slow again, so this file defines both passes.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths

#: The platform on which torch uses the slow library, and the number of rows up to which it is slow.
_IS_ARM = platform.system() == "Linux" and platform.machine() == "aarch64"
_ROWS = 4096


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`."""
    if x.dim() != 2 or not _takes(x, weight, bias):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def tower_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply `linear` in every tower: x (rows, towers, inputs), weight (towers, outputs, inputs) and
    bias (towers, outputs) to (rows, towers, outputs)."""
    if _takes(x, weight, bias):
        return _Linears.apply(x.transpose(0, 1), weight, bias).transpose(0, 1)
    out = torch.einsum("nti,toi->nto", x, weight)
    return out if bias is None else out + bias


def _takes(x: Tensor, *parameters: Tensor | None) -> bool:
    if not _IS_ARM or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    alike = all(t is None or t.dtype == torch.float32 for t in (x, *parameters))
    taken = alike and x.device.type == "cpu" and x.shape[0] <= _ROWS
    return taken and fast_paths.is_on("untransposed")


class _Product(torch.autograd.Function):
    """The gradients of x Wᵀ + b, for one map or a batch of maps."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, to_x: Any, to_weight: Any, to_bias: Any) -> Tensor:
        x, weight = ctx.saved_tensors
        moved = x.new_zeros((*x.shape[:-1], weight.shape[-2]))
        if to_x is not None:
            moved = moved + to_x @ weight.mT
        if to_weight is not None:
            moved = moved + x @ to_weight.mT
        return moved if to_bias is None else moved + to_bias.unsqueeze(-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            grad @ weight if for_x else None,
            grad.mT @ x if for_weight else None,
            grad.sum(-2) if for_bias else None,
        )


class _Linear(_Product):
    """A single map, for which a batched product would be slower."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        across = weight.t().contiguous()
        return x @ across if bias is None else torch.addmm(bias, x, across)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor | None) -> tuple[Tensor, int]:
        """Each member of the vmap becomes a map of `_Linears`."""
        return _Linears.apply(*_in_front(inputs, in_dims, info.batch_size)), 0


class _Linears(_Product):
    """A batch of maps: x (maps, rows, inputs), weight (maps, outputs, inputs) and bias
    (maps, outputs) to (maps, rows, outputs)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        across = weight.mT.contiguous()
        return torch.bmm(x, across) if bias is None else torch.baddbmm(bias[:, None], x, across)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor | None) -> tuple[Tensor, int]:
        """Join the members of the vmap to the axis of maps."""
        every = _in_front(inputs, in_dims, info.batch_size)
        out = _Linears.apply(*[None if t is None else t.flatten(0, 1) for t in every])
        return out.unflatten(0, (info.batch_size, -1)), 0


def _in_front(
    tensors: Sequence[Tensor | None], dims: Sequence[int | None], batch: int
) -> list[Tensor | None]:
    """Move the members of the vmap to the first axis of every tensor."""

    def moved(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(batch, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    return [None if t is None else moved(t, d) for t, d in zip(tensors, dims, strict=True)]
