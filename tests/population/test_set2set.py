"""`set2set` on every backend against PyTorch's own LSTM in float64: outputs and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from pna.population.set2set import set2set
from tests.ops.cases import features

NAMES = ("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class Case:
    """How many nodes each graph has and how many steps it takes; and features of a node."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    width: int = 8

    @property
    def nodes(self) -> int:
        return sum(self.sizes)

    @property
    def max_steps(self) -> int:
        return max(self.steps, default=0)

    def graph(self, device) -> tuple[Tensor, Tensor]:
        ends = itertools.accumulate(self.sizes, initial=0)
        return torch.tensor(list(ends), device=device), torch.tensor(
            self.steps, dtype=torch.int64, device=device
        )


CASES = {
    "sizes": Case((3, 5, 2, 4), (3, 3, 3, 3)),
    "steps": Case((3, 5, 2, 4), (1, 4, 2, 3)),
    "as many steps as nodes": Case((3, 5, 2, 1), (3, 5, 2, 1)),
    "no graphs": Case((), ()),
    "no nodes": Case((0, 0), (2, 1)),
    "a graph without nodes": Case((3, 0, 2), (2, 2, 2)),
    "first and last without nodes": Case((0, 3, 0), (2, 3, 1)),
    "one node": Case((1,), (3,)),  # read in full at every step
    "one step": Case((3, 2), (1, 1)),  # of which the weights have no gradient
    "no step": Case((3, 2), (0, 2)),
    "no step at all": Case((3, 2), (0, 0)),
    "odd width": Case((3, 4), (2, 3), width=5),
    "not of whole vectors": Case((3, 0, 9, 4), (2, 4, 0, 3), width=3),
    "one feature": Case((3, 4), (2, 3), width=1),
    "no feature": Case((3, 4), (2, 3), width=0),
    "whole block": Case((3, 4), (2, 3), width=16),
    "several warps": Case((3, 2), (2, 2), width=32),
    "32 nodes": Case((32, 33), (2, 2)),  # as many as are read at a time, and one more
    "large among small": Case((2, 70, 1, 0, 1, 3), (2, 3, 1, 1, 0, 3)),  # padding would waste
    "wider than kernels": Case((3, 2), (2, 2), width=65),
}

#: Relative to the largest number of a result.
TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-6,
    torch.float16: 2**-9,
}


def inputs_of(case: Case, dtype: torch.dtype, device) -> list[Tensor]:
    width = case.width
    shapes = ((case.nodes, width), (4 * width, 2 * width), (4 * width, width), (4 * width,))

    def make(seed: int, shape: tuple[int, ...]) -> Tensor:
        numbers = features(1, torch.Size(shape).numel(), dtype, device, seed).reshape(shape)
        return numbers if seed == 0 else numbers / max(width, 1) ** 0.5

    return [make(seed, shape) for seed, shape in enumerate((*shapes, shapes[3]))]


def on(case: Case, device, index=torch.int64):
    """The operator on the graphs of a case."""
    indptr, steps = (tensor.to(index) for tensor in case.graph(device))

    def run(x, *weights):
        return set2set(x, indptr, steps, *weights, case.max_steps)

    return run


def one_by_one(case: Case):
    """Each graph alone, by `torch.nn.LSTMCell` and `torch.softmax`."""

    def run(x, *weights):
        cell = nn.LSTMCell(2 * case.width, case.width, device=x.device, dtype=x.dtype)
        results = []
        for nodes, steps in zip(x.split(case.sizes), case.steps, strict=True):
            z, state = x.new_zeros(2 * case.width), (x.new_zeros(case.width),) * 2
            for _ in range(steps):
                named = dict(zip(NAMES[1:], weights, strict=True))
                state = torch.func.functional_call(cell, named, (z, state))
                read = (nodes @ state[0]).softmax(0) @ nodes
                z = torch.cat([state[0], read])
            results.append(z)
        return torch.stack(results) if results else x.new_zeros(0, 2 * case.width)

    return run


def outcome(run, inputs, upstream) -> dict[str, Tensor]:
    leaves = [i.detach().requires_grad_() for i in inputs]
    out = run(*leaves)
    if not out.requires_grad:  # no step was taken
        return {"out": out, **dict(zip(NAMES, map(torch.zeros_like, inputs), strict=True))}
    gradients = torch.autograd.grad(
        out, leaves, upstream, allow_unused=True, materialize_grads=True
    )
    return {"out": out.detach(), **dict(zip(NAMES, gradients, strict=True))}


