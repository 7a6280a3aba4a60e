"""The experiments on the nodes of one graph, on small graphs of the same form."""

from __future__ import annotations

import csv
import hashlib
import io

import numpy as np
import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.data import NodeGraph
from pna.data.graphset import GraphSet
from pna.data.node_benchmarks import node_benchmark
from pna.data.sources import PUBLIC, SOURCES, DataSource, File, Public
from pna.paper import nodes
from pna.paper.claims import FAILS, HOLDS, NOT_RUN, OPEN
from pna.paper.nodes import SPLITS, NodesOfGraph
from pna.paper.registry import EXPERIMENTS, GROUPS
from pna.paper.scores import Member, ScoredPopulation, Scores
from pna.paper.thresholds import reaches
from pna.train import predict
from tests.data.benchmarks import folder_of, serving


def npz(count: int = 60) -> bytes:
    """A random graph of two classes with ten splits."""
    rng = np.random.default_rng(0)
    part = np.stack([rng.permutation(count) % 4 for _ in range(SPLITS)])
    file = io.BytesIO()
    np.savez(
        file,
        node_features=rng.random((count, 3), np.float32),
        node_labels=np.arange(count) % 2,
        edges=rng.permutation(np.stack(np.triu_indices(count, 1), 1))[: 3 * count],
        train_masks=part < 2,
        val_masks=part == 2,
        test_masks=part == 3,
    )
    return file.getvalue()


@pytest.fixture
def given(monkeypatch, tmp_path):
    """A data folder with such a graph in place of both."""
    content = npz()
    monkeypatch.setenv("PNA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in GROUPS["nodes"]:
        for path in (f"nodes/{name}.npz", f"data/{name}.npz"):
            (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / path).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        file = File(f"nodes/{name}.npz", len(content), sha256)
        monkeypatch.setitem(SOURCES, name, DataSource((file,), "MIT", "somebody"))
    return tmp_path


def test_members_are_scored_on_their_own_split(given, monkeypatch) -> None:
    """From the command to the tables: area by area, from all predictions and the masks."""
    monkeypatch.chdir(given)
    monkeypatch.setattr("pna.report.drawings.draw", lambda folder: None)  # takes seconds
    told = ["reproduce", "nodes", "--quick", "--models", "gcn", "--members", "2", "--workers", "1"]
    done = CliRunner().invoke(app, [*told, "--device", "cpu"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for name in GROUPS["nodes"]:
        with (given / "quick" / name / "benchmark-full-batch" / "scores.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["population"] == "gcn"]
        assert len(rows) == 2 * 2 * 2  # splits, epochs and members
        (run,) = (given / "runs" / name).iterdir()
        graph = NodeGraph.from_npz(given / "data" / "nodes" / f"{name}.npz")
        for row in (row for row in rows if row["split"] == "test, best epoch"):
            k = int(row["member"])
            assert row["task"] == f"label of split {k}"
            found = predict(run, graph.graph_set(None), member=k, device="cpu")
            scores = found.node[f"label of split {k}=1"]
            test = graph.nodes.part("test", k).numpy()
            labels = graph.nodes.targets[0].values.numpy()
            pairs = scores[test & (labels == 1)][:, None] - scores[test & (labels == 0)]
            area = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
            assert float(row["roc_auc"]) == pytest.approx(area, abs=1e-12)
    before = done.output.count("training 1 populations of 2")
    again = CliRunner().invoke(app, [*told, "--device", "cpu", "--resume"], catch_exceptions=False)
    assert before == 2 and "training 1 populations" not in again.output
    assert "These are stored results, not trained now: gcn." in again.output


def test_every_member_learns_the_target_of_its_split() -> None:
    (trial, *_) = EXPERIMENTS["tolokers"].trials()
    assert np.array_equal(trial.settings.task_weights, 10 * np.eye(10))
    assert trial.settings.select == "roc_auc" and trial.settings.patience is None
    (trial, *_) = EXPERIMENTS["minesweeper"].trials(members=12)
    assert np.array_equal(trial.settings.task_weights[10:], 10 * np.eye(10)[:2])


def test_another_graph_is_refused(given) -> None:
    source = NodesOfGraph("tolokers")
    path = source.made(given / "runs")
    assert source.made(given / "runs") == path
    assert GraphSet.load(path).node_targets == tuple(f"label of split {k}" for k in range(10))
    path.rename(path.with_name("minesweeper.safetensors"))
    with pytest.raises(ValueError, match=r"another graph .*expected minesweeper with 10 splits"):
        NodesOfGraph("minesweeper").made(given / "runs")


def test_the_authors_file_is_downloaded(given, monkeypatch) -> None:
    (file,) = SOURCES["tolokers"].files
    published = File("data/tolokers.npz", file.size, file.sha256)
    with serving(given / "data") as address:
        monkeypatch.setitem(PUBLIC, "tolokers", Public(address, (published,)))
        assert node_benchmark("tolokers", "public").num_nodes == 60
        other = File("data/minesweeper.npz", file.size, "0" * 64)
        monkeypatch.setitem(PUBLIC, "minesweeper", Public(address, (other,)))
        with pytest.raises(ValueError, match="sha256"):
            node_benchmark("minesweeper", "public")


@pytest.mark.parametrize(("name", "sizes"), [("tolokers", (11758, 519000, 2566)),
                                             ("minesweeper", (10000, 39402, 2000))])  # fmt: skip
def test_the_published_graphs(name, sizes) -> None:
    graph = node_benchmark(name, folder_of(name))
    label = graph.nodes.target("label")
    assert (graph.num_nodes, graph.num_edges, int(label.values.sum())) == sizes
    assert graph.nodes.split is not None and graph.nodes.split.shape[1] == SPLITS


def scored(*areas: float) -> Scores:
    members = tuple(Member(k, k, 1e-3, 0.0, 0.1, 1) for k in range(len(areas)))
    own = np.where(np.eye(len(areas)) > 0, areas, np.nan)
    tasks = tuple(map(str, range(len(areas))))
    found = ScoredPopulation(members, {"test": own})
    return Scores(tasks, ("test",), {"pna": found}, {"test": np.full(len(areas), 0.5)}, "roc_auc")


def test_a_mean_over_members_that_learn_one_task_each() -> None:
    found = scored(0.8, 0.9, 1.0).mean("pna", "test", 100)
    assert found.values == (80.0, 90.0, 100.0) and found.mean == 90


@pytest.mark.parametrize(
    ("least", "outcome"),
    [(87.5, HOLDS), (87.6, OPEN), (89.9, OPEN), (91.0, OPEN), (92.4, OPEN), (92.5, FAILS)],
)
def test_a_share_that_is_reached(least: float, outcome: str) -> None:
    found = scored(0.89, 0.9, 0.91)  # the interval is 2.48 to each side
    verdict = reaches("pna", least, "test")(found)
    assert verdict.outcome == outcome
    assert verdict.because == f"90.00 ± 2.48 against {least:.2f}"
    assert reaches("gcn", least, "test")(found).outcome == NOT_RUN


def test_rows_are_trained_the_same_way() -> None:
    for name in GROUPS["nodes"]:
        trials = EXPERIMENTS[name].trials()
        assert [trial.model.convolution for trial in trials] == [*nodes._ROWS]
        assert len({str(trial.settings) for trial in trials}) == 1
        assert {trial.model.hidden for trial in trials} == {64}
