"""`neighbour_sum` on every backend against a matrix product in float64: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradgradcheck

from pna.baselines.neighbour_sum import neighbour_sum
from tests.ops.cases import GRAPHS, TOLERANCES, features, pack, widened

SHORT = [n for n, g in GRAPHS.items() if isinstance(g.nodes, int) and "hub" not in n]
TERMS = {"none": (), "factors": (0,), "own": (1,), "both": (0, 1)}


def terms_of(graph, terms, device):
    nodes = GRAPHS[graph].nodes
    given = [features(1, nodes, torch.float64, device, 1 + k)[0] for k in range(2)]
    return [t if k in TERMS[terms] else None for k, t in enumerate(given)]


def as_matrix(adjacency, x, factor, own):
    """f_i f_j for every edge, as often as there is one, and c on the diagonal."""
    nodes = x.shape[0]
    factor, own = (x.new_ones(nodes) if t is None else t for t in (factor, own))
    matrix = torch.diag(own)
    senders, receivers = adjacency.edge_index.long()
    products = factor[senders] * factor[receivers]
    return matrix.index_put((receivers, senders), products, accumulate=True) @ x


def outcome(run, x):
    x = x.detach().requires_grad_()
    out = run(x)
    upstream = features(1, out.numel(), torch.float64, out.device, 9).reshape(out.shape)
    return out.detach(), torch.autograd.grad(out, x, upstream.to(out.dtype))[0]


def compare(graph, terms, device, dtype=torch.float64, width=3, adjacency=None):
    adjacency = GRAPHS[graph].adjacency(device) if adjacency is None else adjacency
    x = features(GRAPHS[graph].nodes, width, dtype, device)
    given = terms_of(graph, terms, device)
    got = outcome(lambda x: neighbour_sum(x, adjacency, *given), x)
    expected = outcome(lambda x: as_matrix(adjacency, x, *given), x.double())
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == dtype
        scale = float(theirs.abs().max()) if theirs.numel() else 0
        tolerance = 4 * TOLERANCES[dtype] * scale  # the CPU rounds products and sums, too
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance)


@pytest.mark.covering(1)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("graph", SHORT)
def test_as_a_matrix(backend, graph, terms):
    compare(graph, terms, backend.device)


@pytest.mark.parametrize("width", [1, 5, 32, 40])
def test_widths(triton, width):
    compare("every small degree", "both", triton.device, width=width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_types(backend, dtype):
    compare("random", "both", backend.device, dtype)


def test_long_rows_and_wide_integers(triton):
    compare("hubs both ways", "both", triton.device, width=2)
    adjacency = widened(GRAPHS["random"].adjacency(triton.device))
    compare("random", "both", triton.device, adjacency=adjacency)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_is_a_loop(backend, axis):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    x = features(12, 6, torch.float64, backend.device).unflatten(1, (3, 2)).movedim(1, axis)
    given = terms_of("random", "both", backend.device)
    got = outcome(lambda x: torch.vmap(lambda x: neighbour_sum(x, adjacency, *given), axis)(x), x)
    each = outcome(
        lambda x: torch.stack([neighbour_sum(one, adjacency, *given) for one in x.unbind(axis)]), x
    )
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(got, each, strict=True))


def test_derivatives_of_any_order(triton):
    adjacency = GRAPHS["isolated"].adjacency(triton.device)
    x = features(5, 2, torch.float64, triton.device).requires_grad_()
    given = terms_of("isolated", "both", triton.device)
    assert gradgradcheck(lambda x: neighbour_sum(x, adjacency, *given).square(), x)


def test_opcheck(triton):
    adjacency = GRAPHS["self-loops"].adjacency(triton.device)
    x = features(3, 2, torch.float32, triton.device).t().contiguous().t().requires_grad_()
    factor, own = (t.float() for t in terms_of("self-loops", "both", triton.device))
    for terms in ((factor, own), (None, None)):
        arguments = (x, *terms, *pack(adjacency.incoming, adjacency.outgoing))
        torch.library.opcheck(torch.ops.pna.neighbour_sum.default, arguments)


def test_no_member_has_a_graph_of_its_own(triton):
    adjacency = GRAPHS["isolated"].adjacency(triton.device)
    x, factors = torch.ones(5, 2, device=triton.device), torch.ones(3, 5, device=triton.device)
    with pytest.raises(ValueError, match="expected one that all members share"):
        torch.vmap(lambda f: neighbour_sum(x, adjacency, f))(factors)


def test_refuses_other_nodes():
    with pytest.raises(ValueError, match=r"got x of 4 nodes.*as many senders and receivers"):
        neighbour_sum(torch.ones(4, 2), GRAPHS["isolated"].adjacency())
