"""All steps of a recurrent layer as one operator, against one after another in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pna
from pna.front import Front
from pna.ops.aggregate import one_pass
from pna.ops.aggregators import resolve
from pna.ops.product import definition, shifted
from pna.population import gru
from pna.population.recurrence import Layer, has_recurrence, recurrence
from tests.ops.cases import Graph, features, random_edges
from tests.population.test_linears import Calls, assert_near

USUAL = ("mean", "std", "max", "min")
SHIFTS = {"mean": 1, "std": 0, "max": 1, "min": 1, "sum": 2}
GRAPH = Graph(random_edges(40, 9, 9), 9)


@dataclass(frozen=True)
class Case:
    """A layer of states of so many features, and how it is called."""

    graph: Graph = GRAPH
    kinds: tuple[str, ...] = USUAL
    features: int = 5
    width: int = 3
    scalers: int = 3
    slope: float = 0.01
    swapped: bool = False
    steps: int = 3
    ends: tuple[int, ...] | None = None  # `until` of the nodes in turn
    fronts: tuple[int, ...] = ()  # how many nodes may take each step

    @property
    def nodes(self) -> int:
        assert isinstance(self.graph.nodes, int)
        return self.graph.nodes


#: Three graphs side by side, of which the last ones stop first; some nodes of a front have too.
BLOCKS = Graph(
    random_edges(12, 4, 4)
    + [(i + 4, j + 4) for i, j in random_edges(9, 3, 3)]
    + [(i + 7, j + 7) for i, j in random_edges(15, 5, 5)],
    12,
)
FRONTS = Case(BLOCKS, steps=5, ends=(9, 9, 9, 9, 5, 5, 5, 3, 3, 3, 3, 3), fronts=(12, 12, 7, 7, 4))

CASES = {
    "as in a model": Case(features=16, width=16, steps=2, swapped=True),
    "the state as the unit's": Case(),
    "swapped": Case(swapped=True),
    "one step": Case(steps=1),
    "two steps": Case(steps=2, swapped=True),
    "nodes that stop": Case(steps=4, ends=(5, 1, 2, 3, 9)),
    "nodes that stop, swapped": Case(steps=4, ends=(5, 1, 2, 3, 9), swapped=True),
    "as often as there are neighbours": Case(kinds=("sum",), scalers=1),
    "nothing to shift by": Case(kinds=("mean", "std"), scalers=2),
    "ReLU": Case(slope=0.0),
    "no activation": Case(slope=1.0, swapped=True),
    "two tiles of nodes": Case(Graph(random_edges(90, 70, 70), 70), ("mean", "max"), steps=2),
    "some nodes at a time": FRONTS,
    "some nodes at a time, swapped": replace(FRONTS, swapped=True, kinds=("sum",), scalers=1),
    "some nodes at no time": replace(
        FRONTS, steps=2, ends=(9, 9, 9, 9, 2, 2, 2, 1, 1, 1, 1, 1), fronts=(7, 4)
    ),
    "no edges": Case(Graph([], 3)),
    "no nodes": Case(Graph([], 0)),
    "one of everything": Case(Graph([(0, 0)], 1), ("max",), 1, 1, 1, steps=2),
}


def inputs_of(case: Case, device: torch.device) -> list[Tensor]:
    """The state, and the parameters of layer and unit."""
    f, w, gates = case.features, case.width, 3 * case.features
    mix = (case.scalers, 1, len(case.kinds) * w, f)
    shapes = (
        (case.nodes, f), (f, f), (f,), (w, f), (w, f), (w,), mix,
        (gates, f), (gates, f), (gates,), (gates,),
    )  # fmt: skip
    return [
        features(1, torch.Size(shape).numel(), torch.float32, device, seed).reshape(shape) / 2
        for seed, shape in enumerate(shapes)
    ]


def of_graph(case: Case, device: torch.device) -> tuple[pna.Adjacency, Tensor, Tensor | None]:
    """The graph, its nodes' factors, and when they stop."""
    adjacency = case.graph.adjacency(device)
    if case.fronts:  # the first nodes stand first, as they must
        as_they_stand = torch.arange(case.nodes, dtype=torch.int32, device=device)
        incoming = replace(adjacency.incoming, order=as_they_stand)
        outgoing = replace(adjacency.outgoing, order=as_they_stand)
        adjacency = replace(adjacency, incoming=incoming, outgoing=outgoing)
    factors = (adjacency.degree[:, None] + 1.0) ** -torch.arange(case.scalers, device=device)
    if case.ends is None:
        return adjacency, factors, None
    ends = [case.ends[i % len(case.ends)] for i in range(case.nodes)]
    return adjacency, factors, torch.tensor(ends, device=device)


