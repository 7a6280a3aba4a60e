"""`attention` on every backend against a loop over nodes in float64: outputs and gradients."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import pna
from pna.baselines import attention as module
from pna.baselines.attention import attention
from pna.baselines.graph import Graph
from tests.ops.cases import GRAPHS, features, pack, widened
from tests.ops.cases import TOLERANCES as OF_SUMS

SLOPE = 0.2
NAMES = ("values", "scores", "edge", "own")
#: Which terms scores have beside those of nodes.
FORMS = {"nodes": (), "edges": ("edge",), "self-loops": ("own",), "both": ("edge", "own")}
SQUARE = [name for name, graph in GRAPHS.items() if isinstance(graph.nodes, int)]
SHORT = [name for name in SQUARE if "hub" not in name]
#: Exponentials of scores that were rounded, and weights that were rounded with their results.
TOLERANCES = OF_SUMS | {torch.bfloat16: 2**-5, torch.float16: 2**-8}


def inputs_of(graph, form, dtype=torch.float64, device="cpu", heads=2, width=3) -> dict:
    nodes, edges = GRAPHS[graph].nodes, len(GRAPHS[graph].edges)
    shapes = dict(
        values=(nodes, heads, width), scores=(nodes, heads, 2), edge=(edges, heads),
        own=(nodes, heads),
    )  # fmt: skip
    names = ("values", "scores", *FORMS[form])
    return {
        name: features(1, torch.Size(shapes[name]).numel(), dtype, device, seed).reshape(
            shapes[name]
        )
        for seed, name in enumerate(names)
    }


def by_nodes(adjacency: pna.Adjacency, values, scores, edge=None, own=None) -> Tensor:
    """One node after another, by `torch.softmax`."""
    results = []
    bounds = adjacency.indptr.tolist()
    for node, (begin, end) in enumerate(pairwise(bounds)):
        senders = adjacency.senders[begin:end].long()
        here = scores[node, :, 0] + scores[senders, :, 1]
        if edge is not None:
            here = here + edge[begin:end]
        messages = values[senders]
        if own is not None:
            others = senders != node
            here = torch.cat([here[others], own[node, None]])
            messages = torch.cat([messages[others], values[node, None]])
        weights = torch.nn.functional.leaky_relu(here, SLOPE).softmax(0)
        results.append((weights[:, :, None] * messages).sum(0))
    return torch.stack(results) if results else 0 * values


def outcome(run, inputs) -> dict[str, Tensor]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    out = run(**leaves)
    upstream = features(1, out.numel(), torch.float64, out.device, 9).to(inputs["values"].dtype)
    gradients = torch.autograd.grad(
        out, list(leaves.values()), upstream.to(out.dtype).reshape(out.shape),
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def assert_near(got, expected, tolerance) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape
        # gradients of scores are differences that may cancel to nothing, of terms of about 1
        scale = max(float(value.abs().max()) if value.numel() else 0, 1)
        torch.testing.assert_close(
            got[name].double(), value, rtol=0, atol=tolerance * scale,
            msg=lambda m, name=name: f"{name}: {m}",
        )  # fmt: skip


def compare(graph, form, dtype, device, heads=2, width=3, adjacency=None) -> None:
    adjacency = GRAPHS[graph].adjacency(device) if adjacency is None else adjacency
    inputs = inputs_of(graph, form, dtype, device, heads, width)
    got = outcome(lambda **given: run_on(adjacency, given), inputs)
    assert all(value.dtype == dtype for value in got.values())
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    expected = outcome(lambda **given: by_nodes(adjacency, **given), wide)
    assert_near(got, expected, TOLERANCES[dtype])


def run_on(adjacency, given) -> Tensor:
    terms = given["values"], given["scores"], adjacency, SLOPE
    return attention(*terms, edge=given.get("edge"), own=given.get("own"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("graph", SHORT)
def test_as_node_by_node(backend, graph, form):
    compare(graph, form, torch.float64, backend.device)


@pytest.mark.parametrize("form", ["nodes", "both"])
def test_long_rows(backend, form):
    """Cut in segments, of receivers and of senders."""
    compare("hubs both ways", form, torch.float64, backend.device, heads=1, width=2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("graph", ["random", "isolated"])
def test_types(backend, graph, dtype):
    compare(graph, "both", dtype, backend.device)


@pytest.mark.parametrize(
    "heads, width",
    [
        (1, 1),
        (1, 4),
        (4, 4),
        (40, 4),  # more heads than a program takes, as a population has
        (9, 5),  # of which a last block is not full
        (3, 33),  # heads wider than a block
        (1, 130),  # and rows
    ],
)
def test_shapes(triton, heads, width):
    compare("every small degree", "both", torch.float64, triton.device, heads, width)


def test_heads_wider_than_kernels(triton, monkeypatch):
    monkeypatch.setattr(module, "WIDEST", 3)
    monkeypatch.setattr(module, "_attention", None)
    compare("random", "edges", torch.float64, triton.device, width=4)


def test_wide_integers(triton):
    adjacency = widened(GRAPHS["random"].adjacency(triton.device))
    compare("random", "both", torch.float64, triton.device, adjacency=adjacency)


@pytest.mark.parametrize("cap", [-1, 9], ids=["room for long rows", "none"])
def test_degrees_that_cannot_be_seen(triton, cap):
    """As in a padded batch, with room for long rows that are not there, or for none."""
    edges = GRAPHS["every small degree"].adjacency(triton.device)
    spare = torch.full((300,), 8, device=triton.device)  # of which the last node has many
    indptr = torch.cat([edges.indptr[:-1], edges.indptr[-1:] + (300 if cap < 0 else 0)])
    senders = torch.cat([edges.senders.long(), spare]) if cap < 0 else edges.senders
    adjacency = pna.Adjacency.from_csr(indptr, senders, max_degree=cap)
    inputs = inputs_of("every small degree", "self-loops", device=triton.device)
    got = outcome(lambda **given: run_on(adjacency, given), inputs)
    assert_near(got, outcome(lambda **given: by_nodes(adjacency, **given), inputs), 1e-13)


def test_strided(backend):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    inputs = inputs_of("random", "both", device=backend.device)
    strided = {name: t.movedim(0, -1).contiguous().movedim(-1, 0) for name, t in inputs.items()}
    assert not any(t.is_contiguous() for t in strided.values())
    got, expected = (outcome(lambda **g: run_on(adjacency, g), i) for i in (strided, inputs))
    assert_near(got, expected, 1e-14)


@pytest.mark.parametrize("axis, shared", [(0, "none"), (1, "none"), *((2, n) for n in NAMES)])
def test_vmap_is_a_loop(backend, axis, shared):
    adjacency, members = GRAPHS["self-loops"].adjacency(backend.device), 3
    inputs = inputs_of("self-loops", "both", device=backend.device, heads=2 * members)
    for name, tensor in inputs.items():
        own = tensor.unflatten(1, (members, 2))
        inputs[name] = own[:, 0] if name == shared else own.movedim(1, axis)
    dims = {name: None if name == shared else axis for name in inputs}

    def together(**given):
        return torch.vmap(lambda given: run_on(adjacency, given), (dims,))(given)

    def alone(**given):
        each = [
            {n: t if dims[n] is None else t.select(axis, i) for n, t in given.items()}
            for i in range(members)
        ]
        return torch.stack([run_on(adjacency, one) for one in each])

    assert_near(outcome(together, inputs), outcome(alone, inputs), 1e-14)


def test_members_stay_between_nodes_and_heads(triton):
    """So that what follows reads them as they lie."""
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", "nodes", device=triton.device, heads=6)
    given = {name: tensor.unflatten(1, (3, 2)) for name, tensor in inputs.items()}
    out = torch.vmap(lambda given: run_on(adjacency, given), 1, 1)(given)
    assert out.is_contiguous()


def test_gradcheck(backend):
    adjacency = GRAPHS["self-loops"].adjacency(backend.device)
    inputs = inputs_of("self-loops", "both", device=backend.device, heads=1, width=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    assert gradcheck(lambda *t: run_on(adjacency, dict(zip(inputs, t, strict=True))), leaves)


def test_second_derivatives(triton):
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", "nodes", device=triton.device)
    values = inputs["values"].requires_grad_()
    out = run_on(adjacency, inputs)
    (gradient,) = torch.autograd.grad(out.sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match=r"got a second derivative of pna\.\w+\.attention"):
        gradient.sum().backward()


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", ["nodes", "both"])
def test_opcheck(triton, form):
    """Shapes without values, and gradients, as torch expects them."""
    adjacency = GRAPHS["self-loops"].adjacency(triton.device)
    inputs = inputs_of("self-loops", form, torch.float32, triton.device)
    terms = [inputs.get(name) for name in NAMES]
    terms = [None if term is None else term.requires_grad_() for term in terms]
    arguments = (*terms, *pack(Graph.of(adjacency)), SLOPE)
    torch.library.opcheck(torch.ops.pna.attention.default, arguments)


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", ["nodes", "both"])
def test_opcheck_of_the_gradient(triton, form):
    adjacency = GRAPHS["self-loops"].adjacency(triton.device)
    inputs = inputs_of("self-loops", form, torch.float32, triton.device)
    terms = [inputs.get(name) for name in NAMES]
    graph = pack(Graph.of(adjacency))
    saved = torch.ops.pna.attention(*terms, *graph, SLOPE)
    arguments = (torch.ones_like(saved[0]), *saved, *terms, *graph, SLOPE)
    torch.library.opcheck(torch.ops.pna.attention_backward.default, arguments)


def test_repeats_to_the_bit(triton):
    adjacency = GRAPHS["random"].adjacency(triton.device)
    inputs = inputs_of("random", "both", torch.float32, triton.device)
    first, again = (outcome(lambda **g: run_on(adjacency, g), inputs) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_any_size(backend, size):
    """Where their exponentials would overflow, or all vanish: of equal scores, the mean."""
    adjacency = GRAPHS["random"].adjacency(backend.device)
    inputs = inputs_of("random", "nodes", torch.float32, backend.device)
    inputs["scores"] = torch.full_like(inputs["scores"], size)
    got = outcome(lambda **given: run_on(adjacency, given), inputs)
    mean = pna.aggregate(inputs["values"].flatten(1), adjacency, ["mean"])[:, 0]
    torch.testing.assert_close(got["out"].flatten(1), mean)
    assert all(value.isfinite().all() for value in got.values())


def test_a_nan_stays_with_its_receivers(backend):
    adjacency = GRAPHS["isolated"].adjacency(backend.device)
    for name in ("values", "scores"):
        inputs = inputs_of("isolated", "nodes", device=backend.device)
        inputs[name][0] = float("nan")
        assert run_on(adjacency, inputs).isnan().any(2).any(1).tolist() == [
            False, True, False, False, False,
        ]  # fmt: skip


def test_refuses():
    adjacency, values = GRAPHS["isolated"].adjacency(), torch.ones(5, 2, 3)
    with pytest.raises(ValueError, match=r"got scores of shape \(5, 2\).*expected \(5, 2, 2\)"):
        attention(values, torch.ones(5, 2), adjacency, SLOPE)
    with pytest.raises(ValueError, match=r"got edge of shape \(5, 2\).*expected \(3, 2\)"):
        attention(values, torch.ones(5, 2, 2), adjacency, SLOPE, edge=torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"got values of 4 nodes.*as many senders and receivers"):
        attention(values[:4], torch.ones(4, 2, 2), adjacency, SLOPE)
