"""How weights begin."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from pna.nn.initial import initialise
from pna.nn.recurrent import GRU
from pna.nn.towers import TowerLinear
from pna.train.models import build
from pna.train.settings import ModelSettings

MODEL = ModelSettings("pna", "recurrent", 16, arguments={"towers": 4}, in_channels=2,
                      node_targets=3, graph_targets=3, degrees=(0, 3, 5))  # fmt: skip


def test_published_weights_are_within_their_bounds_and_fill_them():
    """sqrt(6 / (inputs + outputs)) / inputs, of each tower by itself; biases are 0."""
    model = build(ModelSettings(**{**vars(MODEL), "init": "published"}), 0)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear | TowerLinear)]
    assert len(linear) >= 12
    for module in linear:
        outputs, inputs = module.weight.shape[-2:]
        bound = math.sqrt(6 / (inputs + outputs)) / inputs
        largest = float(module.weight.detach().abs().max())
        assert 0.7 * bound < largest <= bound
        assert not module.bias.any()


def test_in_stacked_models_the_authors_weights_are_those_of_the_layers():
    arguments = {"towers": 2, "layers": 2, "norm_before_mixing": True, "edge_columns": 1}
    settings = vars(MODEL) | {"architecture": "stacked", "arguments": arguments}
    plain, authors = (build(ModelSettings(**{**settings, "init": how}), 0)
                      for how in ("default", "published-layers"))  # fmt: skip
    parts = {"convolutions", "mixing"}
    assert parts < {name.split(".")[0] for name, _ in plain.named_parameters()}
    for (name, a), (_, b) in zip(plain.named_parameters(), authors.named_parameters(), strict=True):
        assert torch.equal(a, b) == (name.split(".")[0] not in parts), name
    mixing = authors.mixing[0]
    largest = float(mixing.weight.detach().abs().max())
    bound = math.sqrt(6 / 32) / 16
    assert 0.7 * bound < largest <= bound and not mixing.bias.any()


def test_other_modules_stay_as_they_are():
    plain, published = (build(ModelSettings(**{**vars(MODEL), "init": how}), 0)
                        for how in ("default", "published"))  # fmt: skip
    for name in ("gru", "set2set"):
        for a, b in zip(
            getattr(plain, name).parameters(), getattr(published, name).parameters(), strict=True
        ):
            assert torch.equal(a, b)
    assert not torch.equal(plain.first.conv.lin.weight, published.first.conv.lin.weight)


def test_the_default_is_what_modules_do_themselves():
    layer = nn.Linear(3, 4)
    before = copy.deepcopy(layer.state_dict())
    initialise(layer, "default")
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_layers_without_biases():
    initialise(nn.Sequential(nn.Linear(3, 4, bias=False)), "published")


def test_unknown_ones_are_refused():
    with pytest.raises(ValueError, match="unknown initialisation 'publishd'; did you mean"):
        initialise(nn.Linear(1, 1), "publishd")


def test_a_gru_that_remembers_keeps_half_of_its_state_for_a_dozen_steps():
    torch.manual_seed(0)
    kept = {}
    for how in ("default", "remembering"):
        unit = GRU(16)
        initialise(unit, how)
        pair = torch.tensor([[0.0], [1.0]]).expand(2, 16)  # what of a difference is left
        for _ in range(12):
            pair = unit(torch.zeros(2, 16), pair)
        kept[how] = float((pair[1] - pair[0]).detach().mean())
    assert kept["remembering"] > 0.5 and abs(kept["default"]) < 0.05


def test_what_is_not_a_gru_stays_as_it_is():
    usual, given = (build(ModelSettings(**{**vars(MODEL), "init": how}), 0).state_dict()
                    for how in ("default", "remembering"))  # fmt: skip
    changed = {name for name in usual if not torch.equal(usual[name], given[name])}
    assert changed == {"gru.bias_ih", "gru.bias_hh"}
