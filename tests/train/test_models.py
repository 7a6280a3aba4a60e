"""From graph sets to models that fit them."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from pna.data.graphset import GraphSet
from pna.data.walks import with_walks
from pna.nn.architectures import ARCHITECTURES
from pna.nn.registry import CONVOLUTIONS
from pna.train.defaults import model_for
from pna.train.loop import train
from pna.train.models import build, count_parameters, fitted, outline
from pna.train.run import load
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import tasks_of
from tests import processes
from tests.train.cases import SMALL, plain_losses, random_graphs, whole_batch, with_arguments
from tests.train.small_runs import molecules


def fit(model: ModelSettings, graphs: GraphSet) -> ModelSettings:
    training = graphs.split("train")
    return fitted(model, training, tasks_of(training))


def outline_without_compiler() -> None:
    graphs = molecules()
    outline(fit(ModelSettings("pna", "stacked", 4), graphs), 10**6)
    sys.exit("torch._dynamo" in sys.modules)


def test_outlines_do_not_import_the_compiler():
    """Which takes longer than loading a run; an operation on the meta device may do so."""
    assert processes.run(outline_without_compiler).returncode == 0


@pytest.mark.parametrize("name", SMALL)
def test_a_fitted_model_can_be_built_and_used(name):
    graphs = random_graphs()
    model = fit(SMALL[name], graphs)
    assert (model.in_channels, model.node_targets, model.graph_targets) == (2, 3, 3)
    training = graphs.split("train")
    assert list(model.degrees) == torch.bincount(training.degree.long()).tolist()
    built = build(model, 0)
    got = built(whole_batch(training))
    assert got.node.shape[1] == got.graph.shape[1] == 3
    assert count_parameters(built) == sum(p.numel() for p in built.parameters())


def test_clusters_follow_from_the_largest_graph():
    """15 for every 100 nodes, one at least, unless their number is given."""
    for sizes, clusters in (((3, 4), 1), ((40, 41), 6)):
        graphs = random_graphs(train=2, validation=1, sizes=sizes)
        assert (
            fit(ModelSettings("diffpool", "stacked", 4), graphs).arguments["clusters"] == clusters
        )
    assert fit(SMALL["diffpool stacked"], graphs).arguments["clusters"] == 3
    assert "clusters" not in fit(SMALL["pna stacked"], graphs).arguments


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, architecture", [*zip(CONVOLUTIONS, cycle(ARCHITECTURES), strict=False)]
)
def test_every_registered_model_is_trained_and_loaded(name, architecture, tmp_path):
    """By its name, as `pna train` does; on nodes without edges too. The architectures take
    turns."""
    graphs = random_graphs(train=4, validation=2, edges=2)
    alone = GraphSet.from_arrays(
        [1, 2, 2], np.zeros((2, 0), int), [0] * 3, x=np.ones((5, 2)), y_graph=np.ones((3, 1)),
        split=["train", "train", "validation"],
    )  # fmt: skip
    for place, given in enumerate((graphs, alone)):
        asked = {"architecture": architecture, "hidden": 4, "edges": CONVOLUTIONS[name].edges}
        if architecture == "recurrent":
            asked |= {"depth": "2"}
        if CONVOLUTIONS[name].degrees and given is alone:
            continue  # whose δ is 0
        model = model_for(given, name, asked)
        run = train(given, tmp_path / str(place), model, Settings(members=2, epochs=1))
        assert not any(run.summary["broken"])
        batch = whole_batch(given.split("validation"))
        for member, best in enumerate(run.summary["best"]):  # which was found before it was saved
            with torch.no_grad():
                losses = plain_losses(run.config.tasks, load(run, member)(batch), batch)
            assert float(losses.mean()) == pytest.approx(best, rel=1e-5)


def test_seeds_give_the_same_weights_every_time():
    model = fit(with_arguments(SMALL["pna recurrent"], dropout=0.1), random_graphs())
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (build(model, seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(torch.rand(1), expected)  # and leave other random numbers alone
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["dropout.seed"], other["dropout.seed"])
    assert not torch.equal(one["gru.weight_ih"], other["gru.weight_ih"])


@pytest.mark.parametrize("columns", [1, 2])
def test_whole_numbers_are_embedded_in_a_stacked_model(columns):
    graphs = random_graphs(edges=columns, whole=True)
    model = fit(SMALL["pna stacked"], graphs)
    assert model.arguments["node_values"] == [3, 3]
    assert model.arguments["edge_values"] == [3] * columns
    assert model.arguments["edge_columns"] == columns
    build(model)(whole_batch(graphs.split("train")))


def test_values_of_a_dictionary_from_which_few_occur():
    """Are those of the metadata, or of the model's own arguments, if they are as many as occur."""
    graphs = random_graphs(edges=1, whole=True)
    declared = replace(graphs, metadata={"node_values": [28, 4], "edge_values": [9]})
    model = fit(SMALL["pna stacked"], declared)
    assert model.arguments["node_values"] == [28, 4] and model.arguments["edge_values"] == [9]
    own = with_arguments(SMALL["pna stacked"], node_values=(5, 3))
    assert fit(own, declared).arguments["node_values"] == [5, 3]
    for values in ([28], [28, 2]):
        with pytest.raises(ValueError, match=r"got node_values=.*, expected at least \[3, 3\]"):
            fit(SMALL["pna stacked"], replace(graphs, metadata={"node_values": values}))


