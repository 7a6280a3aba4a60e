"""Features of whole graphs, from the graph set to predictions and exported programs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.architectures import ARCHITECTURES
from pna.train.defaults import model_for
from pna.train.models import build, fitted
from pna.train.prediction import predict
from pna.train.program import Program
from pna.train.run import Config, load
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import tasks_of
from tests.train.cases import SMALL, Alone, assert_near, random_graphs, trainer_of, with_arguments
from tests.train.programs import assert_as_expected, expected, inputs_of
from tests.train.small_runs import molecules, small_run

#: A feature like any other, one that never changes, one with outliers, one that is often missing.
NAMES = ("plain", "constant", "wild", "rare", "empty")


def described(graphs, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(len(graphs), len(NAMES), generator=random) * 3 + 10
    x[:, 1], x[:, 4] = 2.0, torch.nan
    x[3, 2], x[4, 2] = 1e30, torch.inf
    x[::3, 3] = torch.nan
    return replace(graphs, x_graph=x, graph_features=NAMES)


def definition(model, x, scales):
    """Number by number: standardised, clipped, the mean if it is not finite; then the layer."""
    clean = []
    for row in x.double().tolist():
        numbers = [(v - mean) / deviation for v, (mean, deviation) in zip(row, scales, strict=True)]
        clean.append([max(-5.0, min(5.0, v)) if abs(v) < float("inf") else 0.0 for v in numbers])
    layer = model.embed_graph.lin
    return torch.relu(torch.tensor(clean, dtype=layer.weight.dtype) @ layer.weight.t() + layer.bias)


def test_scales_are_those_of_finite_numbers():
    graphs = described(random_graphs())
    training = graphs.split("train")
    found = fitted(SMALL["pna stacked"], training, tasks_of(graphs), graphs)
    scales = np.array(found.arguments["graph_scales"])
    given = training.x_graph.double().numpy()
    for column in (0, 3):
        own = given[:, column][np.isfinite(given[:, column])]
        np.testing.assert_allclose(scales[column], (own.mean(), own.std()), rtol=1e-12)
    assert scales[1].tolist() == [2, 1] and scales[4].tolist() == [0, 1]
    assert np.isfinite(scales).all() and found.graph_features == len(NAMES)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"readout": "set2set", "graph_width": 3}, {"virtual_node": True, "readout": "max"}],
    ids=["sum", "set2set", "virtual node"],
)
def test_the_head_sees_them_beside_the_readout(arguments):
    graphs = described(random_graphs())
    settings = replace(with_arguments(SMALL["pna stacked"], **arguments), hidden=16)
    full = fitted(settings, graphs.split("train"), tasks_of(graphs))
    model = build(full).double().eval()
    seen = []
    model.graph_head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    batch = graphs.batch()
    found = model(batch)
    own = definition(model, batch.x_graph, full.arguments["graph_scales"])
    assert own.shape[1] == arguments.get("graph_width", 16)
    torch.testing.assert_close(seen[0][:, -own.shape[1] :], own, rtol=1e-5, atol=1e-5)
    other = model(replace(batch, x_graph=batch.x_graph.flip(0)))
    assert torch.equal(other.node, found.node)  # which do not see them
    assert not torch.allclose(other.graph, found.graph)


def test_order_and_padding_do_not_matter():
    graphs = described(random_graphs())
    model = build(fitted(SMALL["pna stacked"], graphs, tasks_of(graphs))).double().eval()
    ids = [4, 0, 3, 9]
    together = model(graphs.batch(ids)).graph
    for row, graph in zip(together, ids, strict=True):
        torch.testing.assert_close(row, model(graphs.batch([graph])).graph[0])
    nodes, edges = int(graphs.sizes[ids].sum()), int(graphs.edge_counts[ids].sum())
    filled = torch.tensor([*ids, -1, -1])
    padded = PaddedBatches(graphs).batch(filled, Shape(6, nodes + 3, edges + 5))
    torch.testing.assert_close(model(padded).graph[: len(ids)], together)


def test_training_of_a_population_is_training_of_each():
    """Padded or not, with dropout of the features."""
    graphs = described(random_graphs(train=11))
    model = with_arguments(SMALL["pna stacked"], dropout=0.2, graph_dropout=0.3)
    settings = Settings(members=2, batch_size=4, lr=(1e-2,), epochs=5, patience=None)
    plain, padded = (trainer_of(graphs, model, settings, pad=pad) for pad in (False, True))
    alone = Alone(graphs, model, settings, 1)
    for epoch in range(2):
        training, validation = plain.run_epoch(epoch)
        for got, of_alone in zip((training[1], validation[1]), alone.run_epoch(epoch), strict=True):
            assert_near(got, of_alone, 1e-8)
        for got, of_plain in zip(padded.run_epoch(epoch), (training, validation), strict=True):
            assert_near(got, of_plain, 1e-8)
    assert_near(padded.population.flat, plain.population.flat, 1e-7)


@pytest.mark.gpu
def test_captured_steps_are_the_steps():
    graphs = described(random_graphs(train=23, validation=7))
    model = with_arguments(SMALL["pna stacked"], graph_dropout=0.3)
    settings = Settings(members=3, batch_size=5, lr=(1e-2,), epochs=5, patience=None)
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, model, settings, **options)
    called = trainer_of(graphs, model, settings, capture=False, pad=True, **options)
    for epoch in range(3):
        got, wanted = captured.run_epoch(epoch)[0], called.run_epoch(epoch)[0]
        assert torch.equal(got, wanted)
    assert torch.equal(captured.population.flat, called.population.flat)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(described(molecules()), tmp_path_factory.mktemp("runs") / "run", epochs=1)


def test_predictions_need_them(run):
    graphs = described(molecules())
    found = predict(run, graphs, device="cpu").graph["size"]
    other = predict(run, described(molecules(), seed=1), device="cpu").graph["size"]
    assert len(found) == len(graphs) and not np.allclose(found, other)
    with pytest.raises(ValueError, match=r"got graphs with 0 graph features \('plain'.* missing"):
        predict(run, molecules(), device="cpu")
    with pytest.raises(ValueError, match="got 'empty' as graph feature 0, expected 'plain'"):
        predict(run, replace(graphs, graph_features=NAMES[::-1]), device="cpu")
    with pytest.raises(ValueError, match="got a batch without graph features"):
        load(run)(molecules().batch())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_they_can_be_left_out(architecture):
    graphs = described(random_graphs())
    tasks = tasks_of(graphs)
    without = model_for(graphs, "gin", {"architecture": architecture, "graph_features": False})
    model = fitted(without, graphs.split("train"), tasks)
    assert model.graph_features == 0
    assert "embed_graph.lin.weight" not in build(model).state_dict()
    able = architecture == "stacked"
    used = model_for(graphs, "gin", {"architecture": architecture})
    if able:
        assert fitted(used, graphs.split("train"), tasks).graph_features == len(NAMES)
    else:
        with pytest.raises(ValueError, match=rf"for a {architecture} model.*--no-graph-features"):
            fitted(used, graphs.split("train"), tasks)


def test_targets_of_nodes_do_without():
    graphs = described(random_graphs())
    tasks = tasks_of(graphs, chosen=["a"])
    for architecture in ARCHITECTURES:
        model = fitted(ModelSettings("gin", architecture, 4), graphs.split("train"), tasks)
        assert model.graph_features == 0


def test_exported_programs_take_them():
    graphs = described(molecules())
    tasks = tuple(tasks_of(graphs, {"active": "bce", "kind": "cross_entropy", "size": "mse"}))
    settings = ModelSettings("gin", "stacked", 8, arguments={"layers": 2, "edges": False})
    config = Config({}, fitted(settings, graphs.split("train"), tasks), tasks, Settings())
    program = Program([build(config.model).eval()], config)
    ids = [1, 2, 20]
    assert program.inputs["x_graph"].shape == ("graphs", len(NAMES))
    given = inputs_of(program, graphs, ids)
    with torch.no_grad():
        found = {name: values.numpy() for name, values in program(**given).items()}
    assert_as_expected(found, expected(program, graphs, ids))
