import io
import json
import re
import subprocess
import sys
import warnings
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from pna.cli import app, demo, shared
from pna.cli.doctor import show
from pna.doctor import Backend, Gpu, Package, diagnose
from pna.paper.demo import MODELS

run = CliRunner().invoke


def test_no_command_shows_the_commands() -> None:
    result = run(app, [])
    assert "doctor" in result.output
    assert "demo" in result.output


def test_version(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"pna \d+\.\d+\.\d+\S*\n", result.output)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    result = run(app, ["--version"])
    assert result.exit_code == 0 and "not installed" in result.output


def test_python_dash_m() -> None:
    """A process of its own imports torch."""
    done = subprocess.run(
        [sys.executable, "-m", "pna", "--help"], capture_output=True, text=True, check=True
    )
    assert "doctor" in done.stdout


def test_brackets_in_help_are_printed() -> None:
    assert "Needs pna[chem]" in " ".join(run(app, ["data", "molhiv", "--help"]).output.split())


@pytest.mark.parametrize("rank, waits", [("0", []), ("1", [5.0])])
def test_of_many_processes_the_first_tells_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, waits: list
) -> None:
    """The others wait, to be ended by torchrun; an error of their own they tell then."""
    waited: list[float] = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(shared.time, "sleep", waited.append)
    with pytest.raises(typer.Exit), shared.errors():
        warnings.warn("odd", stacklevel=1)
        raise ValueError("got none")
    said = capsys.readouterr().err
    assert waited == waits and "error: got none" in said
    assert ("warning: odd" in said) == (rank == "0")


def test_names_that_rich_would_replace_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A class may be called a:b:c, and a folder [red]."""
    name = "a:b:c [red]:smile:"
    shared.print_error(name)
    shared.print_line(shared.make_console(), name)
    found = capsys.readouterr()
    assert found.err == found.out == f"{name}\n"


def test_doctor_prints_json() -> None:
    result = run(app, ["doctor", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(json.dumps(asdict(diagnose())))


def test_doctor_prints_for_people() -> None:
    report = replace(
        diagnose(),
        gpus=(Gpu("a card", "9.0", 80 * 2**30),),
        backends=(
            Backend("reference", "any device", None, "torch stands in for [x].c"),
            Backend("cpu", "CPU", "no [cc] here"),
        ),
        packages=(Package("matplotlib", None, "figures", "pip install 'pna[plot]'"),),
    )
    out = io.StringIO()
    show(report, Console(file=out, width=120))
    printed = out.getvalue()
    assert "a card, compute capability 9.0, 80 GiB" in printed
    assert "no: no [cc] here" in printed
    assert "yes, but torch stands in for [x].c" in printed
    assert "figures: pip install 'pna[plot]'" in printed


@pytest.mark.slow
def test_demo_trains_draws_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains six models for an epoch."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    asked = ["demo", "--out", str(tmp_path), "--epochs", "1", "--graphs", "8", "--workers", "1"]
    mine = tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    with monkeypatch.context() as fewer:
        for name in reversed(list(MODELS)[1:]):  # so that they return in their order
            fewer.delitem(MODELS, name)
        assert run(app, asked).exit_code == 0
    result = run(app, asked)  # in place of the first
    assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {
        "multitask.safetensors", "runs", "comparison.svg", "failures.svg", "failures.png",
        "index.html",
    }  # fmt: skip
    models = {"pna", "mpnn-sum", "mpnn-max", "gat", "gcn", "gin"}
    assert set(MODELS) == models
    assert {path.name for path in (tmp_path / "runs").iterdir()} == models | {"mine"}
    assert "{0, 0, 1} {0, 1, 1}" in result.output
    assert "6 of 6 epochs" in result.output
    for row in ("PNA", "MPNN (sum)", "GAT", "the mean"):
        assert row in result.output
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == 2 and "MPNN (max)" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)  # needs no network


def test_demo_refuses_a_file_where_its_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    result = run(app, ["demo", "--out", str(tmp_path / "file" / "demo")])
    assert result.exit_code == 1
    assert "file is not a folder, expected one" in result.output
    assert (tmp_path / "file").read_text() == "kept"


def test_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = run(app, ["demo"])
    assert result.exit_code == 1
    assert "pip install 'pna[plot]'" in result.output
