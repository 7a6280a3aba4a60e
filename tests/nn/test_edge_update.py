"""States of edges that are updated between layers, beside a loop over the edges."""

from __future__ import annotations

import pytest
import torch

from pna.adjacency import Adjacency
from pna.data.batch import Batch
from pna.degree import DegreeStats
from pna.nn.architectures import Stacked

NODES, EDGES = 6, 15


def batch_of(labels=0):
    """One graph whose edges are in no order, with repeated edges and loops."""
    torch.manual_seed(0)
    edges, given = (torch.randint(NODES, (2, count)) for count in (EDGES, max(labels, 1)))
    return Batch(
        adjacency=Adjacency.from_edge_index(edges, NODES),
        graph_of_node=torch.zeros(NODES, dtype=torch.int64),
        sizes=torch.tensor([NODES]),
        x=torch.randn(NODES, 3).double(),
        edge_attr=torch.randn(EDGES, 2).double(),
        y_node=None,
        y_graph=None,
        labels=Adjacency.from_edge_index(given, NODES) if labels else None,
        label_attr=torch.randn(labels, 2).double() if labels else None,
    )


def made(convolution="pna", **arguments):
    torch.manual_seed(1)
    deg = DegreeStats.from_histogram(torch.tensor([2, 6, 5, 1, 1]))
    given = dict(layers=3, out_channels=12, edge_width=4, deg=deg, edge_updates=True)
    return Stacked(convolution, 3, 8, 2, 0, **(given | arguments)).double().eval()


def moved(update, sender, receiver, state):
    """e + W' relu(W [x_i, x_j, e] + b) / 2 + b' / 2, of one edge."""
    first, second = update.mlp.layers
    inner = first.weight @ torch.cat([sender, receiver, state]) + first.bias
    return state + (second.weight @ inner.clamp(min=0) + second.bias) / 2


def looped(model, batch, starts, of_labels=()):
    """Last states of the nodes, and of labelled edges: pairs of ends, with a first state each."""
    x, states = model.embed(batch.x), list(starts)
    labels = [state for _, state in of_labels]
    ends = batch.adjacency.edge_index.t().tolist()
    for layer, convolution in enumerate(model.convolutions):
        result = convolution(x, batch.adjacency, torch.stack(states))
        x = model._updated(layer, x, result, None)
        if layer < len(model.edge_updates):
            update = model.edge_updates[layer]
            states = [moved(update, x[i], x[j], e) for (i, j), e in zip(ends, states, strict=True)]
            labels = [
                moved(update, x[i], x[j], e)
                for ((i, j), _), e in zip(of_labels, labels, strict=True)
            ]
    return x, labels


@pytest.mark.parametrize("convolution", ["pna", "gat", "gin"])
@pytest.mark.parametrize("columns", [2, 0])
@pytest.mark.parametrize("layers", [3, 1])
@torch.no_grad()
def test_states_of_edges_are_those_of_a_loop(convolution, columns, layers):
    model, batch = made(convolution, edge_columns=columns, layers=layers), batch_of()
    if columns:
        starts = model.embed_edges(batch.edge_attr)
    else:  # every edge starts from a 1
        starts = (model.embed_edges.weight[:, 0] + model.embed_edges.bias).expand(EDGES, -1)
    assert len(model.edge_updates) == layers - 1  # those after the last are not used
    last, _ = looped(model, batch, starts)
    torch.testing.assert_close(model(batch).node, model.node_head(last))


@pytest.mark.parametrize("symmetric", [False, True])
@torch.no_grad()
def test_predictions_for_edges_see_their_last_states(symmetric):
    count = 7
    model = made(edge_columns=2, edge_targets=2, symmetric=symmetric)
    batch = batch_of(labels=count)
    starts, first = model.embed_edges(batch.edge_attr), model.embed_edges(batch.label_attr)
    ends = batch.labels.edge_index.t().tolist()
    forth = list(zip(ends, first, strict=True))
    back = [((j, i), state) for (i, j), state in forth]
    x, states = looped(model, batch, starts, forth + back)
    found = []
    for row, (i, j) in enumerate(ends):
        parts = [x[i], x[j], states[row]]
        if symmetric:
            mean = (states[row] + states[count + row]) / 2
            parts = [x[i] + x[j], (x[i] - x[j]).abs(), mean]
        found.append(model.edge_head.mlp(torch.cat(parts)[None])[0])
    torch.testing.assert_close(model(batch).edge, torch.stack(found))


def test_every_update_learns():
    model, batch = made(edge_columns=2, edge_targets=2), batch_of(labels=4)
    model(batch).edge.sum().backward()
    for update in model.edge_updates:
        assert all(bool(p.grad.abs().sum() > 0) for p in update.parameters())


@pytest.mark.parametrize(
    ("convolution", "message"),
    [
        ("gcn", "'gcn', which does not support edge features; leave it out, or use one of gat"),
        ("gated-gcn", "'gated-gcn', which updates edges itself"),
    ],
)
def test_convolutions_that_cannot(convolution, message):
    with pytest.raises(ValueError, match=f"got edge_updates for {message}"):
        made(convolution)
