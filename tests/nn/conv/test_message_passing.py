"""PyG's explainers and hooks see our layer as they see PyG's."""

import copy
import sys
from functools import partial

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.explain import Explainer, GNNExplainer, GraphMaskExplainer, PGExplainer
from torch_geometric.utils import get_embeddings

from pna.nn import PNA, PNAConv, PNASimpleConv
from tests.nn.cases import DEG, SCALERS

EDGES = torch.tensor([[0, 1, 2, 3, 4, 2, 0, 5, 5], [1, 2, 3, 4, 0, 2, 3, 1, 1]])


def layer(kind=PNAConv):
    return kind(3, 4, ["mean"], ["identity"], None)


def models(**arguments):
    torch.manual_seed(0)
    given = dict(aggregators=["mean", "std", "max", "sum"], scalers=SCALERS, deg=DEG)
    theirs = pyg.models.PNA(4, 8, 2, 4, **(given | arguments)).eval()
    return theirs, PNA.from_pyg(theirs)


def explained(model, make, **masks):
    torch.manual_seed(3)
    algorithm, x = make(), torch.randn(6, 4)
    config = dict(mode="multiclass_classification", task_level="node", return_type="raw")
    if not isinstance(algorithm, PGExplainer):
        explain = Explainer(
            model, algorithm, explanation_type="model", model_config=config, **masks
        )
        return explain(x, EDGES, index=4)
    explain = Explainer(
        model, algorithm, explanation_type="phenomenon", model_config=config, **masks
    )
    target = model(x, EDGES).argmax(1)
    for epoch in range(2):
        algorithm.train(epoch, model, x, EDGES, target=target, index=4)
    return explain(x, EDGES, target=target, index=4)


GRAPH_MASK = partial(GraphMaskExplainer, 2, epochs=3, log=False)


@pytest.mark.parametrize(
    "algorithm, masks",
    [
        (lambda: GNNExplainer(epochs=20), dict(node_mask_type="attributes")),
        (lambda: GNNExplainer(epochs=20), dict(node_mask_type="object")),
        (lambda: PGExplainer(epochs=2), {}),
        (GRAPH_MASK, dict(node_mask_type="attributes")),
    ],
    ids=["GNNExplainer", "GNNExplainer of nodes", "PGExplainer", "GraphMaskExplainer"],
)
@pytest.mark.parametrize("arguments", [{}, dict(towers=2, pre_layers=2)], ids=str)
def test_masks_are_those_of_pyg(algorithm, masks, arguments):
    theirs, ours = models(**arguments)
    before = ours(torch.ones(6, 4), EDGES)
    got, expected = (
        explained(model, algorithm, edge_mask_type="object", **masks) for model in (ours, theirs)
    )
    names = ["edge_mask", *(["node_mask"] if masks else [])]
    for name in names:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-3, atol=1e-4)
    assert any(got[name].unique().numel() > 3 for name in names)
    if algorithm is not GRAPH_MASK:  # which leaves its marks on layers
        assert torch.equal(ours(torch.ones(6, 4), EDGES), before)


def test_embeddings():
    theirs, ours = models()
    x = torch.randn(6, 4)
    got, expected = (get_embeddings(model, x, EDGES) for model in (ours, theirs))
    torch.testing.assert_close(got, expected)
    assert len(got) == 2


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        given = dict(aggregators=["mean", "std"], scalers=["identity"], deg=None)
        self.first, self.second = (PNAConv((-1, -1), width, **given) for width in (8, 4))

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_to_hetero():
    """One layer for each type of edges; the messages of all types are added."""
    types = [("a", "to", "b"), ("b", "to", "a"), ("a", "own", "a")]
    model = pyg.to_hetero(TwoLayers(), (["a", "b"], types))
    x = {"a": torch.randn(5, 3), "b": torch.randn(4, 6)}
    edges = {kind: torch.randint(4, (2, 9)) for kind in types}
    got = model(x, edges)
    for layers in (model.first, model.second):
        to_b, to_a, own = (layers["__".join(kind)] for kind in types)
        a, b = x["a"], x["b"]
        pair = edges[types[1]]
        x = {"a": to_a((b, a), pair) + own(a, edges[types[2]]), "b": to_b((a, b), edges[types[0]])}
        x = {name: value.relu() for name, value in x.items()} if layers is model.first else x
    torch.testing.assert_close(got, x)


def test_it_is_a_message_passing_layer_and_still_ours():
    conv = layer()
    assert isinstance(conv, pyg.MessagePassing) and isinstance(conv, PNAConv)
    assert type(conv).__name__ == "PNAConv" and type(conv).__doc__ == PNAConv.__doc__
    assert not isinstance(layer(PNASimpleConv), pyg.MessagePassing)

    class Mine(PNAConv):
        def __init__(self) -> None:
            super().__init__(3, 4, ["mean"], ["identity"], None)
            self.more = 1

    mine = copy.deepcopy(Mine())
    assert isinstance(mine, Mine) and isinstance(mine, pyg.MessagePassing) and mine.more == 1


def test_methods_without_effect_are_refused():
    conv = layer()
    with pytest.raises(TypeError, match=r"got PNAConv\.propagate.*conv\.to_pyg\(\)"):
        conv.propagate(EDGES, x=torch.ones(6, 3))
    with pytest.raises(TypeError, match=r"got PNAConv\.register_message_forward_hook"):
        conv.register_message_forward_hook(print)


def test_a_copy_of_a_layer_is_made_without_pyg(monkeypatch):
    """By what a file of the layer would name."""
    make, arguments, *_ = layer().__reduce_ex__(2)
    monkeypatch.delitem(sys.modules, "torch_geometric.nn.conv.message_passing")
    assert type(make(*arguments)) is type(layer()) is PNAConv
