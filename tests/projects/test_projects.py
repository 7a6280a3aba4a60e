"""Models of other projects give the same outputs and gradients with our layer as with PyG's."""

import copy

import pytest
import torch
from torch import nn

import pna

pytest.importorskip("torch_geometric")

from torch_geometric.nn import PNAConv as Theirs
from torch_geometric.nn import to_hetero
from torch_geometric.nn.aggr import DegreeScalerAggregation

from tests.projects import models


def ours(*arguments, **keywords):
    return pna.nn.PNAConv(*arguments, **keywords, std="pyg")


def graphs(seed, kind):
    """A batch of three graphs: arguments of a model, and its target."""
    random = torch.Generator().manual_seed(seed)
    sizes, edges = (7, 9, 8), []
    for begin, size in zip((0, 7, 16), sizes, strict=True):
        edges.append(torch.randint(begin, begin + size, (2, 3 * size), generator=random))
    edge_index = torch.cat(edges, 1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]  # distances are not 0
    nodes, batch = sum(sizes), torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    x, pos, edge_attr = normal(nodes, 1), normal(nodes, 3), normal(edge_index.shape[1], 4)
    if kind == "positions":
        return (x, pos, edge_index, batch), normal(3)
    if kind == "edges":
        return (x, edge_index, edge_attr), normal(edge_index.shape[1], 2)
    return (x, edge_index, edge_attr, batch), normal(3)


DEG = torch.bincount(torch.bincount(graphs(0, "edges")[0][1][1], minlength=24))

# Project: the model, what it takes, and how PyG's layer and ours are passed to it.
PROJECTS = {
    "HydraGNN": (models.HydraGNN, "positions", (Theirs, ours)),
    "HydraGNN Plus": (
        models.HydraGNNPlus,
        "positions",
        (DegreeScalerAggregation, pna.nn.DegreeScalerAggregation),
    ),
    "Multi-GNN": (models.MultiGNN, "edges", (Theirs, ours)),
    "GraphGPS": (models.GraphGPS, "graphs", (Theirs, ours)),
    "ULTRA": (models.ULTRA, "graphs", (models.RelationalByPyG, models.RelationalByPNA)),
}


def pair(project):
    """The model with PyG's layer and with ours, with the same weights."""
    make, kind, layers = PROJECTS[project]
    torch.manual_seed(0)
    theirs, our = (make(layer, DEG).double() for layer in layers)
    our.load_state_dict(theirs.state_dict())
    return theirs, our, kind


def assert_gradients_are_equal(theirs, our):
    """Gradients of PyG's layer are loaded like its weights, which have other names."""
    named = {name: p.grad for name, p in theirs.named_parameters()}
    renamed = copy.deepcopy(our)
    renamed.load_state_dict(theirs.state_dict() | named, strict=False)
    for (name, ours_), loaded in zip(our.named_parameters(), renamed.parameters(), strict=True):
        torch.testing.assert_close(ours_.grad, loaded, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("project", PROJECTS)
def test_trains_alike(project):
    theirs, our, kind = pair(project)
    optimisers = [torch.optim.Adam(model.parameters(), 1e-2) for model in (theirs, our)]
    for step in range(3):
        inputs, target = graphs(step, kind)
        outputs = []
        for model, optimiser in zip((theirs, our), optimisers, strict=True):
            optimiser.zero_grad()
            outputs.append(model(*inputs))
            nn.functional.mse_loss(outputs[-1], target).backward()
        torch.testing.assert_close(outputs[1], outputs[0])
        assert_gradients_are_equal(theirs, our)
        for optimiser in optimisers:
            optimiser.step()


def test_to_hetero_trains_alike():
    """Multi-GNN sends along the transfers and, with other weights, against them."""
    (x, edge_index, edge_attr), _ = graphs(0, "edges")
    forward, back = ("node", "to", "node"), ("node", "rev_to", "node")
    edges = {forward: edge_index, back: edge_index.flip(0)}
    features = {forward: edge_attr, back: edge_attr.neg()}
    outputs, found = [], []
    for layer in (Theirs, ours):
        torch.manual_seed(0)
        model = models.MultiGNNNodes(layer, DEG).double()
        model = to_hetero(model, (["node"], [forward, back]), aggr="mean")
        if found:
            model.load_state_dict(found[0].state_dict())
        outputs.append(model({"node": x}, edges, features)["node"])
        outputs[-1].square().sum().backward()
        found.append(model)
    torch.testing.assert_close(outputs[1], outputs[0])
    assert_gradients_are_equal(*found)


def test_forces_train_alike():
    """HydraGNN trains on energies and on forces, the negative gradients by positions."""
    theirs, our, kind = pair("HydraGNN")
    (x, pos, edge_index, batch), energies = graphs(1, kind)
    wanted, found = torch.ones_like(pos), []
    for model in (theirs, our):
        moved = pos.clone().requires_grad_()
        energy = model(x, moved, edge_index, batch)
        (slope,) = torch.autograd.grad(energy.sum(), moved, create_graph=True)
        mse = nn.functional.mse_loss
        (mse(energy, energies) + mse(-slope, wanted)).backward()
        found.append(slope.detach())
    torch.testing.assert_close(found[1], found[0])
    assert_gradients_are_equal(theirs, our)
