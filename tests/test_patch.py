"""`patch_pyg`: what a program that uses PyG's names gets, and gets back."""

import copy
import io
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch_geometric
from torch_geometric import nn as pyg
from torch_geometric.nn.models import basic_gnn

import pna
from pna.nn.conv.pna import PNAConv
from tests.nn.cases import DEG, PAPER, SCALERS

ORIGINAL = pyg.PNAConv
ARGUMENTS = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG)
EDGES = torch.tensor([[0, 1, 2, 3, 4, 2, 0, 5, 5], [1, 2, 3, 4, 0, 2, 3, 1, 1]])


@pytest.fixture(autouse=True)
def unpatched_afterwards():
    yield
    assert pyg.PNAConv is pyg.conv.PNAConv is basic_gnn.PNAConv is ORIGINAL


@pytest.fixture
def patched():
    with pna.patch_pyg():
        yield


def model(**arguments):
    torch.manual_seed(0)
    return torch_geometric.nn.models.PNA(4, 8, 3, 2, norm="layer_norm", **ARGUMENTS, **arguments)


def trained(net):
    """Losses and the state after three steps."""
    torch.manual_seed(1)
    x, optimiser = torch.randn(6, 4), torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = net(x, EDGES).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses), net.state_dict()


@pytest.mark.parametrize("arguments", [{}, dict(towers=2, train_norm=True, jk="lstm")], ids=str)
def test_a_program_gives_the_same(arguments):
    """From the initial weights on, which a seed determines, to the names in its checkpoint."""
    expected = trained(model(**arguments))
    with pna.patch_pyg():
        net = model(**arguments)
        assert all(isinstance(conv, PNAConv) for conv in net.convs)
        losses, state = trained(net)
    torch.testing.assert_close(losses, expected[0])
    assert list(state) == list(expected[1])
    torch.testing.assert_close(state, expected[1], rtol=1e-4, atol=1e-5)
    model(**arguments).load_state_dict(state)


def test_pyg_is_imported_by_what_needs_it_only():
    """`import pna` imports none of these files: it works without PyG, and does not wait for it."""
    source = Path(pna.__file__).parent
    at_once = re.compile(r"^(from|import) torch_geometric", re.MULTILINE)
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if at_once.search(path.read_text("utf-8"))
    }
    assert found == {"nn/aggr.py", "nn/patched.py", "data/pyg.py", "bench/pyg_models.py"}


def test_every_name_and_undo():
    patch = pna.patch_pyg()
    assert pyg.PNAConv is pyg.conv.PNAConv is basic_gnn.PNAConv is not ORIGINAL
    with pna.patch_pyg():  # a second one changes nothing
        pass
    assert pyg.PNAConv is not ORIGINAL
    patch.undo()
    assert pyg.PNAConv is ORIGINAL
    patch.undo()


def test_the_last_patch_that_ends_restores_the_names():
    first, second = pna.patch_pyg(), pna.patch_pyg()  # as two threads make them
    basic_gnn.Later = pyg.PNAConv  # as by a module of PyG that is first imported now
    first.undo()
    first.undo()
    assert pyg.PNAConv is not ORIGINAL
    second.undo()
    assert pyg.PNAConv is vars(basic_gnn).pop("Later") is ORIGINAL


def test_instances_of_either_are_instances(patched):
    ours, theirs = pyg.PNAConv(4, 8, **ARGUMENTS), ORIGINAL(4, 8, **ARGUMENTS)
    assert type(ours) is not type(theirs)
    for layer in (ours, theirs, PNAConv(4, 8, **ARGUMENTS)):
        assert isinstance(layer, pyg.PNAConv) and isinstance(layer, pyg.MessagePassing)
    assert isinstance(ours, ORIGINAL) and not isinstance(pyg.GCNConv(4, 8), pyg.PNAConv)
    assert repr(ours) == repr(theirs)


def test_copies_and_files(patched):
    layer, x = pyg.PNAConv(4, 8, **ARGUMENTS), torch.randn(6, 4)
    other = copy.deepcopy(layer)
    assert type(other) is type(layer)
    assert torch.equal(other(x, EDGES), layer(x, EDGES))
    assert list(other.state_dict()) == list(layer.state_dict())
    torch.save(layer, io.BytesIO())  # raises if the class is not found under its name


def test_a_model_with_our_layers_becomes_ours(patched):
    theirs, x = model(), torch.randn(6, 4)
    ours = pna.nn.PNA.from_pyg(theirs)
    torch.testing.assert_close(ours(x, EDGES), theirs(x, EDGES))

    class Doubled(pyg.PNAConv):
        def forward(self, *inputs):
            return 2 * super().forward(*inputs)

    with pytest.raises(TypeError, match=r"Doubled, expected a torch_geometric\.nn\.PNAConv"):
        PNAConv.from_pyg(Doubled(4, 8, **ARGUMENTS))


def test_what_only_pyg_has_is_left_to_pyg(patched):
    with pytest.warns(UserWarning, match="MedianAggregation.*PyG's own layer is used") as caught:
        layer = pyg.PNAConv(4, 8, ["median"], ["identity"], DEG)
    assert type(layer) is ORIGINAL and caught[0].filename == __file__
    with pytest.raises(TypeError, match="unexpected keyword argument 'tower'"):
        pyg.PNAConv(4, 8, tower=2, **ARGUMENTS)


def test_a_subclass_that_overrides_message_is_of_pyg(patched):
    with pytest.warns(UserWarning, match=r"got Twice\.message.*subclass of PyG's own") as caught:

        class Twice(pyg.PNAConv):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.times = 2

            def message(self, x_i, x_j, edge_attr):
                return self.times * super().message(x_i, x_j, edge_attr)

    assert caught[0].filename == __file__
    assert Twice.__bases__ == (ORIGINAL,) and issubclass(Twice, pyg.PNAConv)
    torch.manual_seed(0)
    layer = Twice(4, 8, ["sum"], ["identity"], DEG)
    plain = ORIGINAL(4, 8, ["sum"], ["identity"], DEG)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(6, 4)
    assert not torch.allclose(layer(x, EDGES), plain(x, EDGES))


def test_other_subclasses_are_ours(patched):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Longer(pyg.PNAConv):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.more = torch.nn.Linear(8, 8)

            def forward(self, x, edge_index, edge_attr=None):
                return self.more(super().forward(x, edge_index, edge_attr))

    layer, x = Longer(4, 8, **ARGUMENTS), torch.randn(6, 4)
    other = Longer(4, 8, **ARGUMENTS)
    other.load_state_dict(layer.state_dict())
    assert isinstance(layer, PNAConv) and "more.weight" in layer.state_dict()
    assert torch.equal(other(x, EDGES), layer(x, EDGES))
    with pytest.raises(TypeError, match=r"got Deeper\.message, which would never be called"):

        class Deeper(Longer):
            def message(self, x_j):
                return x_j