def layer_of(case: Case, parts: list[Tensor], factors: Tensor) -> Layer:
    request, _ = one_pass(resolve(case.kinds))
    assert request is not None
    times = [SHIFTS[kind] for kind in case.kinds]
    return Layer(*parts, factors, request, times, case.slope)


def whole(case: Case, state: Tensor, *parameters: Tensor) -> Tensor:
    adjacency, factors, until = of_graph(case, state.device)
    layer = layer_of(case, list(parameters[:6]), factors)
    unit = parameters[6:]
    edges = adjacency.indptr.tolist()
    fronts = [Front(0, n, min(edges[n] + 1, adjacency.num_edges)) for n in case.fronts]
    return recurrence(state, layer, unit, adjacency, case.steps, until, case.swapped, fronts)


def step_by_step(case: Case, state: Tensor, *parameters: Tensor) -> Tensor:
    keep, keep_bias, sender, receiver, receiver_bias, mix, *unit = parameters
    adjacency, factors, until = of_graph(case, state.device)
    times = [SHIFTS[kind] for kind in case.kinds]
    for step in range(1, case.steps + 1):
        own = F.linear(state, receiver, receiver_bias)
        with pna.backend("reference"):
            z = pna.aggregate(F.linear(state, sender), adjacency, case.kinds)[:, :, None]
        z = shifted(z, own[:, None], times, adjacency.degree)
        result = definition(z, mix, factors, F.linear(state, keep, keep_bias)[:, None])
        result = F.leaky_relu(result.squeeze(1), case.slope)
        pair = (state, result) if case.swapped else (result, state)
        new = gru.definition(*pair, *unit)
        state = new if until is None else torch.where((until > step)[:, None], new, state)
    return state


def outcome(function, case: Case, inputs) -> list[Tensor]:
    """The last state, then the gradients of state and parameters."""
    leaves = [i.detach().requires_grad_() for i in inputs]
    out = function(case, *leaves)
    upstream = features(1, out.numel(), out.dtype, out.device, 20).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize("name", CASES)
def test_states_and_gradients(triton, name):
    case = CASES[name]
    inputs = inputs_of(case, triton.device)
    with Calls() as calls:
        got = outcome(whole, case, inputs)
    assert calls.own == ["recurrence", "recurrence_backward"]
    expected = outcome(step_by_step, case, [i.double() for i in inputs])
    assert_near(got, expected, 1e-5)


def test_without_gradients_to_the_same_bits(triton):
    """Room for one step is used over and over, an even or an odd number of times."""
    stopping = [replace(CASES["nodes that stop"], steps=steps) for steps in (1, 2, 3)]
    for case in (*stopping, FRONTS):
        inputs = inputs_of(case, triton.device)
        with torch.no_grad():
            out = whole(case, *inputs)
        assert torch.equal(out, outcome(whole, case, inputs)[0])


