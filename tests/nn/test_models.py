"""`pna.nn.PNA` beside PyG's model of the same name, with the same weights."""

import sys
from typing import get_args
from unittest import mock

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import models as pyg_models
from torch_geometric.nn import norm as pyg_norms
from torch_geometric.utils import k_hop_subgraph

import pna
from pna.nn import PNA
from pna.nn.models import Jump

NODES, EDGES = 30, 90
ARGUMENTS = dict(
    aggregators=["mean", "std", "max", "min", "sum"],
    scalers=["identity", "amplification", "attenuation"],
    deg=torch.tensor([1, 4, 6, 3]),
)


def inputs(edge_dim=None):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 6, dtype=torch.float64, generator=random).requires_grad_()
    edge_index = torch.randint(NODES - 3, (2, EDGES), generator=random)
    edge_attr = None
    if edge_dim is not None:
        edge_attr = torch.randn(EDGES, edge_dim, dtype=torch.float64, generator=random)
    return x, edge_index, edge_attr


def pair(**arguments):
    """PyG's model and ours with its weights, in evaluation mode and float64."""
    torch.manual_seed(1)
    theirs = pyg_models.PNA(6, 8, **(ARGUMENTS | arguments)).double()
    ours = PNA(6, 8, std="pyg", **(ARGUMENTS | arguments)).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval()


@pytest.mark.parametrize(
    "arguments",
    [
        dict(num_layers=1),
        dict(num_layers=1, out_channels=3),
        dict(num_layers=3, out_channels=4, norm="batch_norm"),
        dict(num_layers=3, towers=4, divide_input=False, act="leaky_relu", act_first=True),
        dict(num_layers=2, jk="cat", norm="batch_norm", act_first=True),
        dict(num_layers=2, jk="max", out_channels=5),
        dict(num_layers=2, jk="last", act=None),
        dict(num_layers=2, edge_dim=3),
        dict(num_layers=2, jk="lstm", out_channels=5, norm="layer_norm"),
        dict(num_layers=2, norm="layer_norm", norm_kwargs=dict(mode="node"), act="swish"),
        dict(num_layers=2, norm="BatchNorm", norm_kwargs=dict(allow_single_element=True)),
        dict(num_layers=2, flow="target_to_source"),
    ],
    ids=str,
)
def test_as_pyg(arguments):
    theirs, ours = pair(**arguments)
    for model in (ours, PNA.from_pyg(theirs), ours.to_pyg()):
        assert not model.training
        assert_same(model, theirs, arguments.get("edge_dim"))
    assert_same_state(ours.pyg_state_dict(), theirs.state_dict())


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm"])
def test_frozen_parts_and_modes_are_kept(norm):
    theirs, _ = pair(num_layers=2, jk="cat", norm=norm)
    theirs.train().norms.eval()
    theirs.convs[0].eval()
    for part in (theirs.norms[0], theirs.lin, theirs.convs[1]):
        part.requires_grad_(False)
    ours = PNA.from_pyg(theirs)
    for model in (ours, ours.to_pyg()):
        assert model.training and model.dropout.training and not model.norms[1].training
        assert [conv.training for conv in model.convs] == [False, True]
        kept = (model.norms[0], model.lin, model.convs[1])
        assert not any(p.requires_grad for part in kept for p in part.parameters())
        trained = (*model.norms[1].parameters(), *model.convs[0].parameters())
        assert all(p.requires_grad for p in trained)


