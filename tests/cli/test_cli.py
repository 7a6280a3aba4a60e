import io
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pna.cli import app, demo
from pna.cli.doctor import show
from pna.doctor import Backend, Gpu, Package, diagnose

run = CliRunner().invoke


def test_no_command_shows_the_commands() -> None:
    result = run(app, [])
    assert "doctor" in result.output
    assert "demo" in result.output


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pna", "--help"], capture_output=True, text=True, check=True
    )
    assert "doctor" in done.stdout


def test_doctor_prints_json() -> None:
    result = run(app, ["doctor", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(json.dumps(asdict(diagnose())))


def test_doctor_prints_for_people() -> None:
    report = replace(
        diagnose(),
        gpus=(Gpu("a card", "9.0", 80 * 2**30),),
        backends=(Backend("reference", "any device", None), Backend("cpu", "CPU", "no [cc] here")),
        packages=(Package("matplotlib", None, "figures", "pip install 'pna[plot]'"),),
    )
    out = io.StringIO()
    show(report, Console(file=out, width=120))
    printed = out.getvalue()
    assert "a card, compute capability 9.0, 80 GiB" in printed
    assert "no: no [cc] here" in printed
    assert "figures: pip install 'pna[plot]'" in printed


def test_demo_draws_and_compares(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    pytest.importorskip("torch_geometric", reason="needs PyG: pip install 'pna[pyg]'")
    result = run(app, ["demo", "--out", str(tmp_path), "--seconds", "0.01"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"failures.svg", "failures.png"}
    assert "{0, 0, 4} {0, 4, 4}" in result.output
    assert "error of gradients" in result.output


def test_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = run(app, ["demo"])
    assert result.exit_code == 1
    assert "pip install 'pna[plot,pyg]'" in result.output
