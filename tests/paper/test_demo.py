from pathlib import Path

import numpy as np
import pytest

from pna.data.describe import describe
from pna.paper import demo
from pna.paper.demo import compare, make_graphs
from pna.train.evaluation import evaluate


@pytest.mark.slow
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
    for model in ("gcn", "mpnn-max"):
        a, b = (scores.average(model, "test", None).values for scores in (one, two))
        assert a == pytest.approx(b, abs=0.02)  # Adam's first steps are of signs
    targets = describe(graphs).targets
    assert one.tasks == tuple(target.name for target in targets)
    baseline = [target.baseline["test"] for target in targets]
    assert np.log10(one.baseline["test"]) == pytest.approx(baseline)


def test_errors_are_those_of_the_best_weights(tmp_path: Path) -> None:
    data = tmp_path / "graphs.safetensors"
    make_graphs(data, 8)
    found = demo._train("gcn", data, tmp_path / "gcn", 2, lambda *_: None)
    tasks = evaluate(tmp_path / "gcn", data, "test", device="cpu").tasks
    assert found.errors["test"].T.tolist() == [task.scaled["mse"] for task in tasks]
    assert found.errors["test"].shape == (demo.MEMBERS, 6)
