"""Predictions are those of the models, in the units of the targets."""

import csv
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch

import pna
from pna.data.laplacian import with_laplacian
from pna.data.table import Table
from pna.data.walks import with_walks
from pna.train import Run, predict, predict_table, prediction, train
from pna.train.prediction import Ensemble
from pna.train.settings import ModelSettings, Settings
from tests.train.small_runs import molecules, small_multitask, small_run

LOSSES = {"active": "bce", "kind": "cross_entropy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def multitask_run(folder):
    return small_run(small_multitask(), folder / "multitask", batch_size=3)


@pytest.fixture(scope="module")
def molecules_run(folder):
    return small_run(molecules(), folder / "molecules", loss=LOSSES, batch_size=5)


def test_numbers_are_the_mean_of_the_models_times_the_scale(multitask_run):
    graphs = small_multitask()
    found = predict(multitask_run, graphs)
    models = [pna.load(multitask_run, member) for member in (0, 1)]
    with torch.no_grad():
        given = [model(graphs.batch()) for model in models]
    for i, name in enumerate(graphs.node_targets):
        mean = (given[0].node + given[1].node)[:, i] / 2 * graphs.node_scale[i]
        np.testing.assert_allclose(found.node[name], mean, rtol=1e-4, atol=1e-5)
    for i, name in enumerate(graphs.graph_targets):
        mean = (given[0].graph + given[1].graph)[:, i] / 2 * graphs.graph_scale[i]
        np.testing.assert_allclose(found.graph[name], mean, rtol=1e-4, atol=1e-5)


def test_deviations_are_those_of_the_members(multitask_run, molecules_run):
    for run, graphs, names in (
        (multitask_run, small_multitask(), ("connected", "diameter", "spectral_radius")),
        (molecules_run, molecules(), ("active", "size")),  # not of the classes
    ):
        found = predict(run, graphs).spread["graph"]
        assert [*found] == [f"{name}_std" for name in names]
        of_members = [predict(run, graphs, member).graph for member in (0, 1)]
        for name in names:
            first, second = (columns[name] for columns in of_members)
            assert abs(first - second).max() > 0
            expected = abs(first - second) / 2  # of two numbers
            np.testing.assert_allclose(found[f"{name}_std"], expected, rtol=1e-4, atol=1e-6)
    assert not any(predict(multitask_run, small_multitask(), 1).spread.values())


def test_batches_are_as_in_training_or_larger(molecules_run, monkeypatch):
    graphs, sizes = molecules(), []
    own = prediction.Batches
    monkeypatch.setattr(
        prediction,
        "Batches",
        lambda g, step, size, **k: sizes.append(size) or own(g, step, size, **k),
    )
    large = predict(molecules_run, graphs).graph
    monkeypatch.setattr(prediction, "_STATES", 0)
    small = predict(molecules_run, graphs).graph
    assert sizes[1] == 5 < len(graphs) < sizes[0]
    for name, values in large.items():
        np.testing.assert_allclose(values, small[name], rtol=1e-4, atol=1e-5)


def test_one_member_and_one_split(multitask_run):
    graphs = small_multitask()
    found = predict(multitask_run, graphs, 1, split="test")
    part = graphs.split("test")
    with torch.no_grad():
        given = pna.load(multitask_run, 1)(part.batch())
    np.testing.assert_allclose(
        found.graph["diameter"], given.graph[:, 1] * graphs.graph_scale[1], rtol=1e-4, atol=1e-5
    )
    assert found.graph_ids.tolist() == list(range(len(graphs) - len(part), len(graphs)))


def test_what_has_no_probabilities_has_no_class(molecules_run, monkeypatch):
    """And is not taken for the first."""
    graphs, outputs = molecules(), Ensemble.outputs

    def broken(models, graphs, slice_nodes):
        found = outputs(models, graphs, slice_nodes)
        found["graph"][:, 1] = np.nan
        return found

    whole = predict(molecules_run, graphs).graph["kind"]
    monkeypatch.setattr(Ensemble, "outputs", broken)
    found = predict(molecules_run, graphs).graph["kind"]
    assert np.isnan(found[1]) and found[[0, 2]].tolist() == whole[[0, 2]].tolist()


def test_probabilities_and_classes(molecules_run):
    graphs = molecules()
    found = predict(molecules_run, graphs, 0)
    with torch.no_grad():
        given = pna.load(molecules_run, 0)(graphs.batch()).graph
    assert set(found.graph) == {"active", "kind", "kind=0", "kind=1", "kind=2", "size"}
    np.testing.assert_allclose(found.graph["active"], given[:, 0].sigmoid(), rtol=1e-4)
    classes = given[:, 1:4].softmax(1)
    np.testing.assert_allclose(found.graph["kind=2"], classes[:, 2], rtol=1e-4)
    assert found.graph["kind"].tolist() == classes.argmax(1).tolist()


def test_diameters_are_found(folder):
    graphs = small_multitask()
    run = small_run(graphs, folder / "deep", model={"depth": "diameter"}, members=1, epochs=1)
    assert np.isfinite(predict(run, graphs).graph["connected"]).all()


def test_a_limit_on_the_size_of_files_leaves_the_predictions_there(tmp_path):
    path, count = tmp_path / "out.csv", 1000
    path.write_text("before")
    numbers = np.arange(count)
    found = prediction.Predictions(numbers, numbers, {}, {"y": numbers / 7})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write .*out\.csv .*ulimit -f"):
            found.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_saves_graphs_and_nodes(multitask_run, tmp_path):
    graphs = small_multitask()
    found = predict(multitask_run, graphs, split="validation")
    written = found.save(tmp_path / "out.csv")
    assert written == [tmp_path / "out.csv", tmp_path / "out-nodes.csv"]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    of_graph, of_node = (list(csv.DictReader(path.open())) for path in written)
    deviations = [f"{name}_std" for name in graphs.graph_targets]
    assert list(of_graph[0]) == ["graph", *graphs.graph_targets, *deviations]
    deviations = [f"{name}_std" for name in graphs.node_targets]
    assert list(of_node[0]) == ["graph", "node", *graphs.node_targets, *deviations]
    assert [int(row["graph"]) for row in of_graph] == found.graph_ids.tolist()
    assert [(row["graph"], row["node"]) for row in of_node[5:7]] == [("16", "5"), ("17", "0")]
    np.testing.assert_allclose(
        [float(row["sssp"]) for row in of_node], found.node["sssp"], rtol=1e-8
    )


def test_members_that_broke_before_they_were_validated_are_left_out(folder):
    graphs = small_multitask()
    run = small_run(graphs, folder / "broken", members=3, lr=(1e-3, 1e38, 1e-3), epochs=1,
                    batch_size=4)  # fmt: skip
    assert run.summary["broken"] == [False, True, False]
    assert Ensemble.of(run).members == [0, 2]
    both = [predict(run, graphs, member).graph["diameter"] for member in (0, 2)]
    np.testing.assert_allclose(predict(run, graphs).graph["diameter"], np.mean(both, 0), rtol=1e-5)


def test_no_graphs(multitask_run):
    found = predict(multitask_run, small_multitask()[:0])
    assert found.node["sssp"].shape == (0,) and found.graph["diameter"].shape == (0,)


def test_refuses_other_features(multitask_run, molecules_run):
    graphs = molecules()
    with pytest.raises(ValueError, match="0 edge features, expected the 1 that the model"):
        predict(molecules_run, replace(graphs, edge_attr=None, edge_features=()))
    with pytest.raises(ValueError, match="got 5 in node feature 0, expected 0 to 3"):
        predict(molecules_run, molecules(values=6))
    with pytest.raises(ValueError, match="node features that are not whole numbers, expected"):
        predict(molecules_run, replace(graphs, x=graphs.x + 0.5))
    predict(molecules_run, replace(graphs, x=graphs.x.float()))  # which are as whole
    narrow = small_multitask()
    narrow = replace(narrow, x=narrow.x[:, :1], node_features=("source",))
    with pytest.raises(ValueError, match=r"1 node features \('feature' missing\), expected the 2"):
        predict(multitask_run, narrow)


def test_encodings_that_graphs_lack_are_computed(tmp_path):
    graphs = molecules()
    encoded = with_laplacian(with_walks(graphs, 3, 2), 2)
    model = ModelSettings("pna", "stacked", 4, arguments={"layers": 1, "final": "none"})
    run = train(encoded, tmp_path / "run", model, Settings(members=2, epochs=1), device="cpu")
    expected = predict(run, encoded, device="cpu").graph
    found = predict(run, graphs, device="cpu").graph
    assert found.keys() == expected.keys() and len(found) > 0
    for name, numbers in found.items():
        assert np.array_equal(numbers, expected[name])


def test_refuses_columns_that_mean_something_else(multitask_run):
    graphs = small_multitask()
    swapped = replace(graphs, x=graphs.x.flip(1), node_features=("feature", "source"))
    with pytest.raises(ValueError, match=r"got 'feature' as node feature 0, expected 'source'"):
        predict(multitask_run, swapped)
    unnamed = predict(multitask_run, replace(graphs, node_features=("0", "1")))
    np.testing.assert_array_equal(unnamed.node["sssp"], predict(multitask_run, graphs).node["sssp"])
    models = Ensemble.of(multitask_run)
    known = {name: held for name, held in models.config.data.items() if name != "features"}
    older = replace(models, config=replace(models.config, data=known))
    older.outputs(swapped)  # by a run from before they were kept


def test_refuses_members_and_folders(multitask_run, tmp_path):
    with pytest.raises(ValueError, match=r"got member 2 of .*, expected one of 0 to 1"):
        predict(multitask_run, small_multitask(), 2)
    with pytest.raises(FileNotFoundError, match=r"no config\.json.*expected the folder of a run"):
        predict(tmp_path, small_multitask())
    Run(tmp_path / "begun").start(multitask_run.config, {})
    with pytest.raises(FileNotFoundError, match=r"has no best\.safetensors"):
        predict(tmp_path / "begun", small_multitask())


def test_of_a_table_nodes_are_not_predicted(multitask_run):
    table = Table("new.csv", ("smiles",), [["C"]], [2])
    with pytest.raises(ValueError, match="predict targets of nodes or edges, expected targets of"):
        predict_table(multitask_run, table)