def upstream_of(case: Case, dtype, device) -> Tensor:
    shape = (len(case.sizes), 2 * case.width)
    return features(1, torch.Size(shape).numel(), dtype, device, 9).reshape(shape)


def expected_of(case, inputs, upstream) -> dict[str, Tensor]:
    if case.width == 0:
        zeros = [torch.zeros_like(i, dtype=torch.float64) for i in (upstream, *inputs)]
        return dict(zip(("out", *NAMES), zeros, strict=True))
    return outcome(one_by_one(case), [i.double() for i in inputs], upstream.double())


def assert_near(got, expected, tolerance) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max()) if value.numel() > 0 else 0.0
        torch.testing.assert_close(
            got[name].double(),
            value.double(),
            rtol=0,
            atol=tolerance * scale,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def compare(backend, case, dtype, index=torch.int64) -> None:
    inputs = inputs_of(case, dtype, backend.device)
    upstream = upstream_of(case, dtype, backend.device)
    got = outcome(on(case, backend.device, index), inputs, upstream)
    assert got["out"].dtype == dtype
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[dtype])


@pytest.mark.parametrize("case", CASES)
def test_each_graph_as_if_alone(backend, case):
    compare(backend, CASES[case], torch.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", ["steps", "large among small"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_types(backend, case, dtype):
    compare(backend, CASES[case], dtype)


def test_indices_of_32_bits(backend):
    compare(backend, CASES["steps"], torch.float32, torch.int32)


def test_by_eye(backend):
    """Weights of 0 but for o, which is wide open: i = f = 1/2, g = tanh(1), c = g / 2, h = tanh(c);
    of nodes 0 and 1 the second has the share σ(h). Then c = 3/4 g."""
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=backend.device)
    zero = x.new_zeros(4, 2), x.new_zeros(4, 1), x.new_zeros(4)
    bias = torch.tensor([0.0, 0, 1, 1000], dtype=torch.float64, device=backend.device)
    indptr, g = torch.tensor([0, 2], device=backend.device), bias[2].tanh()
    for steps, c in ((1, g / 2), (2, 3 * g / 4)):
        out = set2set(x, indptr, torch.full_like(indptr[1:], steps), *zero, bias, steps)
        torch.testing.assert_close(out[0], torch.stack([c.tanh(), c.tanh().sigmoid()]))


def test_more_room_for_steps_than_any_graph_takes(backend):
    case = CASES["steps"]
    inputs = inputs_of(case, torch.float32, backend.device)
    upstream = upstream_of(case, torch.float32, backend.device)
    graph = case.graph(backend.device)
    got = outcome(lambda x, *w: set2set(x, *graph, *w, 7), inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[torch.float32])


@pytest.mark.parametrize("scale, shift", [(5000, 0), (1, 50), (1, -50)])
def test_scores_of_any_size(backend, scale, shift):
    """Softmax neither overflows nor divides by 0 where all x · q are large."""
    case = Case((3, 40), (3, 3), width=8 if scale > 1 else 4)  # 8 features are for set2set.c
    inputs = inputs_of(case, torch.float32, backend.device)
    inputs[0] = inputs[0] * scale + shift
    inputs[1] = inputs[1] / 50
    upstream = upstream_of(case, torch.float32, backend.device)
    got = outcome(on(case, backend.device), inputs, upstream)
    assert all(value.isfinite().all() for value in got.values())
    expected = expected_of(case, inputs, upstream)
    if scale > 1:  # the last digit of a score decides over gradients
        got, expected = ({"out": values["out"]} for values in (got, expected))
    assert_near(got, expected, 1e-3)


def test_small_numbers_keep_their_digits(triton):
    """tanh(a) is a where a is small, to the last digits."""
    case = Case((2,), (2,))
    inputs = [i * 1e-4 for i in inputs_of(case, torch.float32, triton.device)]
    upstream = upstream_of(case, torch.float32, triton.device)
    got = outcome(on(case, triton.device), inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), 5e-7)