def test_numbers_beside_kinds():
    """Kinds are what the metadata or the arguments say, whatever the type of the features."""
    graphs = with_walks(random_graphs(edges=1, whole=True), 3, edge_steps=2)
    model = fit(SMALL["pna stacked"], graphs)
    assert model.arguments["node_values"] == [3, 3, 0, 0, 0]
    assert model.arguments["edge_values"] == [3, 0, 0] and model.in_channels == 5
    build(model)(whole_batch(graphs.split("train")))
    seen = {"node": graphs.split("train").x, "edge": graphs.split("train").edge_attr}
    for what, columns in seen.items():  # of training alone; a step leads back to no node
        means, deviations = zip(*model.arguments[f"{what}_scales"], strict=True)
        np.testing.assert_allclose(means, columns.numpy().mean(0), rtol=1e-4, atol=1e-6)
        expected = columns.numpy().std(0)
        np.testing.assert_allclose(deviations, np.where(expected > 0, expected, 1), rtol=1e-4)
    assert "node_scales" not in fit(SMALL["pna stacked"], random_graphs(whole=True)).arguments
    own = with_arguments(SMALL["pna stacked"], node_values=(7, 3, 0, 0, 0))
    assert fit(own, graphs).arguments["node_values"] == [7, 3, 0, 0, 0]
    numbers = with_arguments(SMALL["pna stacked"], node_values=(0,) * 5)
    assert fit(numbers, graphs).arguments["node_values"] == []
    odd = with_arguments(SMALL["pna stacked"], node_values=(3, 3, 1, 0, 0))
    with pytest.raises(
        ValueError, match="in the node feature 'return after 1', expected categories"
    ):
        fit(odd, replace(graphs, x=graphs.x + torch.tensor([0, 0, 0.5, 0, 0])))
    for name in ("pna recurrent", "pna standard"):
        with pytest.raises(ValueError, match="use the architecture 'stacked'"):
            fit(SMALL[name], graphs)


def test_real_edge_features():
    graphs = random_graphs(edges=2)
    stacked, recurrent = (fit(SMALL[n], graphs) for n in ("pna stacked", "gin recurrent"))
    assert stacked.arguments["edge_values"] == [] and stacked.arguments["edge_columns"] == 2
    assert recurrent.arguments["edge_dim"] == 2
    for model in (stacked, recurrent):
        build(model)(whole_batch(graphs.split("train")))


@pytest.mark.parametrize("edges", [0, 2], ids=["no edge features", "edge features"])
@pytest.mark.parametrize("name", ["pna stacked", "pna recurrent"])
def test_edge_features_can_be_left_out(name, edges):
    graphs = random_graphs(edges=edges)
    model = fit(with_arguments(SMALL[name], edges=False), graphs)
    assert not {"edges", "edge_dim", "edge_columns"} & set(model.arguments)
    batch = whole_batch(graphs.split("train"))
    without = build(model, 0)(replace(batch, edge_attr=None))
    torch.testing.assert_close(vars(build(model, 0)(batch)), vars(without))


@pytest.mark.parametrize(
    ("name", "graphs", "message"),
    [
        ("pna recurrent", random_graphs(whole=True), "features are whole numbers for a recurrent"),
        ("pna standard", random_graphs(whole=True), "use the architecture 'stacked'"),
    ],
)
def test_whole_numbers_are_refused_elsewhere(name, graphs, message):
    with pytest.raises(ValueError, match=message):
        fit(SMALL[name], graphs)


def test_kinds_of_edges_are_refused_elsewhere():
    graphs = random_graphs(edges=1)
    whole = replace(graphs, edge_attr=torch.zeros(graphs.num_edges, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="leave them out with edges=False"):
        fit(SMALL["gin recurrent"], whole)


def test_kinds_below_zero_are_refused():
    graphs = random_graphs(whole=True)
    with pytest.raises(ValueError, match="in the node feature '1', expected categories 0, 1, 2"):
        fit(SMALL["pna stacked"], replace(graphs, x=graphs.x - torch.tensor([0, 1])))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ModelSettings("gni"), "unknown convolution 'gni'; did you mean 'gin'"),
        (ModelSettings("pna", "stackd"), "did you mean 'stacked'"),
    ],
)
def test_unknown_names_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        fit(model, random_graphs())


def test_nodes_without_features_are_refused():
    graphs = GraphSet.from_arrays([2], np.array([[0], [1]]), [1], y_graph=np.ones((1, 1)))
    with pytest.raises(ValueError, match="give every node a 1"):
        fitted(ModelSettings(), graphs, tasks_of(graphs))


@pytest.mark.parametrize("name", [name for name, kind in CONVOLUTIONS.items() if not kind.edges])
@pytest.mark.parametrize("architecture", ["stacked", "recurrent"])
def test_edge_features_without_a_place_for_them_are_refused(name, architecture):
    model, graphs = ModelSettings(name, architecture, 4), random_graphs(edges=2)
    with pytest.raises(ValueError, match=rf"edge features for '{name}'.*\(--no-edges\).*pna, "):
        fit(model, graphs)
    build(fit(with_arguments(model, edges=False), graphs))


def test_weights_without_a_seed_are_those_of_the_first():
    model = fit(SMALL["pna stacked"], random_graphs())
    torch.manual_seed(5)  # which is another's
    usual, first = build(model).state_dict(), build(model, 0).state_dict()
    assert all(torch.equal(usual[name], first[name]) for name in first)
