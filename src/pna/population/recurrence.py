"""A narrow PNA layer followed by a GRU, repeated: all steps as one operator, for many models.

A step of a small model consists of a dozen short kernels. Autograd adds overhead around them: at
every step it accumulates the gradients of every parameter and of the state. Here all steps form one
operator, and its kernels add to the partial sums of the previous step.

    p_i = K h_i + k,   o_i = A h_i + b,   s_j = B h_j
    y_i = p_i + Σ_r f_r(d_i) · U_r ⊕_j (s_j + o_i)
    h_i' = GRU(act(y_i), h_i), or GRU(h_i, act(y_i))

The parts of the layer are those of `pna.nn.conv.split`. ⊕ is computed by `statistics`, and the
products with U by `degree_linear`.
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
from pna.ops.operators import gradient_operator, no_second_derivative, operator
from pna.ops.product import Product
from pna.ops.request import Messages, Request, Saved
from pna.ops.vmap_rules import Fold
from pna.population import gru, linears


class Layer(NamedTuple):
    """A layer without towers, with as many outputs as inputs, and its activation."""

    keep: Tensor  # K (features, features) and k
    keep_bias: Tensor
    sender: Tensor  # B (width, features)
    receiver: Tensor  # A (width, features) and b
    receiver_bias: Tensor
    mix: Tensor  # U (scalers, 1, aggregators × width, features)
    factors: Tensor  # f of every node, (nodes, scalers)
    request: Request  # ⊕
    times: Sequence[int]  # how often o_i is added to each aggregate, as in `degree_linear`
    slope: float  # slope of the activation below 0: 0 for ReLU, 1 without activation


def has_recurrence(state: Tensor, layer: Layer) -> bool:
    """Return whether kernels exist for the whole recurrence: on a GPU, in float32, few features."""
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
    """Return the state (nodes, features) after `steps` steps, at least one.

    `unit` contains the parameters of `gru_cell`. Steps are numbered from 1. Node i takes the steps
    below until[i]; after that its state stays unchanged. If `swapped`, the GRU's input is the state
    and the GRU's state is the result of the layer. `fronts` gives for every step a front: the first
    nodes, among which are all nodes that take the step. No front is longer than the previous one.
    """
    *parameters, mix, factors, request, times, slope = layer
    stacked = [t.unsqueeze(0) for t in parameters] + [mix] + [t.unsqueeze(0) for t in unit]
    nodes, edges = [f.nodes for f in fronts], [f.edges for f in fronts]
    how = How(factors, until, list(times), slope, swapped, steps, nodes, edges)
    inputs = RecurrenceInputs(state.unsqueeze(1), *stacked)
    outputs = _recurrence(inputs, how, False, adjacency, request)
    return outputs[0].squeeze(1)


class RecurrenceInputs(NamedTuple):
    """All inputs with gradients. Members are axis 0 of the parameters, axis 1 of state and mix."""

    state: Tensor  # (nodes, members, features)
    keep: Tensor
    keep_bias: Tensor
    sender: Tensor
    receiver: Tensor
    receiver_bias: Tensor
    mix: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class How(NamedTuple):
    """Settings of the recurrence, as in `recurrence` and `Layer`; sizes of the fronts."""

    factors: Tensor
    until: Tensor | None
    times: Sequence[int]
    slope: float
    swapped: bool
    steps: int
    nodes: Sequence[int]
    edges: Sequence[int]


class RecurrenceResults(NamedTuple):
    """The last state, and the intermediate results of every step.

    If no gradient will be needed, the buffers are reused and hold only one step (two states).
    Rows of nodes that do not take a step are uninitialised.
    """

    out: Tensor  # (nodes, members, features)
    states: Tensor  # (steps − 1, nodes, members, features): after every step but the last
    sent: Tensor  # s, (steps, nodes, members, width)
    own: Tensor  # o, the shape of s
    aggregates: Tensor  # (steps, nodes, aggregators, members, width)
    results: Tensor  # y, (steps, nodes, members, features)


def _allocate(
    inputs: RecurrenceInputs, how: How, keeping: bool, request: Request
) -> RecurrenceResults:
    state, steps = inputs.state, how.steps
    nodes, members, _ = state.shape
    of, between = (steps, steps - 1) if keeping else (1, min(steps - 1, 2))
    narrow = (of, nodes, members, inputs.sender.shape[1])
    return RecurrenceResults(
        _empty(state),
        state.new_empty((between, *state.shape)),
        state.new_empty(narrow),
        state.new_empty(narrow),
        state.new_empty((of, nodes, len(request.kinds), *narrow[2:])),
        state.new_empty((of, *state.shape)),
    )


def _empty(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)


class _Steps:
    """The nodes of each step: those of its front, or all nodes."""

    def __init__(self, adjacency: Adjacency, how: How) -> None:
        full_counts = (adjacency.num_receivers, adjacency.num_edges)
        self.counts = list(zip(how.nodes, how.edges, strict=True)) or [full_counts] * how.steps
        self._known = {full_counts: adjacency}

    def __getitem__(self, step: int) -> tuple[int, Adjacency]:
        """Return the number of nodes of a step, and the graph of these nodes."""
        count = self.counts[step]
        if count not in self._known:
            first, *_ = self._known.values()
            self._known[count] = first_nodes(first, *count)
        return count[0], self._known[count]

    def near(self, step: int) -> int:
        """Return the number of nodes of the next step; for the last step, its own number."""
        return self.counts[min(step + 1, len(self.counts) - 1)][0]


def _forward(
    inputs: RecurrenceInputs, how: How, keeping: bool, adjacency: Adjacency, request: Request
) -> RecurrenceResults:
    from pna.ops import triton as statistics
    from pna.ops.triton import narrow_linear
    from pna.population.triton import gru as unit_kernels
    from pna.population.triton import linears as linears_kernels

    state = inputs.state
    kept = _allocate(inputs, how, keeping, request)
    weights, biases, mix, unit = _roles(inputs)
    out = kept.out
    if out.numel() == 0:
        return kept
    taken = _Steps(adjacency, how)
    before = state
    for i in range(how.steps):
        count, adjacency = taken[i]
        if i == 0 and count < len(out):
            out[count:] = state[count:]
        at, before = i if keeping else 0, before[:count]
        result, sent, own = kept.results[at, :count], kept.sent[at, :count], kept.own[at, :count]
        z = kept.aggregates[at, :count]
        linears_kernels.forward(before, weights, biases, [result, sent, own])
        messages = Messages(sent.flatten(1), None, None, adjacency)
        statistics.forward(messages, request, _saved(z))
        # `result` contains p; the kernel overwrites each tile of p with that of y
        narrow_linear.forward(_product(z, mix, own, how, adjacency), result, result)
        after = out if i == how.steps - 1 else kept.states[i if keeping else i % 2]
        x, h = (before, result) if how.swapped else (result, before)
        near = taken.near(i)
        unit_kernels.forward(x, h, unit, after, _turn(how, i, near, out if near < count else None))
        before = after
    return kept


def _product(z: Tensor, mix: Tensor, own: Tensor, how: How, adjacency: Adjacency) -> Product:
    degrees = (adjacency.indptr, adjacency.by_degree)
    return Product(z, mix, how.factors, own, how.times, *degrees)


def _turn(how: How, step: int, near: int, last: Tensor | None) -> Any:
    from pna.population.triton.gru import StepOptions

    return StepOptions(how.slope, how.swapped, how.until, step + 1, near, last)


def _roles(
    inputs: RecurrenceInputs,
) -> tuple[list[Tensor], list[Tensor | None], Tensor, Sequence[Tensor]]:
    """Return weights and biases of the projections, the mix, and the parameters of the GRU."""
    _, keep, keep_bias, sender, receiver, receiver_bias, mix, *unit = inputs
    return [keep, sender, receiver], [keep_bias, None, receiver_bias], mix, unit


def _saved(z: Tensor) -> Saved:
    """Wrap the aggregates of a step for the kernels of `statistics`."""
    none = z.new_empty(0)
    return Saved(z.flatten(2), none, none, none)


def _backward(
    grad: Tensor,
    kept: Steps,
    inputs: RecurrenceInputs,
    how: How,
    adjacency: Adjacency,
    request: Request,
    gradients: tuple[Tensor, Tensor],
) -> None:
    """Write the gradients of the first state and of all parameters, concatenated (`_parts`)."""
    from pna.ops import triton as statistics
    from pna.ops.triton import narrow_linear
    from pna.population.triton import gru as unit_kernels
    from pna.population.triton import linears as linears_kernels

    state, (to_state, flat) = inputs.state, gradients
    weights, _, mix, unit = _roles(inputs)
    of_linears, of_mix, of_unit = flat.split(_sizes(inputs))
    sums = (
        linears_kernels.sums_of(state, weights, of_linears),
        narrow_linear.sums_of(kept.aggregates[0], of_mix),
        unit_kernels.sums_of(state, of_unit),
    )
    room = _empty(state), _empty(kept.sent[0]), _empty(kept.own[0]), _empty(kept.aggregates[0])
    both = [to_state, _empty(state) if how.steps > 1 else to_state]
    taken = _Steps(adjacency, how)
    to_after = grad
    for i in reversed(range(how.steps)):
        count, adjacency = taken[i]
        to_result, to_sent, to_own, to_z = (t[:count] for t in room)
        before = (state if i == 0 else kept.states[i - 1])[:count]
        result, own, z = kept.results[i, :count], kept.own[i, :count], kept.aggregates[i, :count]
        to_before = both[i % 2][:count]
        x, h = (before, result) if how.swapped else (result, before)
        to_x, to_h = (to_before, to_result) if how.swapped else (to_result, to_before)
        near = taken.near(i)
        turn = _turn(how, i, near, grad if near < count else None)
        unit_kernels.add_backward(to_after, x, h, unit, to_x, to_h, sums[2], turn)
        product = _product(z, mix, own, how, adjacency)
        narrow_linear.add_backward(to_result, product, to_z, to_own, sums[1])
        none = to_z.new_empty(0)
        messages = Messages(kept.sent[i, :count].flatten(1), None, None, adjacency)
        grads = (to_sent.flatten(1), none, none)
        statistics.backward(to_z.flatten(2), messages, request, _saved(z), grads)
        linears_kernels.add_backward(
            [to_result, to_sent, to_own], before, weights, to_before, sums[0], add=True
        )
        to_after = to_before
    for each in sums:
        each.finish()
    if len(to_after) < len(state):
        to_state[len(to_after) :] = grad[len(to_after) :]


class Steps(NamedTuple):
    """`RecurrenceResults` without the last state."""

    states: Tensor
    sent: Tensor
    own: Tensor
    aggregates: Tensor
    results: Tensor


def _sizes(inputs: RecurrenceInputs) -> list[int]:
    """Return how many gradients the projections (each with a bias), the mix and the GRU have."""
    weights, _, mix, unit = _roles(inputs)
    return [sum(linears._sizes(weights)), *(sum(map(_numel, part)) for part in ([mix], unit))]


def _numel(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def _parts(flat: Tensor, inputs: RecurrenceInputs) -> list[Tensor]:
    """Split the flat gradient of all parameters into views, one for each parameter."""
    weights, _, mix, unit = _roles(inputs)
    of_linears, of_mix, of_unit = flat.split(_sizes(inputs))
    keep, sender, receiver = linears.gradients_in(of_linears, weights)
    projections = [*keep, sender[0], *receiver]
    return [*projections, of_mix.view(mix.shape), *gru.gradients_in(of_unit, unit)]


def _empty_gradients(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    return _empty(inputs.state), inputs.state.new_empty(sum(_sizes(inputs)))


_recurrence_backward = gradient_operator(
    "recurrence_backward",
    _backward,
    tangent=no_second_derivative("the steps of a recurrent PNA"),
    allocate=_empty_gradients,
    opaque=True,
)


def _gradients(
    grad: Tensor,
    kept: Steps,
    inputs: RecurrenceInputs,
    how: How,
    adjacency: Adjacency,
    request: Request,
) -> Any:
    to_state, flat = _recurrence_backward(grad, kept, inputs, how, adjacency, request)
    return to_state, *_parts(flat, inputs)


_recurrence = operator(
    "recurrence",
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=RecurrenceInputs._fields,
    vmap=Fold(
        {name: 1 if name in ("state", "mix") else 0 for name in RecurrenceInputs._fields},
        results=(1, 2, 2, 2, 3, 2),
        separate=True,  # if members have different graphs
    ),
    opaque=True,
)