# Views of more memory than they show.
VIEWS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    "every other row": lambda t: torch.stack([t, t], 1).flatten(0, 1)[::2],
    "one number, expanded": lambda t: t.flatten()[0].expand(t.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(backend, view):
    case = CASES["steps"]
    inputs = inputs_of(case, torch.float32, backend.device)
    inputs[:3] = [VIEWS[view](tensor) for tensor in inputs[:3]]
    upstream = VIEWS[view](upstream_of(case, torch.float32, backend.device))
    assert not any(tensor.is_contiguous() for tensor in (*inputs[:3], upstream))
    got = outcome(on(case, backend.device), inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[torch.float32])


@pytest.mark.parametrize("wanted", [(0,), (1,), (4,), (0, 3), ()], ids=str)
def test_only_the_gradients_asked_for(backend, wanted):
    case = CASES["steps"]
    inputs = inputs_of(case, torch.float32, backend.device)
    upstream = upstream_of(case, torch.float32, backend.device)
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    out = on(case, backend.device)(*leaves)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(upstream)
    expected = expected_of(case, inputs, upstream)
    got = {NAMES[i]: leaves[i].grad for i in wanted}
    assert_near(got, {n: expected[n] for n in got}, TOLERANCES[torch.float32])
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


@pytest.mark.parametrize("case", ["steps", "large among small"])
def test_repeatable_to_the_bit(backend, case):
    if backend.name == "reference" and backend.device.type == "cuda":
        pytest.skip("the plain definition adds up by atomics on a GPU, in any order")
    inputs = inputs_of(CASES[case], torch.float32, backend.device)
    upstream = upstream_of(CASES[case], torch.float32, backend.device)
    run = on(CASES[case], backend.device)
    first, second = (outcome(run, inputs, upstream) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_graph_does_not_see_the_others(triton):
    """To the bit, as each program has a graph to itself: also of the gradient of its nodes."""
    whole, alone = Case((3, 40, 2), (2, 3, 1)), Case((40,), (3,))
    inputs = inputs_of(whole, torch.float32, triton.device)
    upstream = upstream_of(whole, torch.float32, triton.device)
    got = outcome(on(whole, triton.device), inputs, upstream)
    by_itself = [inputs[0][3:43], *inputs[1:]]
    expected = outcome(on(alone, triton.device), by_itself, upstream[1:2])
    assert torch.equal(got["out"][1:2], expected["out"])
    assert torch.equal(got["x"][3:43], expected["x"])


def test_nan_stays_in_its_graph(backend):
    """In the first node, which is what padding repeats."""
    case = CASES["a graph without nodes"]
    inputs = inputs_of(case, torch.float32, backend.device)
    inputs[0][0, 0] = float("nan")
    out = on(case, backend.device)(*inputs)
    assert out.isnan().any(1).tolist() == [True, False, False]


def test_cpu_says_what_is_wrong(cpu):
    case = CASES["sizes"]
    inputs = inputs_of(case, torch.float32, cpu.device)
    indptr, steps = case.graph(cpu.device)
    with pytest.raises(ValueError, match=r"takes 3 steps, expected at most 2; correct max_steps"):
        set2set(inputs[0], indptr, steps, *inputs[1:], 2)
    with pytest.raises(ValueError, match=r"graphs of 13 nodes in all, expected 14"):
        set2set(inputs[0], indptr.clamp(max=13), steps, *inputs[1:], 3)


def test_weights_of_another_width(backend):
    inputs = inputs_of(CASES["sizes"], torch.float32, backend.device)
    message = r"weight_hh of shape \(32, 7\) for x of 8 features, expected \(32, 8\)"
    inputs[2] = inputs[2][:, 1:]
    with pytest.raises(ValueError, match=message):
        on(CASES["sizes"], backend.device)(*inputs)


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.covering(1, always=True, rest="gpu")
@pytest.mark.parametrize("case", ["steps", "wider than kernels"])
def test_compiled_whole(backend, case, compiled_afresh):
    inputs = inputs_of(CASES[case], torch.float32, backend.device)
    upstream = upstream_of(CASES[case], torch.float32, backend.device)
    run = on(CASES[case], backend.device)
    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outcome(whole, inputs, upstream), outcome(run, inputs, upstream))


class Calls(TorchDispatchMode):
    """How often the operator and its gradient are called."""

    def __init__(self):
        super().__init__()
        self.counts = {"set2set": 0, "set2set_backward": 0}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "pna" and function._opname in self.counts:
            self.counts[function._opname] += 1
        return function(*arguments, **(keywords or {}))


# Which of NAMES each member has for itself, along which axis.
MEMBERS = {
    "everything": (0, 0, 0, 0, 0),
    "weights": (None, 0, 0, 0, 0),
    "x": (1, None, None, None, None),
    "one bias": (None, None, None, None, 0),
    "along other axes": (2, 2, 1, 1, 0),
}


@pytest.mark.parametrize("members", MEMBERS)
def test_vmap_is_a_loop_in_one_call(backend, members):
    """Outputs, and the gradients of one ordinary backward() after it."""
    axes, case = MEMBERS[members], CASES["a graph without nodes"]
    inputs = inputs_of(case, torch.float32, backend.device)
    stacked = [
        tensor if axis is None else torch.stack([tensor, -2 * tensor, tensor / 2], axis)
        for tensor, axis in zip(inputs, axes, strict=True)
    ]
    stacked = [tensor.requires_grad_() for tensor in stacked]
    run = on(case, backend.device)
    with Calls() as calls:
        out = torch.vmap(run, axes)(*stacked)
        together = torch.autograd.grad(out.square().sum(), stacked)
    once = int(backend.name != "reference")
    assert calls.counts == {"set2set": once, "set2set_backward": once}
    alone = [
        run(*[t if a is None else t.select(a, i) for t, a in zip(stacked, axes, strict=True)])
        for i in range(3)
    ]
    torch.testing.assert_close(out, torch.stack(alone))
    expected = torch.autograd.grad(torch.stack(alone).square().sum(), stacked)
    assert_near(
        dict(zip(NAMES, together, strict=True)),
        dict(zip(NAMES, expected, strict=True)),
        TOLERANCES[torch.float32],
    )


def test_members_of_members(fast):
    case = CASES["steps"]
    inputs = inputs_of(case, torch.float32, fast.device)
    weights = torch.stack([inputs[1] * k for k in (1, 2, 3, 4, 5, 6)]).unflatten(0, (2, 3))
    run = on(case, fast.device)

    def with_weight(weight):
        return run(inputs[0], weight, *inputs[2:])

    out = torch.vmap(torch.vmap(with_weight))(weights)
    alone = torch.stack([with_weight(weight) for weight in weights.flatten(0, 1)])
    torch.testing.assert_close(out.flatten(0, 1), alone)


def test_vmap_of_a_derivative(backend):
    case = CASES["steps"]
    inputs = inputs_of(case, torch.float32, backend.device)
    run = on(case, backend.device)

    def loss(weight):
        return run(inputs[0], weight, *inputs[2:]).square().sum()

    weights = torch.stack([inputs[1], -inputs[1]])
    together = torch.vmap(torch.func.grad(loss))(weights)
    alone = torch.stack([torch.func.grad(loss)(weight) for weight in weights])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5 * float(alone.abs().max()))


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("width", [2, 8])
def test_gradcheck(cpu, width):
    """In plain torch and, of 8 features, in C."""
    case = Case((3, 0, 1), (2, 1, 3), width=width)
    inputs = inputs_of(case, torch.float64, cpu.device)
    assert gradcheck(on(case, cpu.device), [t.requires_grad_() for t in inputs])


