"""A narrow PNA layer and a GRU, over and over, as one operator: for many models at once.

A step of a small model is a dozen short kernels. Alone they are as fast as they get; what autograd
puts around them is not: it adds up, step after step, the gradient of every parameter, and those
of the state. Here all steps are one operator, whose kernels go on with the sums of the step before.

    p_i = K h_i + k,   o_i = A h_i + b,   s_j = B h_j
    y_i = p_i + Σ_r f_r(d_i) · U_r ⊕_j (s_j + o_i)
    h_i' = GRU(act(y_i), h_i), or GRU(h_i, act(y_i))

with the parts of a layer as in `pna.nn.conv.split`, ⊕ in `statistics`, U in `degree_linear`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.front import Front, first_nodes
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    library,
    one_by_one,
)
from pna.ops.request import Request, Saved
from pna.ops.statistics import _GRAPH, _REQUEST, _read, request_arguments
from pna.population import gru, linears
from pna.population.linears import fold


class Layer(NamedTuple):
    """A layer without towers, of as many outputs as inputs, and its activation."""

    keep: Tensor  # K (features, features) and k
    keep_bias: Tensor
    sender: Tensor  # B (width, features)
    receiver: Tensor  # A (width, features) and b
    receiver_bias: Tensor
    mix: Tensor  # U (scalers, 1, aggregators × width, features)
    factors: Tensor  # f of every node, (nodes, scalers)
    request: Request  # ⊕
    times: Sequence[int]  # how often o_i is added to each aggregate, as in `degree_linear`
    slope: float  # of the activation below 0: 0 in ReLU, 1 where there is none


def has_recurrence(state: Tensor, layer: Layer) -> bool:
    """Whether there are kernels for all of it: on a GPU, in float32, for a few features."""
    *parameters, factors, request, _, slope = layer
    width, features = layer.sender.shape
    exact = "mean" in request.kinds or not request.needs_spread
    if not exact or slope < 0 or factors.requires_grad or features != layer.keep.shape[0]:
        return False
    if any(t.dtype != torch.float32 for t in (state, *parameters)):
        return False
    if torch.is_autocast_enabled(state.device.type):
        return False
    if not linears.takes_widths(state, width) or features > gru.WIDEST:
        return False
    from pna.ops.triton.narrow_linear import fits

    if not fits(len(request.kinds), width, layer.mix.shape[0], features):
        return False
    parts = ("statistics", "degree_linear", "gru")
    return all(map(fast_paths.is_on, parts)) and fast_paths.is_on("recurrence")


def recurrence(
    state: Tensor,
    layer: Layer,
    unit: Sequence[Tensor],
    adjacency: Adjacency,
    steps: int,
    until: Tensor | None = None,
    swapped: bool = False,
    fronts: Sequence[Front] = (),
) -> Tensor:
    """The state (nodes, features) after so many steps, at least one.

    `unit` has the parameters of `gru_cell`. Steps are numbered from 1; node i takes those
    below until[i] and then stays as it is. Where `swapped`, the state is the unit's input, and the
    layer's result its state. `fronts` says of every step among which nodes those are that take
    it, no later one being longer.
    """
    *parameters, mix, factors, request, times, slope = layer
    stacked = [t.unsqueeze(0) for t in parameters] + [mix] + [t.unsqueeze(0) for t in unit]
    nodes, edges = [f.nodes for f in fronts], [f.edges for f in fronts]
    how = (list(times), slope, swapped, steps, nodes, edges, False)
    graph = request_arguments(adjacency, request, "triton")
    outputs = torch.ops.pna.recurrence(state.unsqueeze(1), *stacked, factors, until, *how, *graph)
    return outputs[0].squeeze(1)


_PARAMETERS = (
    "keep", "keep_bias", "sender", "receiver", "receiver_bias", "mix",
    "weight_ih", "weight_hh", "bias_ih", "bias_hh",
)  # fmt: skip
_COUNT = len(_PARAMETERS)
_INPUTS = ", ".join(f"Tensor {name}" for name in ("state", *_PARAMETERS, "factors"))
_HOW = "Tensor? until, int[] times, float slope, bool swapped, int steps, int[] nodes, int[] edges"
_KEPT = "Tensor states, Tensor sent, Tensor own, Tensor aggregates, Tensor results"
library.define(
    f"recurrence({_INPUTS}, {_HOW}, bool keeping, {_GRAPH}{_REQUEST}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
library.define(
    f"recurrence_backward(Tensor grad, {_KEPT}, {_INPUTS}, {_HOW}, {_GRAPH}{_REQUEST}) "
    "-> (Tensor, Tensor)"
)


class _Kept(NamedTuple):
    """What every step makes, one after another; where no gradient is asked for, of the last.

    Of nodes that a step leaves out there is nothing."""

    states: Tensor  # (steps − 1, nodes, members, features), without the last
    sent: Tensor  # s, (steps, nodes, members, width)
    own: Tensor  # o, as s
    aggregates: Tensor  # (steps, nodes, aggregators, members, width)
    results: Tensor  # y, (steps, nodes, members, features)


def _allocate(state: Tensor, sender: Tensor, kinds: int, steps: int, keep: bool) -> _Kept:
    nodes, members, _ = state.shape
    of, between = (steps, steps - 1) if keep else (1, min(steps - 1, 2))
    narrow = (of, nodes, members, sender.shape[1])
    return _Kept(
        state.new_empty((between, *state.shape)),
        state.new_empty(narrow),
        state.new_empty(narrow),
        state.new_empty((of, nodes, kinds, *narrow[2:])),
        state.new_empty((of, *state.shape)),
    )


def _empty(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)


class _Steps:
    """Which nodes take each step: the first so many, or all of them."""

    def __init__(
        self, adjacency: Adjacency, steps: int, nodes: Sequence[int], edges: Sequence[int]
    ) -> None:
        whole = (adjacency.num_receivers, adjacency.num_edges)
        self.counts = list(zip(nodes, edges, strict=True)) or [whole] * steps
        self._known = {whole: adjacency}

    def __getitem__(self, step: int) -> tuple[int, Adjacency]:
        """How many there are, and the graph of them."""
        count = self.counts[step]
        if count not in self._known:
            first, *_ = self._known.values()
            self._known[count] = first_nodes(first, *count)
        return count[0], self._known[count]

    def near(self, step: int) -> int:
        """How many take the next one too; all, if there is none."""
        return self.counts[min(step + 1, len(self.counts) - 1)][0]


@torch.library.impl(library, "recurrence", "CompositeExplicitAutograd")
def _forward(state: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The last state (nodes, members, features), and what was kept.

    Parameters have members in front, the mix in its second axis.
    """
    from pna.ops import triton as statistics
    from pna.ops.triton import narrow_linear
    from pna.population.triton import gru as unit_kernels
    from pna.population.triton import linears as linears_kernels

    parameters, factors, until, times, slope, swapped, steps, nodes, edges, keep, *graph = _split(
        rest
    )
    adjacency, request, _ = _read(graph)
    kept = _allocate(state, parameters[2], len(request.kinds), steps, keep)
    weights, biases, mix, unit = _roles(parameters)
    out = _empty(state)
    if out.numel() == 0:
        return out, *kept
    taken = _Steps(adjacency, steps, nodes, edges)
    before = state
    for i in range(steps):
        count, adjacency = taken[i]
        if i == 0 and count < len(out):
            out[count:] = state[count:]
        at, before = i if keep else 0, before[:count]
        result, sent, own = kept.results[at, :count], kept.sent[at, :count], kept.own[at, :count]
        z = kept.aggregates[at, :count]
        linears_kernels.forward(before, weights, biases, [result, sent, own])
        statistics.forward(sent.flatten(1), None, None, adjacency, request, _saved(z))
        # the layer's own share of the result is replaced, tile by tile, by the whole
        narrow_linear.forward(z, mix, factors, result, own, times, adjacency.indptr, result)
        after = out if i == steps - 1 else kept.states[i if keep else i % 2]
        x, h = (before, result) if swapped else (result, before)
        near = taken.near(i)
        turn = unit_kernels.Turn(slope, swapped, until, i + 1, near, out if near < count else None)
        unit_kernels.forward(x, h, unit, after, turn)
        before = after
    return out, *kept


