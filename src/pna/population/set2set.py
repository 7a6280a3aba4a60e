"""Set2Set (Vinyals et al., 2015): an LSTM that queries the nodes of a graph repeatedly.

With z = [h, r], the query h and the readout r, one step is

    i, f, g, o = W z + b,   c ← σ(f) c + σ(i) tanh(g),   h ← σ(o) tanh(c),
    a = softmax over the nodes of (x_n · h),   r ← Σ a_n x_n.

h is part of the LSTM's input and also its state, so its two weights are added to one (4H, 2H).
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import gradient_operator, no_second_derivative, operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold
from pna.population import set2set_cpu
from pna.population.segments import segment_max, segment_sum, spread
from pna.population.set2set_cpu import Set2SetInputs, Set2SetResults

#: Largest H for which a Triton program keeps the weights in registers.
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
    """Return [h, r] of every graph after its last step: (graphs, 2H).

    Graph i consists of the nodes indptr[i]..indptr[i+1] of x (nodes, H) and takes steps[i] steps,
    at most `max_steps`. The parameters are those of `torch.nn.LSTM(2H, H)`. For a graph without
    nodes r is 0. For a graph that takes no step the result is 0.
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
    wide = Set2SetInputs(
        x[:, None].to(dtype), indptr, steps, weight[None].to(dtype), bias[None].to(dtype)
    )
    backend = choose(x.device)
    with torch.autocast(x.device.type, enabled=False):
        if backend == "reference" or not _is_taken(backend, wide[0]):
            if x.device.type == "cpu" and not torch.compiler.is_compiling():
                set2set_cpu.check(indptr, steps, x.shape[0], max_steps)
            return definition(*wide, max_steps).squeeze(1).to(x.dtype)
        return _set2set(wide, max_steps, backend)[0].squeeze(1).to(x.dtype)


def _is_taken(backend: str, x: Tensor) -> bool:
    """Return whether a backend has a faster path than the definition for x (nodes, members, H)."""
    if backend == "triton":
        by_kernel = x.dtype == torch.float32 and x.shape[2] <= WIDEST
        return by_kernel and fast_paths.is_on("set2set")
    return set2set_cpu.takes(x)


def definition(
    x: Tensor, indptr: Tensor, steps: Tensor, weight: Tensor, bias: Tensor, max_steps: int
) -> Tensor:
    """`set2set` in plain torch for several members: x (nodes, members, H) to
    (graphs, members, 2H)."""
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
        total = segment_sum(share, indptr).clamp(min=1)  # the sum is 0 without nodes, else ≥ 1
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


def _forward(graphs: Set2SetInputs, max_steps: torch.SymInt, backend: str) -> Set2SetResults:
    saved = _allocate(graphs.x, graphs.indptr, max_steps, backend)
    if saved.z.numel() > 0:
        _kernels(backend).forward(graphs, saved)
    else:
        saved.out.zero_()
    return saved


def _allocate(x: Tensor, indptr: Tensor, max_steps: torch.SymInt, backend: str) -> Set2SetResults:
    graphs, (_, members, width) = indptr.shape[0] - 1, x.shape
    each = (max_steps, members, graphs)
    return Set2SetResults(
        x.new_empty((graphs, members, 2 * width)),
        x.new_empty((*each, 2 * width)),
        x.new_empty((*each, 5, width)),
        x.new_empty((*each, 2) if backend == "triton" else (0, members)),
    )


def _backward(
    grad: Tensor,
    graphs: Set2SetInputs,
    saved: Set2SetResults,
    backend: str,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of x, weight and bias."""
    for gradient in gradients:
        gradient.zero_()
    if saved.z.numel() > 0:
        _kernels(backend).backward(grad, graphs, saved, gradients)


_set2set_backward = gradient_operator(
    "set2set_backward",
    _backward,
    tangent=no_second_derivative("Set2Set"),
    like=("x", "weight", "bias"),
)
_set2set = operator(
    "set2set",
    _forward,
    fake=_allocate,
    backward=_set2set_backward,
    differentiable=("x", "weight", "bias"),
    vmap=Fold({"x": 1, "weight": 0, "bias": 0}, results=(1,)),
)