def test_second_derivatives_say_what_to_do(fast):
    inputs = inputs_of(CASES["steps"], torch.float32, fast.device)
    x = inputs[0].requires_grad_()
    out = on(CASES["steps"], fast.device)(*inputs)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    message = r"second derivative of Set2Set.*pna\.backend\('reference'\)"
    with pytest.raises(RuntimeError, match=message):
        gradient.sum().backward()


def operator_arguments(fast, case):
    """As the operator takes them, of two members."""
    x, weight, _, bias, _ = inputs_of(case, torch.float32, fast.device)
    x, weight, bias = torch.stack([x, -x], 1), torch.stack([weight, -weight]), bias.expand(2, -1)
    inputs = (x.requires_grad_(), *case.graph(fast.device), weight.requires_grad_(), bias)
    return *inputs, case.max_steps, fast.name


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("case", ["sizes", "no step at all"])
def test_opcheck(fast, case):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    arguments = operator_arguments(fast, CASES[case])
    torch.library.opcheck(torch.ops.pna.set2set.default, arguments)


@pytest.mark.covering(0, always=True)
def test_opcheck_of_the_gradient(fast):
    x, *graph, weight, bias, most, name = operator_arguments(fast, CASES["steps"])
    with torch.no_grad():
        out, *kept = torch.ops.pna.set2set(x, *graph, weight, bias, most, name)
    arguments = (out, x.detach(), *graph, weight.detach(), bias, out, *kept, name)
    torch.library.opcheck(torch.ops.pna.set2set_backward.default, arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["large among small", "wider than kernels"])
def test_captured_in_a_cuda_graph(triton, case):
    chosen = CASES[case]
    inputs = inputs_of(chosen, torch.float32, triton.device)
    upstream = upstream_of(chosen, torch.float32, triton.device)
    run = on(chosen, triton.device)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        outcome(run, inputs, upstream)  # kernels are compiled here, not captured
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = outcome(run, inputs, upstream)
    inputs[0].copy_(inputs[0].flip(0))
    captured.replay()
    expected = outcome(run, inputs, upstream)
    assert all(torch.equal(results[name], expected[name]) for name in expected)
