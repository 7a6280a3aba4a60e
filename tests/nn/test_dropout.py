"""Masks that depend on seed, pass, time, graph, node and feature, and on nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn import Stacked
from pna.nn.batch_context import batch_context
from pna.nn.dropout import Dropout
from tests.nn.graph_cases import SIZES, graphs, rows_of

WIDTH = 6
GRAPHS = graphs()


def made(seed: int = 0, p: float = 0.4, level: str = "node") -> Dropout:
    torch.manual_seed(seed)
    return Dropout(p, level)


def masks(dropout, batch, level="node", time=None):
    """What is left of ones, for each graph by its number."""
    with batch_context(batch):
        kept = dropout(torch.ones(batch.num_nodes if level == "node" else batch.num_graphs, WIDTH),
                       time)  # fmt: skip
    parts = rows_of(batch, kept) if level == "node" else list(kept[:, None])
    return {int(g): part for g, part in zip(batch.graph_ids, parts, strict=True)}


@pytest.mark.parametrize("level", ["node", "graph"])
def test_masks_do_not_depend_on_what_else_is_in_the_batch(level):
    """The same graphs in another order, alone, and padded."""
    padded = PaddedBatches(GRAPHS).batch(torch.tensor([3, 0, -1, 4]), Shape(4, 40, 100))
    expected = masks(made(level=level), GRAPHS.batch(), level)
    for batch in (GRAPHS.batch([4, 0, 3]), GRAPHS.batch([3]), GRAPHS.batch([3, 1, 2, 0, 4])):
        for graph, mask in masks(made(level=level), batch, level).items():
            assert torch.equal(mask, expected[graph]), graph
    with batch_context(padded):
        count = padded.num_nodes if level == "node" else padded.num_graphs
        kept = made(level=level)(torch.ones(count, WIDTH))
    parts = rows_of(padded, kept) if level == "node" else list(kept[:, None])
    for place, graph in ((0, 3), (1, 0), (3, 4)):
        assert torch.equal(parts[place], expected[graph]), graph


def test_masks_depend_on_everything_they_should():
    """Seed, pass, time, graph, node, feature: no two of many masks agree."""
    dropout = made(0)
    seen = [masks(dropout, GRAPHS.batch())]  # a call is a pass
    seen.append(masks(dropout, GRAPHS.batch()))
    seen += [masks(dropout, GRAPHS.batch(), time=t) for t in (1, 2)]  # several times in a pass
    seen.append(masks(made(1), GRAPHS.batch()))
    rows = torch.cat([m[g] for m in seen for g in range(len(SIZES))])
    assert len(rows.unique(dim=0)) > 0.5 * min(len(rows), 2**WIDTH)
    big = [torch.cat([m[0], m[3], m[4]]) for m in seen]
    for i, one in enumerate(big):
        for other in big[:i]:
            assert not torch.equal(one, other)


def test_calls_of_a_time_are_of_one_pass():
    dropout = made()
    dropout.advance()
    first = masks(dropout, GRAPHS.batch(), time=3)
    assert torch.equal(masks(dropout, GRAPHS.batch(), time=3)[4], first[4])
    assert int(dropout.passes) == 1
    dropout.advance()
    assert not torch.equal(masks(dropout, GRAPHS.batch(), time=3)[4], first[4])


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_rates_are_as_asked_everywhere(p):
    """Over all numbers, every feature, and neighbours that are dropped together: four deviations
    of a binomial."""
    dropout = made(p=p)
    batch = replace(GRAPHS.batch([4] * 500), graph_ids=torch.arange(500))
    with batch_context(batch):
        dropped = dropout(torch.ones(batch.num_nodes, 32)) == 0
    near = 4 * (p * (1 - p) / dropped.numel()) ** 0.5
    assert float(dropped.double().mean()) == pytest.approx(p, abs=near)
    columns = dropped.double().mean(0)
    assert float((columns - p).abs().max()) < 5 * (p * (1 - p) / len(dropped)) ** 0.5
    square = p * p
    for one, other in ((dropped[:, :-1], dropped[:, 1:]), (dropped[:-1], dropped[1:])):
        together = float((one & other).double().mean())
        assert together == pytest.approx(square, abs=5 * (square / one.numel()) ** 0.5)


def test_what_is_kept_is_divided_by_its_probability():
    x = torch.randn(50, WIDTH, requires_grad=True)
    out = made(p=0.25)(x)
    kept = out != 0
    torch.testing.assert_close(out[kept], x[kept] / 0.75)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, kept / 0.75)


@pytest.mark.parametrize("dropout", [made().eval(), made(p=0.0)], ids=["in use", "p = 0"])
def test_nothing_is_dropped(dropout):
    x = torch.randn(5, WIDTH)
    assert dropout(x) is x
    if dropout.p:
        dropout.advance()
        assert int(dropout.passes) == 0
    else:
        assert not dropout.changing and not dropout.state_dict()


def test_a_checkpoint_goes_on_where_it_was():
    one, other = made(0), made(1)
    one(torch.ones(3, WIDTH))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(torch.ones(9, WIDTH)), other(torch.ones(9, WIDTH)))


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_no_probability_is_refused(p):
    with pytest.raises(ValueError, match=f"got dropout={p}"):
        Dropout(p)


@pytest.mark.parametrize("seen", [{}, {"mirror": ((0, 1.0),)}], ids=["dropout", "mirror"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_pass_that_is_repeated_for_its_gradients_drops_the_same(seen, reentrant):
    torch.manual_seed(0)
    degrees = GRAPHS.degree_stats()
    width = GRAPHS.x.shape[1]
    plain = Stacked("pna", width, 8, 0, 1, deg=degrees, dropout=0.3, batch_norm=False, **seen)
    repeated, batch = copy.deepcopy(plain), GRAPHS.batch()
    for _ in range(2):
        plain(batch).graph.sum().backward()
        begin = torch.zeros((), requires_grad=True)  # without which one kind sees nothing to do
        out = checkpoint(lambda z: repeated(batch).graph + z, begin, use_reentrant=reentrant)
        out.sum().backward()
    assert repeated.dropout.passes == plain.dropout.passes == 2
    for one, other in zip(plain.parameters(), repeated.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
