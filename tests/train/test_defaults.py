"""What is chosen where nothing is said."""

from dataclasses import replace

import pytest
import torch

from pna.data.molecule_features import RECORD
from pna.data.sources import SOURCES
from pna.nn.architectures import ARCHITECTURES
from pna.train import Settings
from pna.train.defaults import (
    BENCHMARKS,
    FEW_MOLECULES,
    MANY_MOLECULES,
    loss_for,
    model_for,
    settings_for,
)
from pna.train.tasks import LOSSES
from tests.train.small_runs import molecules, small_multitask


def test_the_benchmark():
    graphs = small_multitask()
    model, settings = model_for(graphs, "pna", {}), settings_for(graphs, {})
    assert (model.architecture, model.hidden, model.arguments) == ("recurrent", 16, {"towers": 4})
    assert (settings.shuffle, settings.batch_size) == (False, 512)


def test_molecules():
    graphs = replace(molecules(), metadata={RECORD: {}})
    model, settings = model_for(graphs, "pna", {"towers": 4}), settings_for(graphs, {"epochs": 7})
    assert (model.architecture, model.hidden) == ("stacked", 64)
    assert (model.arguments["layers"], model.arguments["towers"]) == (3, 4)
    assert "graph_dropout" not in model.arguments
    assert (settings.members, settings.epochs, settings.schedule) == (5, 7, "cosine")
    assert settings.lr == (1e-3,)
    described = replace(graphs, x_graph=torch.zeros(len(graphs), 2))
    few = model_for(described, "pna", {}).arguments
    assert (few["graph_dropout"], few["layers"]) == (0.3, 1)
    assert settings_for(described, {}).lr == (2e-3,)
    assert model_for(described, "pna", {"layers": 2}).arguments["layers"] == 2
    assert model_for(described, "pna", {"graph_dropout": 0.0}).arguments["graph_dropout"] == 0.0
    assert "layers" not in model_for(graphs, "pna", {"architecture": "recurrent"}).arguments


def test_many_molecules_have_more_layers_and_fewer_epochs():
    graphs = replace(molecules(), metadata={RECORD: {}})
    plain = graphs[torch.arange(MANY_MOLECULES) % len(graphs)]
    assert settings_for(plain, {}).epochs == 30 and settings_for(plain[1:], {}).epochs == 50
    graphs = replace(graphs, x_graph=torch.zeros(len(graphs), 2))
    sizes = (FEW_MOLECULES - 1, FEW_MOLECULES, MANY_MOLECULES - 1, MANY_MOLECULES)
    for count, layers, epochs in zip(sizes, (1, 3, 3, 3), (50, 50, 50, 30), strict=True):
        many = graphs[torch.arange(count) % len(graphs)]
        assert model_for(many, "pna", {}).arguments["layers"] == layers
        settings = settings_for(many, {})
        assert settings.lr == ((2e-3,) if layers == 1 else (1e-3,))
        assert settings.epochs == epochs and settings.batch_size == (64 if epochs == 50 else 128)


def test_losses_that_the_graphs_name():
    graphs = replace(molecules(), metadata={"losses": {"active": "bce"}})
    assert loss_for(graphs) == {"active": "bce"}
    assert model_for(graphs, "pna", {}).arguments["final"] == "none"
    assert loss_for(graphs, {"size": "mae"}) == {"active": "bce", "size": "mae"}
    assert loss_for(graphs, {"active": "mse"}) == {"active": "mse"}
    assert loss_for(graphs, "mae") == "mae"


@pytest.mark.parametrize(
    "name, loss",
    [("zinc", "mae"), ("molhiv", "bce"), ("mnist", "cross_entropy"), ("cifar10", "cross_entropy"),
     ("multitask", "mse"), ("one's own", "mse")],
)  # fmt: skip
def test_the_loss_of_the_field(name, loss):
    graphs = replace(molecules(), metadata={"benchmark": name})
    assert loss_for(graphs) == loss
    assert loss_for(molecules()) == "mse"
    is_bounded = loss in ("mse", "mae")
    assert (model_for(graphs, "pna", {}).arguments.get("final") == "none") != is_bounded


def test_others():
    graphs = molecules()
    model = model_for(graphs, "gin", {})
    assert (model.convolution, model.architecture, model.hidden) == ("gin", "stacked", 64)
    assert model.arguments == {} and settings_for(graphs, {}) == Settings()


def test_what_is_given_stands():
    graphs = small_multitask()
    given = {"architecture": "stacked", "layers": 2, "dropout": 0.1}
    model = model_for(graphs, "pna", given)
    assert (model.hidden, model.arguments) == (64, {"layers": 2, "dropout": 0.1})
    assert settings_for(graphs, {"shuffle": True, "lr": (0.1,)}) == Settings(
        shuffle=True, lr=(0.1,), batch_size=512
    )


def test_edges_are_left_out_where_there_are_some():
    assert model_for(molecules(), "pna", {"edges": False}).arguments == {"edges": False}
    assert model_for(molecules(), "pna", {"edges": True}).arguments == {}
    assert model_for(small_multitask(), "pna", {"edges": False}).arguments == {"towers": 4}


def test_scores_of_classes_are_not_bounded():
    assert "final" not in model_for(small_multitask(), "pna", {}).arguments
    given = model_for(small_multitask(), "pna", {}, {"connected": "bce"})
    assert given.arguments["final"] == "none"


def test_refuses():
    with pytest.raises(ValueError, match=r"depth=N for a stacked model.*architecture recurrent"):
        model_for(molecules(), "pna", {"depth": "N"})
    with pytest.raises(ValueError, match=r"unknown argument of a model 'layer'; .*'layers'\?"):
        model_for(molecules(), "pna", {"layer": 3})
    with pytest.raises(ValueError, match="unknown architecture 'stack'"):
        model_for(molecules(), "pna", {"architecture": "stack"})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_described(name):
    """A misspelt setting would be ignored, and a default would take its place."""
    usual = dict(BENCHMARKS[name])
    assert usual.pop("architecture") in ARCHITECTURES and usual.pop("loss") in LOSSES
    assert replace(Settings(), **usual) != Settings() or not usual
    assert name in {"multitask", *SOURCES}
