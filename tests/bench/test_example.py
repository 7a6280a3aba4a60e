"""PyG's example trains with our layer as with PyG's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pna.bench import example
from pna.bench.layer_cases import has_pyg
from pna.cli import app
from pna.nn import PNAConv

pytestmark = pytest.mark.skipif(not has_pyg(), reason="needs PyG: pip install 'pna[pyg]'")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "_SMALL", 10)
    monkeypatch.setattr(example, "BATCH", 4)


def test_an_epoch_is_that_of_pyg() -> None:
    """In float64, in which the order of sums does not matter."""
    splits = example.small_splits()
    for graphs in splits.values():
        for graph in graphs:
            graph.y = graph.y.double()
    pyg = example._model(splits["train"]).double()
    ours = example._with_layers(pyg, PNAConv.from_pyg)
    found = []
    for model in (pyg, ours):
        epochs = example._epochs(model, splits, torch.device("cpu"))
        torch.manual_seed(0)
        found.append([next(epochs), next(epochs)])
    for theirs, own in zip(*found, strict=True):
        assert own.loss == pytest.approx(theirs.loss, rel=1e-6)
        assert own.validation == pytest.approx(theirs.validation, rel=1e-6)
        assert 0 < own.training < own.seconds


def test_the_loader_joins_the_columns_of_zinc_only() -> None:
    for graphs in example.small_splits().values():
        for graph in graphs:
            assert sorted(graph.keys()) == ["edge_attr", "edge_index", "x", "y"]


def test_everything_is_printed_and_written(tmp_path: Path) -> None:
    path = tmp_path / "example.csv"
    asked = ["bench", "example", "--device", "cpu", "--small", "--epochs", "1"]
    result = CliRunner().invoke(app, [*asked, "--out", str(path)])
    assert result.exit_code == 0, result.output
    with path.open(newline="") as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert list(rows) == [example.PYG, example.OURS, example.FREE]
    assert {row["case"] for row in rows.values()} == {"small example"}
    assert rows["pna"]["parameters"] == rows["PyG"]["parameters"]
    assert float(rows["PyG"]["faster"]) == 1
    for row in rows.values():
        assert float(row["training_ms"]) < float(row["ms"])
        assert row["torch"] and row["measured"]
    assert "seconds per epoch" in result.output


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PNA_DATA", raising=False)
    asked = ["bench", "example", "--device", "cpu", "--runs", str(tmp_path)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1
    assert "no graphs" in result.output
