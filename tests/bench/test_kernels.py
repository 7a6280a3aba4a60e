"""Each fast path switched off in turn: what is measured, and what is kept of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pna import fast_paths
from pna.bench import kernels
from pna.bench.kernels import NONE, Row, known_paths, measure, rows, write
from pna.bench.real_world import trial_of
from pna.bench.synthetic import synthetic
from pna.cli import app
from pna.fast_paths import FAST_PATHS


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels._SAMPLE, "cpu", 0.0)


def asking(*names: str, broken: str = "") -> Row:
    """A row that asks for these paths, and fails without one of them."""

    def work() -> None:
        for name in names:
            if not fast_paths.is_on(name) and name == broken:
                raise RuntimeError("no such luck")

    return Row("made", lambda device: lambda: work)


def measured(row: Row, **arguments: Any) -> dict[str, kernels.PathResult]:
    results = measure(row, "cpu", repeats=1, log=lambda _: None, **arguments)
    assert results is not None
    return {result.path: result for result in results}


def test_paths_that_a_row_takes_are_measured_and_no_others() -> None:
    found = measured(asking("set2set_cpu", "cpu", "gru"))  # the kernel of the GRU is not for a CPU
    assert list(found) == ["cpu", "set2set_cpu", NONE]
    result = found["cpu"]
    assert result.ms_on and result.ms_off and result.gain == result.ms_off / result.ms_on
    assert found[NONE].ms_off is None and found[NONE].gain is None


def test_patterns_choose_paths_and_leave_the_row_incomplete() -> None:
    assert list(measured(asking("set2set_cpu", "cpu"), paths=["set2set*"])) == ["set2set_cpu"]


def test_a_path_that_fails_has_a_note_and_the_others_their_times() -> None:
    found = measured(asking("set2set_cpu", "cpu", broken="cpu"))
    assert found["cpu"].ms_off is None and "no such luck" in found["cpu"].note
    assert found["set2set_cpu"].ms_off is not None


def test_a_row_that_fails_gives_nothing() -> None:
    def prepare(device: torch.device) -> Any:
        raise RuntimeError("no memory")

    messages: list[str] = []
    assert measure(Row("made", prepare), "cpu", log=messages.append) is None
    assert "no memory" in messages[0]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    path, row = tmp_path / "folder" / "kernels.csv", asking("set2set_cpu", "cpu")
    write(path, list(measured(row, paths=["set2set*"]).values()))
    assert known_paths(path, row, "cpu") == {"set2set_cpu"}
    write(path, list(measured(row, known=known_paths(path, row, "cpu")).values()))
    assert known_paths(path, row, "cpu") == {"set2set_cpu", "cpu", NONE}
    write(path, list(measured(row).values()))  # in place of those before
    with path.open(newline="") as file:
        assert [line["path"] for line in csv.DictReader(file)] == ["cpu", "set2set_cpu", NONE]


def test_results_of_another_commit_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, row = tmp_path / "kernels.csv", asking("cpu")
    monkeypatch.setenv("PNA_COMMIT", "one")
    write(path, list(measured(row).values()))
    assert known_paths(path, row, "cpu") == {"cpu", NONE}
    monkeypatch.setenv("PNA_COMMIT", "other")
    assert known_paths(path, row, "cpu") == set()


def test_rows_have_names_of_their_own_and_say_that_graphs_are_synthetic(tmp_path: Path) -> None:
    names = [row.name for row in rows("cpu", tmp_path)]
    assert len(set(names)) == len(names)
    assert "layer/layer" in names and "zinc/gat, synthetic graphs" in names
    synthetic("zinc", 4).save(tmp_path / "zinc.safetensors")
    names = [row.name for row in rows("cpu", tmp_path)]
    assert "zinc/gat" in names and "cifar10/gat, synthetic graphs" in names


@pytest.mark.parametrize("experiment", ["zinc", "molhiv", "mnist", "cifar10"])
def test_synthetic_graphs_are_like_those_of_a_benchmark(experiment: str) -> None:
    graphs = synthetic(experiment, 20)
    assert len(graphs) == 20 and graphs.metadata["benchmark"] == experiment
    nodes = graphs.num_nodes / len(graphs)
    expected = {"zinc": 23.2, "molhiv": 25.5, "mnist": 70.6, "cifar10": 117.6}[experiment]
    assert nodes == pytest.approx(expected, rel=0.15)


def test_every_row_of_an_experiment_is_one_of_its_models() -> None:
    for name in kernels._OF_BASELINES:
        for variant in ("gated-gcn", "gated-gcn edges", *kernels._MORE_ROWS):
            assert trial_of(name, variant, 1).variant.name == variant


def test_the_command_measures_writes_and_goes_on(tmp_path: Path) -> None:
    """Trains two small models without each of their fast paths, which takes some seconds."""
    command = ["bench", "kernels", "--device", "cpu", "--small", "--repeats", "1"]
    command += ["--out", str(tmp_path / "kernels.csv"), "--runs", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--rows", "small layer,small zinc"])
    assert done.exit_code == 0, done.output
    with (tmp_path / "kernels.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["row"] for line in lines} == {"small layer", "small zinc"}
    assert {line["path"] for line in lines} <= {*FAST_PATHS, NONE}
    assert not any(line["note"] for line in lines)
    again = CliRunner().invoke(app, [*command, "--rows", "small layer"])
    assert "measured before" in again.output


def test_the_command_lists_rows_and_paths() -> None:
    done = CliRunner().invoke(app, ["bench", "kernels", "--device", "cpu", "--list"])
    assert done.exit_code == 0 and "zinc/gat" in done.output
    assert all(name in done.output for name in FAST_PATHS)


def test_unknown_rows_and_paths_are_refused() -> None:
    for option in ("--rows", "--paths"):
        command = ["bench", "kernels", "--device", "cpu", option, "nothing"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2 and "--list" in done.output


def test_a_row_is_chosen_by_its_name_with_commas() -> None:
    name = "real-world/zinc, 1 member, synthetic graphs"
    command = ["bench", "kernels", "--device", "cpu", "--runs", "none", "--list", "--rows", name]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert next(line for line in done.output.splitlines() if "/" in line).strip() == name
    assert "zinc/gat" not in done.output
