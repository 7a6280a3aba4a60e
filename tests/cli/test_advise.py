"""`pna advise`, and what `pna reproduce` computes without training."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pna import GraphSet
from pna.cli import advise, app, theory


def run(*arguments: object):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x, edge_index = rng.normal(size=(60, 1)), rng.integers(0, 60, (2, 200))
    path = tmp_path / "mine.safetensors"
    GraphSet.from_arrays([60], edge_index, [200], x=x, node_features=["height"]).save(path)
    return path


def test_a_recommendation_and_its_numbers(data: Path) -> None:
    done = run("advise", data)
    assert done.exit_code == 0, done.output
    for words in ("identity", "distinct neighbourhoods merged", "height", "in-degree", "δ",
                  "mean, std, max, min", "moments, scaled"):  # fmt: skip
        assert words in done.output


def test_json_is_one_object(data: Path) -> None:
    done = run("advise", data, "--json", "--grid", 0.5)
    found = json.loads(done.stdout)
    assert found["grid"] == 0.5
    assert {"recommended", "sets", "moments", "degrees", "delta", "reasons"} <= set(found)


def test_quiet_is_the_recommendation_alone(data: Path) -> None:
    done = run("advise", data, "--quiet")
    assert len(done.output.strip().splitlines()) == 1
    found = json.loads(run("advise", data, "--json").stdout)["recommended"]
    assert done.output.strip() == (
        f"{', '.join(found['aggregators'])} × {', '.join(found['scalers'])}"
    )


def test_a_figure_is_drawn_where_asked(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "advice.svg"
    done = run("advise", data, "--figure", figure)
    assert done.exit_code == 0, done.output
    assert "<svg" in figure.read_text()
    assert "advice.svg" in done.output


def test_errors_name_the_file_and_a_remedy(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        "expected a number above 0": ("--grid", 0),
        "ends in .svg": ("--figure", "a.png"),
        "graphs without a split": ("--split", "train"),
    }
    for words, options in cases.items():
        done = run("advise", data, *options)
        assert done.exit_code == 1
        assert words in done.output
    assert "mine.safetensors" in run("advise", data, "--grid", 0).output
    assert run("advise", data.with_name("none.safetensors")).exit_code == 1
    monkeypatch.setattr(advise, "find_spec", lambda name: None)
    assert "pip install 'pna[plot]'" in run("advise", data, "--figure", "a.svg").output


def test_failures_are_reproduced(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("reproduce", "failures", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "{0, 0, 1} {0, 1, 1}" in done.output
    assert (tmp_path / "failures" / "failures.svg").exists()


@pytest.mark.slow
def test_theory_is_reproduced(tmp_path: Path) -> None:
    """Searches for collisions and draws four figures."""
    pytest.importorskip("matplotlib")
    done = run("reproduce", "theory", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    for statement in ("Theorem 1", "Proposition 1", "Theorem 2", "after N/2 layers"):
        assert statement in done.output
    names = {path.name for path in (tmp_path / "theory").iterdir()}
    assert names == {"theorem-1.svg", "proposition-1.svg", "theorem-2.svg", "scalers.svg"}


def test_they_are_listed_and_need_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = run("reproduce", "--list").output
    assert "failures" in listed and "theory" in listed
    monkeypatch.setattr(theory, "find_spec", lambda name: None)
    done = run("reproduce", "theory")
    assert done.exit_code == 1
    assert "pip install 'pna[plot]'" in done.output