@pytest.mark.parametrize("wanted", [(0,), (6,), (3, 10), ()], ids=str)
def test_only_the_gradients_asked_for(triton, wanted):
    inputs = inputs_of(Case(), triton.device)
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    out = whole(Case(), *leaves)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(features(1, out.numel(), out.dtype, out.device, 20).reshape(out.shape))
    expected = outcome(step_by_step, Case(), [i.double() for i in inputs])[1:]
    assert_near([leaves[i].grad for i in wanted], [expected[i] for i in wanted], 1e-5)
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("own", [range(11), range(1, 11), (0,), (6, 7)], ids=str)
@pytest.mark.parametrize("case", [Case(ends=(2, 9)), FRONTS], ids=["whole", "fronts"])
def test_vmap_is_a_loop_in_one_call(triton, own, case):
    """Whatever each member has for itself."""
    axes = tuple(0 if i in own else None for i in range(11))
    inputs = inputs_of(case, triton.device)
    stacked = [
        t if a is None else torch.stack([t, -t, t / 2]) for t, a in zip(inputs, axes, strict=True)
    ]

    def members(case, *leaves):
        return torch.vmap(lambda *t: whole(case, *t), axes)(*leaves)

    def alone(case, *leaves):
        pairs = list(zip(leaves, axes, strict=True))
        each = [[t if a is None else t[i] for t, a in pairs] for i in range(3)]
        return torch.stack([step_by_step(case, *one) for one in each])

    with Calls() as calls:
        got = outcome(members, case, stacked)
    assert calls.own == ["recurrence", "recurrence_backward"]
    assert_near(got, outcome(alone, case, [t.double() for t in stacked]), 1e-5)


def test_vmap_of_a_derivative_and_of_factors(triton):
    """Neither folds its members into one call."""
    adjacency, factors, _ = of_graph(Case(), triton.device)
    state, *parameters = inputs_of(Case(), triton.device)

    def loss(state, factors):
        layer = layer_of(Case(), parameters[:6], factors)
        return recurrence(state, layer, parameters[6:], adjacency, 2).square().sum()

    states, several = torch.stack([state, -state]), torch.stack([factors, factors / 2])
    together = torch.vmap(torch.func.grad(loss))(states, several)
    alone = [torch.func.grad(loss)(s, f) for s, f in zip(states, several, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_whole(triton, compiled_afresh):
    inputs = inputs_of(Case(), triton.device)
    adjacency, factors, _ = of_graph(Case(), triton.device)

    def run(case, state, *parameters):
        layer = layer_of(case, list(parameters[:6]), factors)
        return recurrence(state, layer, parameters[6:], adjacency, case.steps)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected = outcome(run, Case(), inputs)
    torch.testing.assert_close(outcome(compiled, Case(), inputs), expected)


def test_second_derivatives_say_what_to_do(triton):
    state, *parameters = inputs_of(Case(), triton.device)
    state.requires_grad_()
    total = whole(Case(), state, *parameters).square().sum()
    (gradient,) = torch.autograd.grad(total, state, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative.*pna\.backend\('reference'\)"):
        gradient.sum().backward()


def fits(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    state, *parameters = (t.to(dtype) for t in inputs_of(case, device))
    _, factors, _ = of_graph(case, device)
    return has_recurrence(state, layer_of(case, parameters[:6], factors))


def test_what_there_are_kernels_for(triton):
    assert fits(Case(), triton.device)
    assert fits(Case(features=32, width=16), triton.device)
    assert not fits(Case(features=33), triton.device)
    assert not fits(Case(width=64), triton.device)
    assert not fits(Case(slope=-0.5), triton.device)
    assert not fits(Case(kinds=("std", "max")), triton.device)
    assert not fits(Case(), triton.device, torch.float64)
    with torch.autocast(triton.device.type, torch.bfloat16):
        assert not fits(Case(), triton.device)
    with pna.backend("reference"):
        assert not fits(Case(), triton.device)


@pytest.mark.slow
def test_opcheck(triton):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    seen: list[tuple[object, ...]] = []
    case = Case(kinds=("mean",), steps=2, ends=(2, 9))
    inputs = inputs_of(case, triton.device)

    class Arguments(Calls):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "pna":
                seen.append(args)
            return super().__torch_dispatch__(function, types, args, kwargs)

    with Arguments():
        outcome(whole, case, inputs)
    forward, backward = ([t.detach() if isinstance(t, Tensor) else t for t in a] for a in seen)
    torch.library.opcheck(torch.ops.pna.recurrence_backward.default, tuple(backward))
    forward[0].requires_grad_()
    torch.library.opcheck(torch.ops.pna.recurrence.default, tuple(forward))