def _split(rest: Sequence[Any]) -> tuple[Any, ...]:
    """The parameters as one, then what follows them."""
    return rest[:_COUNT], *rest[_COUNT:]


def _roles(
    parameters: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor | None], Tensor, Sequence[Tensor]]:
    """Weights and biases of the projections, the mix, and the parameters of the unit."""
    keep, keep_bias, sender, receiver, receiver_bias, mix, *unit = parameters
    return [keep, sender, receiver], [keep_bias, None, receiver_bias], mix, unit


def _saved(z: Tensor) -> Saved:
    """A step's aggregates as the kernels of `statistics` take them."""
    none = z.new_empty(0)
    return Saved(z.flatten(2), none, none, none)


@torch.library.register_fake("pna::recurrence", lib=library)
def _(state: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    parameters, _, _, _, _, _, steps, _, _, keep, *graph = _split(rest)
    _, request, _ = _read(graph)
    kept = _allocate(state, parameters[2], len(request.kinds), steps, keep)
    return _empty(state), *kept


@torch.library.impl(library, "recurrence_backward", "CompositeExplicitAutograd")
def _backward(grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Gradients of the first state and of all parameters, one after another (`_parts`)."""
    from pna.ops import triton as statistics
    from pna.ops.triton import narrow_linear
    from pna.population.triton import gru as unit_kernels
    from pna.population.triton import linears as linears_kernels

    kept, state, rest = _Kept(*rest[:5]), rest[5], rest[6:]
    parameters, factors, until, times, slope, swapped, steps, nodes, edges, *graph = _split(rest)
    adjacency, request, _ = _read(graph)
    weights, _, mix, unit = _roles(parameters)
    flat = _empty_flat(parameters)
    if grad.numel() == 0:
        return _empty(state), flat.zero_()
    of_linears, of_mix, of_unit = flat.split(_sizes(parameters))
    sums = (
        linears_kernels.sums_of(state, weights, of_linears),
        narrow_linear.sums_of(kept.aggregates[0], of_mix),
        unit_kernels.sums_of(state, of_unit),
    )
    room = _empty(state), _empty(kept.sent[0]), _empty(kept.own[0]), _empty(kept.aggregates[0])
    both = state.new_empty((min(steps, 2), *state.shape))
    taken = _Steps(adjacency, steps, nodes, edges)
    to_after = grad
    for i in reversed(range(steps)):
        count, adjacency = taken[i]
        to_result, to_sent, to_own, to_z = (t[:count] for t in room)
        before = (state if i == 0 else kept.states[i - 1])[:count]
        result, own, z = kept.results[i, :count], kept.own[i, :count], kept.aggregates[i, :count]
        to_before = both[i % 2, :count]
        x, h = (before, result) if swapped else (result, before)
        to_x, to_h = (to_before, to_result) if swapped else (to_result, to_before)
        near = taken.near(i)
        turn = unit_kernels.Turn(slope, swapped, until, i + 1, near, grad if near < count else None)
        unit_kernels.add_backward(to_after, x, h, unit, to_x, to_h, sums[2], turn)
        narrow_linear.add_backward(
            to_result, z, mix, factors, own, times, adjacency.indptr, to_z, to_own, sums[1]
        )
        none = to_z.new_empty(0)
        grads = (to_sent.flatten(1), none, none)
        sent = kept.sent[i, :count].flatten(1)
        statistics.backward(to_z.flatten(2), sent, None, None, adjacency, request, _saved(z), grads)
        linears_kernels.add_backward(
            [to_result, to_sent, to_own], before, weights, to_before, sums[0], add=True
        )
        to_after = to_before
    for each in sums:
        each.finish()
    if len(to_after) < len(state):
        both[0, len(to_after) :] = grad[len(to_after) :]
    return both[0], flat


def _sizes(parameters: Sequence[Tensor]) -> list[int]:
    """How many numbers the gradients have: of projections, all with a bias, of mix and unit."""
    weights, _, mix, unit = _roles(parameters)
    return [sum(linears._sizes(weights)), *(sum(map(_numel, part)) for part in ([mix], unit))]


def _numel(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def _empty_flat(parameters: Sequence[Tensor]) -> Tensor:
    return parameters[0].new_empty(sum(_sizes(parameters)))


def _parts(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of every parameter in the tensor that holds them all."""
    weights, _, mix, unit = _roles(parameters)
    of_linears, of_mix, of_unit = flat.split(_sizes(parameters))
    keep, sender, receiver = linears.gradients_in(of_linears, weights)
    projections = [*keep, sender[0], *receiver]
    return [*projections, of_mix.view(mix.shape), *gru._parts(of_unit, unit)]


@torch.library.register_fake("pna::recurrence_backward", lib=library)
def _(grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    state, parameters = rest[5], rest[6 : 6 + _COUNT]
    return _empty(state), _empty_flat(parameters)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        output = below_autograd(torch.ops.pna.recurrence.default, keyset, inputs)
        tensors, (*how, _), graph, request = _groups(inputs)
        ctx.how, ctx.request, ctx.inputs = how, request, len(inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:], *tensors, *graph)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        _, *wanted = ctx.needs_input_grad[: _COUNT + 2]
        given: list[Tensor | None] = [None] * (_COUNT + 1)
        if grad is not None and any(wanted):
            kept, rest = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
            tensors, graph = rest[: _COUNT + 3], rest[_COUNT + 3 :]
            to_state, flat = torch.ops.pna.recurrence_backward(
                grad, *kept, *tensors, *ctx.how, *graph, *ctx.request
            )
            grads = [to_state, *_parts(flat, tensors[1 : _COUNT + 1])]
            given = [g if w else None for g, w in zip(grads, wanted, strict=True)]
        return None, *given, *[None] * (ctx.inputs - len(given))


def _groups(inputs: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Tensors up to `until`, then the rest of `_HOW` and `keeping`, the graph, and the request."""
    tensors, rest = inputs[: _COUNT + 3], inputs[_COUNT + 3 :]
    return tensors, rest[:7], rest[7:-4], rest[-4:]


class _Keeping:
    """`_Differentiable`, which is told whether there will be a backward pass."""

    @staticmethod
    def apply(keyset: Any, *inputs: Any) -> Any:
        tensors, (*how, keep), graph, request = _groups(inputs)
        needed = any(t.requires_grad for t in tensors[: _COUNT + 1])
        keep = keep or (needed and torch.is_grad_enabled())  # of a transform around this one
        run: Any = _Differentiable
        return run.apply(keyset, *tensors, *how, keep, *graph, *request)


differentiate("recurrence", _Keeping)  # type: ignore[arg-type]
differentiate_once("recurrence_backward", "the steps of a recurrent PNA")


@torch.library.register_vmap("pna::recurrence", lib=library)
def _(info: Any, in_dims: Sequence[Any], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
    """Members of a vmap are members; where they have graphs of their own, one by one."""
    batch, count = info.batch_size, _COUNT + 1
    if any(isinstance(d, int) for d in in_dims[count:]):
        return _one_by_one(info, in_dims, *inputs)
    axes = [1] + [1 if name == "mix" else 0 for name in _PARAMETERS]
    folded = [
        fold(t, d, axis, batch)
        for t, d, axis in zip(inputs[:count], in_dims[:count], axes, strict=True)
    ]
    outputs = torch.ops.pna.recurrence(*folded, *inputs[count:])
    members = (1, 2, 2, 2, 3, 2)
    unfolded = (y.unflatten(d, (batch, -1)) for y, d in zip(outputs, members, strict=True))
    return tuple(unfolded), members


_one_by_one = one_by_one("recurrence")
torch.library.register_vmap(
    "pna::recurrence_backward", one_by_one("recurrence_backward"), lib=library
)