def assert_same_state(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def assert_same(ours, theirs, edge_dim=None):
    """Outputs and the gradient of x."""
    x, edge_index, edge_attr = inputs(edge_dim)
    expected = theirs(x, edge_index, edge_attr=edge_attr)
    got = ours(x, edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("jk", get_args(Jump))
def test_every_jump(jk):
    theirs, ours = pair(num_layers=2, jk=jk)
    assert_same(ours, theirs)


def called(make, *inputs, **more):
    """A model and its output; None if it cannot be made or called so."""
    try:
        model = make().double()
        return model, model(*inputs, **more)
    except (TypeError, ValueError):
        return None


def test_every_norm_of_pyg():
    """As in PyG: some need other arguments, and cannot be used in its model either."""
    x, edge_index, _ = inputs()
    batch = torch.arange(NODES) // 15
    usable = set()
    for name in pyg_norms.__all__:
        more = dict(norm=name, **ARGUMENTS)
        more |= dict(norm_kwargs=dict(groups=2)) if name == "DiffGroupNorm" else {}
        theirs = called(
            lambda more=more: pyg_models.PNA(6, 8, 2, **more), x, edge_index, batch=batch
        )
        made = called(lambda more=more: PNA(6, 8, 2, std="pyg", **more), x, edge_index, batch=batch)
        assert (theirs is None) == (made is None), name
        if theirs is None:
            continue
        usable.add(name)
        model, expected = theirs
        ours = PNA(6, 8, 2, std="pyg", **more).double()
        ours.load_state_dict(model.state_dict())
        torch.testing.assert_close(ours(x, edge_index, batch=batch), expected, msg=name)
    assert {"BatchNorm", "LayerNorm", "GraphNorm", "InstanceNorm", "DiffGroupNorm"} < usable


def test_norms_over_a_graph_use_the_batch():
    theirs, ours = pair(num_layers=3, norm="graph_norm")
    x, edge_index, _ = inputs()
    batch = torch.arange(NODES) // 10
    assert ours.supports_norm_batch and not ours.supports_edge_weight and ours.supports_edge_attr
    got = ours(x, edge_index, batch=batch, batch_size=3)
    torch.testing.assert_close(got, theirs(x, edge_index, batch=batch, batch_size=3))
    assert not torch.allclose(got, ours(x, edge_index))


def sampled(edge_dim):
    """What a neighbour loader gives: two seeds, then the nodes and edges of three hops."""
    hops = [[(2, 0), (3, 1), (4, 0)], [(5, 2), (6, 3), (7, 4), (8, 4)], [(9, 5), (10, 8), (11, 8)]]
    edge_index = torch.tensor([edge for hop in hops for edge in hop]).t().contiguous()
    random = torch.Generator().manual_seed(0)
    x = torch.randn(12, 6, dtype=torch.float64, generator=random)
    edge_attr = torch.randn(10, edge_dim, dtype=torch.float64, generator=random)
    counts = dict(num_sampled_nodes_per_hop=[2, 3, 4, 3], num_sampled_edges_per_hop=[3, 4, 3])
    return x, edge_index, edge_attr, counts


def test_layers_leave_out_what_seeds_do_not_need():
    theirs, ours = pair(num_layers=3, edge_dim=3)
    x, edge_index, edge_attr, counts = sampled(3)
    expected = theirs(x, edge_index, edge_attr=edge_attr, **counts)
    got = ours(x, edge_index, edge_attr=edge_attr, **counts)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert got.shape[0] == 5
    everything = ours(x, edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(got[:2], everything[:2], rtol=1e-10, atol=1e-10)
    table, kind = torch.randn(4, 3, dtype=torch.float64), torch.arange(10) % 4
    adjacency = pna.Adjacency.from_edge_index(edge_index, 12)
    by_type = ours(x, adjacency, edge_attr=(table, kind), **counts)
    torch.testing.assert_close(by_type, ours(x, edge_index, edge_attr=table[kind], **counts))


class WholeNeighbourhoods(NeighborLoader):
    """The batches of ``NeighborLoader(data, num_neighbors=[-1])``, without its sampler in C++."""

    def __init__(self, data, batch_size):
        self.data, self.dataset, self.batches = data, range(data.num_nodes), []
        self.node_sampler = mock.Mock(num_neighbors=[-1])
        for seeds in torch.arange(data.num_nodes).split(batch_size):
            _, (senders, receivers), _, _ = k_hop_subgraph(
                seeds, 1, data.edge_index, num_nodes=data.num_nodes
            )
            kept = torch.isin(receivers, seeds)
            others = senders[kept & ~torch.isin(senders, seeds)].unique()
            n_id = torch.cat([seeds, others])
            rank = torch.zeros(data.num_nodes, dtype=torch.long)
            rank[n_id] = torch.arange(len(n_id))
            edge_index = rank[torch.stack([senders[kept], receivers[kept]])]
            self.batches.append(Data(n_id=n_id, edge_index=edge_index, batch_size=len(seeds)))

    __setattr__ = object.__setattr__  # that of a loader needs its __init__

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


@pytest.mark.parametrize("jk", [None, "last"])
def test_inference_layer_by_layer(jk):
    _, model = pair(num_layers=3, jk=jk, norm="batch_norm")
    x, edge_index, _ = inputs()
    loader = WholeNeighbourhoods(Data(x=x.detach(), edge_index=edge_index), batch_size=7)
    torch.testing.assert_close(model.inference(loader), model(x, edge_index))


def test_a_lazy_model_takes_its_width_from_x_or_from_a_state():
    theirs, ours = pair(num_layers=2, edge_dim=3)
    by_state = PNA(-1, 8, 2, std="pyg", edge_dim=3, **ARGUMENTS).double().eval()
    by_state.load_state_dict(theirs.state_dict())
    assert_same(by_state, theirs, 3)
    by_call = PNA(-1, 8, 2, std="pyg", edge_dim=3, **ARGUMENTS).double().eval()
    x, edge_index, edge_attr = inputs(3)
    assert by_call(x, edge_index, edge_attr=edge_attr).shape == (NODES, 8)
    by_call.load_state_dict(ours.state_dict())
    assert_same(by_call.to_pyg(), theirs, 3)


@pytest.mark.parametrize("arguments", [dict(norm="layer_norm"), dict(jk="lstm")], ids=str)
def test_what_needs_pyg_says_so(arguments, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(ImportError, match=r"which needs PyG.*pip install torch-geometric"):
        PNA(6, 8, 2, **arguments, **ARGUMENTS)
    PNA(6, 8, 2, norm="batch_norm", jk="cat", **ARGUMENTS)


def test_batch_norm_in_training():
    theirs, ours = pair(num_layers=3, norm="batch_norm", norm_kwargs=dict(momentum=0.3))
    x, edge_index, _ = inputs()
    expected, got = theirs.train()(x, edge_index), ours.train()(x, edge_index)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    running = [dict(model.named_buffers()) for model in (ours, theirs)]
    torch.testing.assert_close(
        running[0]["norms.0.running_var"], running[1]["norms.0.module.running_var"]
    )


def test_dropout_only_in_training():
    torch.manual_seed(0)
    model = PNA(6, 8, 3, dropout=0.5, **ARGUMENTS).double()
    x, edge_index, _ = inputs()
    assert not torch.equal(model(x, edge_index), model(x, edge_index))
    model.eval()
    assert torch.equal(model(x, edge_index), model(x, edge_index))


def test_an_adjacency_gives_the_same():
    _, model = pair(num_layers=2)
    x, edge_index, _ = inputs()
    adjacency = pna.Adjacency.from_edge_index(edge_index, NODES)
    assert torch.equal(model(x, adjacency), model(x, edge_index))


def test_own_weights_come_back():
    torch.manual_seed(2)
    first, second = (
        PNA(6, 8, 2, norm=torch.nn.LayerNorm(8), **ARGUMENTS).double() for _ in range(2)
    )
    x, edge_index, _ = inputs()
    assert not torch.equal(first(x, edge_index), second(x, edge_index))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, edge_index), second(x, edge_index))


def test_a_module_as_norm_is_copied_for_each_layer():
    model = PNA(6, 8, 3, norm=torch.nn.BatchNorm1d(8), **ARGUMENTS)
    assert model.norms[0] is not model.norms[1]


def test_reset_parameters():
    torch.manual_seed(3)
    model = PNA(6, 8, 2, norm="batch_norm", jk="cat", **ARGUMENTS)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        model.norms[0].weight.fill_(7.0)
    model.reset_parameters()
    assert torch.equal(model.norms[0].weight, torch.ones(8))
    assert not torch.equal(model.lin.weight, before["lin.weight"])
    assert not torch.equal(model.convs[1].lin.weight, before["convs.1.lin.weight"])


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: PNA(6, 8, 0, **ARGUMENTS), ValueError, "num_layers=0, expected at least 1"),
        (lambda: PNA((6, 6), 8, 2, **ARGUMENTS), TypeError, r"in_channels=\(6, 6\).*bipartite"),
        (
            lambda: PNA(6, 8, num_layer=2, **ARGUMENTS),
            TypeError,
            "unknown argument 'num_layer' of PNA; did you mean 'num_layers'",
        ),
        (
            lambda: PNA(6, 8, 2, aggregatrs=["max"], **ARGUMENTS),
            TypeError,
            "unknown argument 'aggregatrs' of PNA; did you mean 'aggregators'",
        ),
        (lambda: PNA(6, 8, 2, jk="sum", **ARGUMENTS), ValueError, "unknown jk 'sum'.*lstm"),
        (
            lambda: PNA(6, 8, 2, norm="bach_norm", **ARGUMENTS),
            ValueError,
            "unknown norm 'bachnorm'; did you mean 'batchnorm'",
        ),
        (lambda: PNA.from_pyg(PNA(6, 8, 2, **ARGUMENTS)), TypeError, "expected a torch_geom.*PNA"),
        (lambda: PNA(6, 8, 2, **ARGUMENTS).to_pyg(), ValueError, "the std of the paper"),
        (lambda: pair(num_layers=2)[1].train().inference(None), ValueError, r"model\.eval\(\)"),
        (lambda: pair(num_layers=2, jk="cat")[1].inference(None), ValueError, "jk='cat', expected"),
        (lambda: pair(num_layers=2, edge_dim=2)[1].inference(None), ValueError, "edge_dim, expec"),
        (
            lambda: pair(num_layers=2)[1](*inputs()[:2], num_sampled_nodes_per_hop=[1, 1]),
            ValueError,
            "num_sampled_nodes_per_hop and num_sampled_edges_per_hop, expected both",
        ),
        (
            lambda: pair(num_layers=2, jk="max")[1](*sampled(1)[:2], **sampled(1)[3]),
            ValueError,
            "num_sampled_nodes_per_hop for a model with jk='max', expected None or 'last'",
        ),
        (lambda: PNA(6, 8, 2, norm=3, **ARGUMENTS), TypeError, "got norm=3, .*module to copy"),
        (
            lambda: PNA(6, 8, 2, **ARGUMENTS).double()(*inputs()[:2], torch.ones(EDGES)),
            ValueError,
            r"edge_attr=edge_weight\[:, None\] with edge_dim=1",
        ),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()
