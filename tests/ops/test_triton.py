"""What is particular to the Triton kernels; that they are right is in test_aggregate.py.

What only shows on graphs of millions of edges is brought down to size by smaller limits.
"""

import importlib
import pkgutil
from dataclasses import replace

import pytest
import torch

import pna
from pna.rows import SEGMENT
from tests.ops.cases import (
    FORMS,
    FUSED,
    GRAPHS,
    TOLERANCES,
    Graph,
    assert_near,
    definition,
    edge_term,
    features,
    into,
    outcome,
    random_edges,
    widened,
)


@pytest.fixture
def patch(triton, monkeypatch):
    """Replace a name in every module of the kernels that has it."""

    def replace(name, value):
        package = importlib.import_module("pna.ops.triton")
        names = [f"pna.ops.triton.{found.name}" for found in pkgutil.iter_modules(package.__path__)]
        having = [m for m in map(importlib.import_module, names) if hasattr(m, name)]
        assert having
        for module in having:
            monkeypatch.setattr(module, name, value)

    return replace


def check(adjacency, form="dense", kinds=FUSED):
    x = features(adjacency.num_senders, 3, torch.float32, adjacency.device)
    edge = edge_term(form, adjacency.num_edges, 3, x.dtype, adjacency.device)
    assert_near(
        outcome(x, adjacency, kinds, edge),
        definition(x, adjacency, kinds, edge),
        TOLERANCES[x.dtype],
    )


@pytest.mark.slow
def test_rows_of_more_segments_than_are_merged_at_once(triton, patch):
    """Three segments, merged two and then one, of the node that receives and of that which sends.
    Messages are whole numbers, so that all segments have the same extrema."""
    from pna.ops.triton.launch import MergeTiles

    class Pairs(MergeTiles):
        def __init__(self, features):
            super().__init__(features)
            self.tile["BLOCK_S"] = 2

    patch("MergeTiles", Pairs)
    adjacency = Graph([(1, 0)] * 600, 2).adjacency(triton.device)
    x = features(2, 3, torch.float32, triton.device).round()
    edge = features(600, 3, torch.float32, triton.device, seed=1).round()
    kinds = ["max", "std", "min"]
    assert_near(
        outcome(x, adjacency, kinds, edge),
        definition(x, adjacency, kinds, edge),
        TOLERANCES[x.dtype],
    )


@pytest.mark.parametrize("form", ["table", "coefficients"])
def test_edge_gradients_in_many_chunks(triton, patch, form):
    patch("EDGE_WORKSPACE", 7 * 3 * 4)  # seven edges of three float32 numbers
    check(GRAPHS["random"].adjacency(triton.device), form)


