from pathlib import Path

import pytest

from pna.data.describe import describe
from pna.data.graphset import GraphSet
from pna.paper import demo
from pna.paper.demo import Comparison, Score, compare, errors_on, make_graphs
from pna.train.run import Run, load_population


def test_averages_are_over_tasks_and_members() -> None:
    score = Score("pna", 1.0, ((-1.0, -3.0), (-2.0, -4.0)))
    assert score.averages == [-2, -3]
    assert score.tasks == [-1.5, -3.5]
    assert score.average == -2.5
    assert Comparison(("a", "b"), (-1.0, -2.0), (score,)).baseline_average == -1.5


def test_two_processes_score_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MODELS", {"gcn": "GCN", "mpnn-max": "MPNN (max)"})
    graphs = make_graphs(tmp_path / "graphs.safetensors", 8)
    heard: set[tuple[str, int]] = set()
    one, two = (
        compare(tmp_path / "graphs.safetensors", tmp_path / str(workers), 2, workers,
                lambda *what: heard.add(what))
        for workers in (1, 2)
    )  # fmt: skip
    assert heard == {(model, epoch) for model in ("gcn", "mpnn-max") for epoch in (1, 2)}
    for a, b in zip(one.scores, two.scores, strict=True):
        assert a.model == b.model
        assert a.averages == pytest.approx(b.averages, abs=0.02)  # Adam's first steps are of signs
    assert one.baseline == tuple(t.baseline["test"] for t in describe(graphs).targets)


def test_errors_are_those_of_the_best_weights(tmp_path: Path) -> None:
    data = tmp_path / "graphs.safetensors"
    make_graphs(data, 8)
    score = demo._train("gcn", data, tmp_path / "gcn", 2, lambda *_: None)
    population, config = load_population(Run(tmp_path / "gcn"))
    again = errors_on(population, config.tasks, GraphSet.load(data).split("test"))
    assert score.errors == again
    assert (len(again), len(again[0])) == (demo.MEMBERS, 6)
