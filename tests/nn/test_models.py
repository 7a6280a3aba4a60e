"""`pna.nn.PNA` beside PyG's model of the same name, with the same weights."""

import pytest
import torch
from torch_geometric.nn import models as pyg_models

import pna
from pna.nn import PNA

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
    ],
    ids=str,
)
def test_as_pyg(arguments):
    theirs, ours = pair(**arguments)
    x, edge_index, edge_attr = inputs(arguments.get("edge_dim"))
    expected = theirs(x, edge_index, edge_attr=edge_attr)
    got = ours(x, edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


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
        (lambda: PNA(6, 8, 2, jk="lstm", **ARGUMENTS), ValueError, "unknown jk 'lstm'.*cat"),
        (lambda: PNA(6, 8, 2, norm="batchnorm", **ARGUMENTS), ValueError, "'batch_norm'"),
        (
            lambda: PNA(6, 8, 2, norm="layer_norm", **ARGUMENTS),
            ValueError,  # PyG's takes the mean over a whole graph
            r"over a whole graph.*torch\.nn\.LayerNorm\(8\)",
        ),
        (lambda: PNA(6, 8, 2, norm=3, **ARGUMENTS), TypeError, "norm of type int.*module to copy"),
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
