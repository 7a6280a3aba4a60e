"""`gated_sum` on every backend against a loop over nodes in float64: outputs and gradients."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import pna
from pna.baselines.gates import LEAST, gated_sum
from pna.baselines.graph import Graph
from tests.ops.cases import GRAPHS, features, pack, widened
from tests.ops.cases import TOLERANCES as OF_SUMS

NAMES = ("at_receiver", "at_sender", "values", "edge")
SQUARE = [name for name, graph in GRAPHS.items() if isinstance(graph.nodes, int)]
SHORT = [name for name in SQUARE if "hub" not in name]
#: Gates of scores that were rounded.
TOLERANCES = OF_SUMS | {torch.bfloat16: 2**-5, torch.float16: 2**-8}


def inputs_of(graph, edges=True, dtype=torch.float64, device="cpu", width=3) -> dict[str, Tensor]:
    rows = dict.fromkeys(NAMES[:3], GRAPHS[graph].nodes)
    if edges:
        rows["edge"] = len(GRAPHS[graph].edges)
    return {
        name: features(count, width, dtype, device, seed)
        for seed, (name, count) in enumerate(rows.items())
    }


def by_nodes(
    adjacency: pna.Adjacency, normalise: bool, at_receiver, at_sender, values, edge=None
) -> tuple[Tensor, Tensor]:
    """One node after another."""
    results, states = [], []
    for node, (begin, end) in enumerate(pairwise(adjacency.indptr.tolist())):
        senders = adjacency.senders[begin:end].long()
        state = at_receiver[node] + at_sender[senders]
        if edge is not None:
            state = state + edge[begin:end]
        gate = state.sigmoid()
        total = (gate * values[senders]).sum(0)
        results.append(total / (gate.sum(0) + LEAST) if normalise else total)
        states.append(state)
    if not results:
        return 0 * values, values.new_zeros((0, values.shape[1]))
    return torch.stack(results), torch.cat(states)


def outcome(run, inputs, wanted=("out", "state")) -> dict[str, Tensor]:
    """Results, and gradients of the sum of those that are wanted, weighed at random."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    results = dict(zip(("out", "state"), run(**leaves), strict=True))
    total = sum(
        (results[name] * features(1, results[name].numel(), torch.float64, "cpu", 9)
         .to(results[name]).reshape(results[name].shape)).sum()
        for name in wanted
    )  # fmt: skip
    gradients = torch.autograd.grad(
        total, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    held = {name: value.detach() for name, value in results.items()}
    return held | {f"of {name}": g for name, g in zip(leaves, gradients, strict=True)}


def assert_near(got, expected, tolerance) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape
        scale = max(float(value.abs().max()) if value.numel() else 0, 1)
        torch.testing.assert_close(
            got[name].double(), value.double(), rtol=0, atol=tolerance * scale,
            msg=lambda m, name=name: f"{name}: {m}",
        )  # fmt: skip


def run_on(adjacency, normalise=True):
    def run(at_receiver, at_sender, values, edge=None):
        return gated_sum(at_receiver, at_sender, values, adjacency, edge, normalise)

    return run


def compare(
    graph, dtype, device, *, edges=True, width=3, normalise=True, adjacency=None,
    wanted=("out", "state"),
) -> None:  # fmt: skip
    adjacency = GRAPHS[graph].adjacency(device) if adjacency is None else adjacency
    inputs = inputs_of(graph, edges, dtype, device, width)
    got = outcome(run_on(adjacency, normalise), inputs, wanted)
    assert all(value.dtype == dtype for value in got.values())
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    expected = outcome(lambda **given: by_nodes(adjacency, normalise, **given), wide, wanted)
    assert_near(got, expected, TOLERANCES[dtype])


@pytest.mark.covering(1)
@pytest.mark.parametrize("normalise", [True, False], ids=["divided", "sums"])
@pytest.mark.parametrize("edges", [True, False], ids=["edges", "nodes"])
@pytest.mark.parametrize("graph", SHORT)
def test_as_node_by_node(backend, graph, edges, normalise):
    compare(graph, torch.float64, backend.device, edges=edges, normalise=normalise)


def test_long_rows(backend):
    compare("hubs both ways", torch.float64, backend.device, width=2)


@pytest.mark.parametrize("wanted", ["out", "state"])
def test_one_result_alone(backend, wanted):
    """What is not asked for has no gradient: of the last layer, states of edges."""
    compare("random", torch.float64, backend.device, wanted=(wanted,))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("graph", ["random", "isolated"])
def test_types(backend, graph, dtype):
    compare(graph, dtype, backend.device)


@pytest.mark.parametrize("width", [1, 4, 33, 64, 70, 130])
def test_shapes(triton, width):
    compare("every small degree", torch.float64, triton.device, width=width)


def test_wide_integers(triton):
    adjacency = widened(GRAPHS["random"].adjacency(triton.device))
    compare("random", torch.float64, triton.device, adjacency=adjacency)


def test_strided(backend):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    inputs = inputs_of("random", device=backend.device)
    strided = {name: tensor.t().contiguous().t() for name, tensor in inputs.items()}
    assert not any(tensor.is_contiguous() for tensor in strided.values())
    got, expected = (outcome(run_on(adjacency), given) for given in (strided, inputs))
    assert_near(got, expected, 1e-14)


@pytest.mark.parametrize("axis, shared", [(0, "none"), (1, "none"), *((2, n) for n in NAMES)])
def test_vmap_is_a_loop(backend, axis, shared):
    adjacency, members = GRAPHS["self-loops"].adjacency(backend.device), 3
    inputs = inputs_of("self-loops", device=backend.device, width=2 * members)
    for name, tensor in inputs.items():
        own = tensor.unflatten(1, (members, 2))
        inputs[name] = own[:, 0] if name == shared else own.movedim(1, axis)
    dims = {name: None if name == shared else axis for name in inputs}
    run = run_on(adjacency)

    def together(**given):
        return torch.vmap(lambda given: run(**given), (dims,))(given)

    def alone(**given):
        each = [
            {n: t if dims[n] is None else t.select(axis, i) for n, t in given.items()}
            for i in range(members)
        ]
        return tuple(map(torch.stack, zip(*(run(**one) for one in each), strict=True)))

    assert_near(outcome(together, inputs), outcome(alone, inputs), 1e-14)


def test_members_stay_between_rows_and_features(triton):
    """So that what follows reads them as they lie."""
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", device=triton.device, width=6)
    given = {name: tensor.unflatten(1, (3, 2)) for name, tensor in inputs.items()}
    results = torch.vmap(lambda given: run_on(adjacency)(**given), 1, 1)(given)
    assert all(result.is_contiguous() for result in results)


def test_gradcheck(backend):
    adjacency = GRAPHS["self-loops"].adjacency(backend.device)
    inputs = inputs_of("self-loops", device=backend.device, width=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    assert gradcheck(lambda *t: run_on(adjacency)(**dict(zip(inputs, t, strict=True))), leaves)


def test_second_derivatives(triton):
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", device=triton.device)
    values = inputs["values"].requires_grad_()
    out, _ = run_on(adjacency)(**inputs)
    (gradient,) = torch.autograd.grad(out.sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match=r"got a second derivative of pna\.\w+\.gates"):
        gradient.sum().backward()


@pytest.mark.covering(0)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("edges", [True, False])
def test_opcheck(triton, edges, normalise):
    """Shapes without values, and gradients, as torch expects them."""
    adjacency = GRAPHS["self-loops"].adjacency(triton.device)
    inputs = inputs_of("self-loops", edges, torch.float32, triton.device)
    terms = [inputs.get(name) for name in NAMES]
    terms = [None if term is None else term.requires_grad_() for term in terms]
    arguments = (*terms, *pack(Graph.of(adjacency)), normalise)
    torch.library.opcheck(torch.ops.pna.gated_sum.default, arguments)


@pytest.mark.covering(0)
@pytest.mark.parametrize("normalise", [True, False])
def test_opcheck_of_the_gradient(triton, normalise):
    adjacency = GRAPHS["self-loops"].adjacency(triton.device)
    inputs = inputs_of("self-loops", True, torch.float32, triton.device)
    graph = pack(Graph.of(adjacency))
    saved = torch.ops.pna.gated_sum(*[inputs[name] for name in NAMES], *graph, normalise)
    upstream = (torch.ones_like(saved[0]), torch.ones_like(saved[1]))
    arguments = (*upstream, *saved, inputs["values"], *graph)
    torch.library.opcheck(torch.ops.pna.gated_sum_backward.default, arguments)


def test_repeats_to_the_bit(triton):
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", True, torch.float32, triton.device)
    first, again = (outcome(run_on(adjacency), inputs) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_any_size(backend, size):
    """Gates that are all open, or all shut: the mean, or nothing."""
    adjacency = GRAPHS["random"].adjacency(backend.device)
    inputs = inputs_of("random", True, torch.float32, backend.device)
    inputs["at_receiver"] = torch.full_like(inputs["at_receiver"], size)
    got = outcome(run_on(adjacency), inputs)
    mean = pna.aggregate(inputs["values"], adjacency, ["mean"])[:, 0]
    expected = mean if size > 0 else 0 * mean
    torch.testing.assert_close(got["out"], expected, rtol=1e-5, atol=1e-5)
    assert all(value.isfinite().all() for value in got.values())


def test_edges_of_no_node_have_no_gradient(triton):
    """As behind the real ones in some padded batches."""
    adjacency = GRAPHS["every small degree"].adjacency(triton.device)
    spare = torch.zeros(7, dtype=adjacency.senders.dtype, device=triton.device)
    incoming = replace(adjacency.incoming, neighbours=torch.cat([adjacency.senders, spare]))
    padded = replace(adjacency, incoming=incoming, edge_ids=torch.cat([adjacency.edge_ids, spare]))
    inputs = inputs_of("every small degree", device=triton.device)
    edge = torch.cat([inputs["edge"], inputs["edge"][:7]])
    expected = outcome(run_on(adjacency), inputs, ("out",))
    got = outcome(run_on(padded), inputs | {"edge": edge}, ("out",))
    assert_near({"out": got["out"]}, {"out": expected["out"]}, 1e-14)
    assert_near({"edge": got["of edge"][:-7]}, {"edge": expected["of edge"]}, 1e-14)
    assert not got["of edge"][-7:].any() and not got["state"][-7:].any()


def test_types_are_joined(backend):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    inputs = inputs_of("random", True, torch.float32, backend.device)
    inputs["edge"] = inputs["edge"].double()
    out, state = run_on(adjacency)(**inputs)
    assert out.dtype == state.dtype == torch.float64


def test_refuses(backend):
    adjacency = GRAPHS["isolated"].adjacency(backend.device)
    inputs = inputs_of("isolated", device=backend.device)
    for name, given, message in (
        ("at_receiver", inputs["values"][:4], r"got at_receiver of shape \(4, 3\).*\(5, 3\)"),
        ("edge", inputs["edge"][:, :2], r"got edge of shape \(3, 2\).*\(3, 3\).*each edge"),
        ("edge", inputs["edge"][:1], r"got edge of shape \(1, 3\), expected \(3, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            run_on(adjacency)(**inputs | {name: given})
    with pytest.raises(TypeError, match=r"got values of dtype torch\.int64, expected a floating"):
        run_on(adjacency)(**inputs | {"values": inputs["values"].long()})
    with pytest.raises(ValueError, match="expected as many senders as receivers"):
        edge_index = torch.tensor([[3], [1]], device=backend.device)
        bipartite = pna.Adjacency.from_edge_index(edge_index, (5, 4))
        run_on(bipartite)(*(inputs[name] for name in NAMES[:3]))
