"""Set2Set (Vinyals et al., 2015): an LSTM that asks the nodes of a graph again and again.

With z = [h, r], that is what was asked and what was read, one step is

    i, f, g, o = W z + b,   c ← σ(f) c + σ(i) tanh(g),   h ← σ(o) tanh(c),
    a = softmax over the nodes of (x_n · h),   r ← Σ a_n x_n.

h is both the LSTM's input and its state, so one weight (4H, 2H) stands for its two.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    fold,
    library,
    one_by_one,
)
from pna.ops.request import wide_type
from pna.population import set2set_cpu
from pna.population.segments import segment_max, segment_sum, spread

#: The widest H whose weights a Triton program holds.
WIDEST = 64


def set2set(
    x: Tensor,
    indptr: Tensor,
    steps: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    max_steps: int,
) -> Tensor:
    """[h, r] of every graph after as many steps as it takes: (graphs, 2H).

    The nodes indptr[i]..indptr[i+1] of x (nodes, H) are graph i, which takes steps[i] of at most
    `max_steps` steps; weights are those of a `torch.nn.LSTM(2H, H)`. A graph without nodes reads
    0; one that takes no step is 0.
    """
    width = x.shape[1]
    for name, given, columns in (
        ("weight_ih", weight_ih, 2 * width),
        ("weight_hh", weight_hh, width),
    ):
        if given.shape != (4 * width, columns):
            raise ValueError(
                f"got {name} of shape {tuple(given.shape)} for x of {width} features, expected "
                f"{(4 * width, columns)}, as in torch.nn.LSTM({2 * width}, {width})"
            )
    dtype = wide_type(x.dtype)
    weight = weight_ih + F.pad(weight_hh, (0, width))
    bias = bias_ih + bias_hh
    wide = (x[:, None].to(dtype), indptr, steps, weight[None].to(dtype), bias[None].to(dtype))
    backend = choose(x.device)
    with torch.autocast(x.device.type, enabled=False):
        if backend == "reference" or not _is_taken(backend, wide[0]):
            return definition(*wide, max_steps).squeeze(1).to(x.dtype)
        return torch.ops.pna.set2set(*wide, max_steps, backend)[0].squeeze(1).to(x.dtype)


def _is_taken(backend: str, x: Tensor) -> bool:
    """Whether a backend has a faster way than the definition for x (nodes, members, H)."""
    if backend == "triton":
        by_kernel = x.dtype == torch.float32 and x.shape[2] <= WIDEST
        return by_kernel and fast_paths.is_on("set2set")
    return set2set_cpu.takes(x) or fast_paths.is_on("set2set_padded")


def definition(
    x: Tensor, indptr: Tensor, steps: Tensor, weight: Tensor, bias: Tensor, max_steps: int
) -> Tensor:
    """Of several members, x (nodes, members, H) to (graphs, members, 2H), every step in full."""
    nodes, members, width = x.shape
    z = x.new_zeros((indptr.shape[0] - 1, members, 2 * width))
    c = z[..., :width]
    for step in range(max_steps):
        gates = torch.einsum("gmk,mok->gmo", z, weight) + bias
        i, f, g, o = gates.unflatten(2, (4, width)).unbind(2)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * new_c.tanh()
        score = (x * spread(h, indptr, nodes)).sum(2)
        share = (score - spread(segment_max(score.detach(), indptr), indptr, nodes)).exp()
        total = segment_sum(share, indptr).clamp(min=1)  # at least 1, but for a graph of no nodes
        r = segment_sum(share[..., None] * x, indptr) / total[..., None]
        takes = (steps > step)[:, None, None]
        z = torch.where(takes, torch.cat([h, r], 2), z)
        c = torch.where(takes, new_c, c)
    return z


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from pna.population.triton import set2set as kernels

        return kernels
    return set2set_cpu


# x (nodes, members, H), weight (members, 4H, 2H), bias (members, 4H); results are out
# (graphs, members, 2H) and what the backward pass reads: z (steps, members, graphs, 2H); cells
# (steps, members, graphs, 5, H), which are σ(i), σ(f), tanh(g), σ(o) and c; and norms (steps,
# members, graphs, 2) of the softmax, the largest score and the sum of exponentials below it, which
# the CPU does without. Of steps that a graph does not take they may hold anything.
library.define(
    "set2set(Tensor x, Tensor indptr, Tensor steps, Tensor weight, Tensor bias, "
    "SymInt max_steps, str backend) -> (Tensor, Tensor, Tensor, Tensor)"
)
library.define(
    "set2set_backward(Tensor grad, Tensor x, Tensor indptr, Tensor steps, Tensor weight, "
    "Tensor z, Tensor cells, Tensor norms, str backend) -> (Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "set2set", "CompositeExplicitAutograd")
def _forward(
    x: Tensor,
    indptr: Tensor,
    steps: Tensor,
    weight: Tensor,
    bias: Tensor,
    max_steps: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = _allocate(x, indptr, max_steps, backend)
    if results[1].numel() > 0:
        _kernels(backend).forward(x, indptr, steps, weight, bias, *results)
    else:
        results[0].zero_()
    return results


def _allocate(
    x: Tensor, indptr: Tensor, max_steps: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    graphs, (_, members, width) = indptr.shape[0] - 1, x.shape
    each = (max_steps, members, graphs)
    return (
        x.new_empty((graphs, members, 2 * width)),
        x.new_empty((*each, 2 * width)),
        x.new_empty((*each, 5, width)),
        x.new_empty((*each, 2) if backend == "triton" else (0, members)),
    )


@torch.library.register_fake("pna::set2set", lib=library)
def _(
    x: Tensor,
    indptr: Tensor,
    steps: Tensor,
    weight: Tensor,
    bias: Tensor,
    max_steps: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _allocate(x, indptr, max_steps, backend)


@torch.library.impl(library, "set2set_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    x: Tensor,
    indptr: Tensor,
    steps: Tensor,
    weight: Tensor,
    z: Tensor,
    cells: Tensor,
    norms: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    grads = _empty_gradients(x, weight)
    for gradient in grads:
        gradient.zero_()
    if z.numel() > 0:
        _kernels(backend).backward(grad, x, indptr, steps, weight, z, cells, norms, *grads)
    return grads


def _empty_gradients(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(weight.shape), x.new_empty(weight.shape[:2])


@torch.library.register_fake("pna::set2set_backward", lib=library)
def _(
    grad: Tensor, x: Tensor, indptr: Tensor, steps: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(x, weight)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        output = below_autograd(torch.ops.pna.set2set.default, keyset, inputs)
        x, indptr, steps, weight, _, _, ctx.backend = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, indptr, steps, weight, *output[1:])
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        grads: Sequence[Tensor | None] = (None,) * 3
        if grad is not None:
            grads = torch.ops.pna.set2set_backward(grad, *ctx.saved_tensors, ctx.backend)
        _, for_x, _, _, for_weight, for_bias, *_ = ctx.needs_input_grad
        wanted = (for_x, for_weight, for_bias)
        to_x, to_weight, to_bias = (g if w else None for g, w in zip(grads, wanted, strict=True))
        return None, to_x, None, None, to_weight, to_bias, None, None


differentiate("set2set", _Differentiable)
differentiate_once("set2set_backward", "Set2Set")


@torch.library.register_vmap("pna::set2set", lib=library)
def _(
    info: Any,
    in_dims: Sequence[Any],
    x: Tensor,
    indptr: Tensor,
    steps: Tensor,
    weight: Tensor,
    bias: Tensor,
    max_steps: int,
    backend: str,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Members of members are members."""
    if in_dims[1] is not None or in_dims[2] is not None:
        raise ValueError("got a vmapped indptr or steps, expected graphs that all members share")
    batch = info.batch_size
    x = fold(x, in_dims[0], 1, batch)
    weight, bias = (fold(t, d, 0, batch) for t, d in zip((weight, bias), in_dims[3:5], strict=True))
    results = torch.ops.pna.set2set(x, indptr, steps, weight, bias, max_steps, backend)
    return tuple(r.unflatten(1, (batch, -1)) for r in results), (1,) * 4


torch.library.register_vmap("pna::set2set_backward", one_by_one("set2set_backward"), lib=library)