@pytest.mark.covering(2, rest="gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["table", "coefficients"])
@pytest.mark.parametrize("combine", ["add", "mul"])
@pytest.mark.parametrize("width", [40, 39])  # two blocks, one not full
@pytest.mark.parametrize(
    "kinds",
    [FUSED, ["mean"], ["std", "max"], ["normalised_mean"], ["var", "min", "normalised_mean"]],
    ids=",".join,
)
def test_few_kinds_of_edges_are_summed_on_the_way(
    triton, patch, kinds, width, form, combine, dtype
):
    """To the gradient of x, not by a kernel of their own; and so are rows of a basis whose
    coefficients are constants."""

    def refuse(*given):
        raise AssertionError("walked the edges again")

    patch("edge_gradient", refuse)
    adjacency = GRAPHS["every small degree"].exact_adjacency(triton.device)
    x = features(adjacency.num_senders, width, dtype, triton.device).requires_grad_()
    edge = edge_term(form, adjacency.num_edges, width, dtype, triton.device)
    rows = edge[0 if form == "table" else 1].requires_grad_()
    out = pna.aggregate(x, adjacency, kinds, edge, combine)
    upstream = features(out.shape[0], out[0].numel(), dtype, triton.device, seed=6).view_as(out)
    gradients = torch.autograd.grad(out, [x, rows], upstream)
    expected = definition(x.detach(), adjacency, kinds, edge, upstream, combine)
    assert_near([out.detach(), *gradients], [*expected[:2], expected[-1]], TOLERANCES[dtype])


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kinds", [FUSED, ["mean"], ["max"], ["normalised_mean"]], ids=",".join)
@pytest.mark.parametrize("combine", ["add", "mul"])
def test_a_basis_gets_its_gradient_without_that_of_every_edge(triton, patch, kinds, combine, dtype):
    """Where coefficients are constants; several tiles for a program, and features in two blocks."""

    def refuse(*given):
        raise AssertionError("made a row for every edge")

    patch("_message_gradient", refuse)
    patch("SUMS", 4)
    patch("SPLITS", 2)
    adjacency = GRAPHS["every small degree"].exact_adjacency(triton.device)
    x = features(adjacency.num_senders, 40, dtype, triton.device)
    edge = edge_term("coefficients", adjacency.num_edges, 40, dtype, triton.device)
    coefficients, basis = edge
    basis = basis.clone().requires_grad_()
    out = pna.aggregate(x, adjacency, kinds, (coefficients, basis), combine)
    upstream = features(out.shape[0], out[0].numel(), dtype, triton.device, seed=6).view_as(out)
    (gradient,) = torch.autograd.grad(out, basis, upstream)
    *_, expected = definition(x, adjacency, kinds, edge, upstream, combine)
    assert_near([gradient], [expected], TOLERANCES[dtype])


@pytest.mark.parametrize("form", FORMS)
def test_offsets_of_64_bits(triton, patch, form):
    patch("wide_index", lambda *tensors: True)
    check(GRAPHS["every small degree"].adjacency(triton.device), form)


@pytest.mark.parametrize("form", FORMS)
def test_indices_of_64_bits(triton, form):
    """As in a graph of 2³¹ edges."""
    check(widened(GRAPHS["every small degree"].adjacency(triton.device)), form)


@pytest.mark.parametrize("hub", [[], into(0, 300, 60)], ids=["no hub", "a hub"])
def test_room_for_long_rows_that_are_not_there(triton, hub):
    """`from_csr` never waits to see how many rows are long, so it makes room for more."""
    exact = Graph(random_edges(600, 60, 60) + hub, 60).adjacency(triton.device)
    adjacency = pna.Adjacency.from_csr(exact.indptr, exact.senders)
    long = int((adjacency.degree > SEGMENT).sum())
    assert adjacency.incoming.long_rows.shape[0] > long == (1 if hub else 0)
    check(adjacency, kinds=["std"])


@pytest.mark.parametrize("form", ["dense", "weights"])
def test_slots_of_no_receiver_have_no_gradient(triton, form):
    """The last slots of a padded batch: other edges get their usual gradients, and these 0."""
    spare, device = 2, triton.device
    usual = GRAPHS["isolated"].exact_adjacency(device)
    ids = usual.edge_ids
    ids = torch.cat([ids, ids.new_tensor([len(ids), len(ids) + 1])])
    incoming = replace(usual.incoming, neighbours=torch.cat([usual.senders, ids.new_zeros(spare)]))
    padded = replace(usual, incoming=incoming, edge_ids=ids)
    x = features(usual.num_senders, 4, torch.float32, device)
    found = []
    for adjacency in (usual, padded):
        edge = edge_term(form, padded.num_edges, 4, x.dtype, device)[: adjacency.num_edges]
        edge = edge.detach().requires_grad_()
        out = pna.aggregate(x, adjacency, list(FUSED), edge)
        upstream = features(1, out.numel(), out.dtype, device, seed=6).view(out.shape)
        found.append(torch.autograd.grad(out, edge, upstream)[0])
    torch.testing.assert_close(found[1], torch.cat([found[0], torch.zeros_like(edge[:spare])]))
