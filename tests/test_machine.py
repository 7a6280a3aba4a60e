from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from pna import machine


def test_one_flat_row() -> None:
    row = machine.machine()
    assert row["torch"] == torch.__version__
    assert row["cpu"]
    assert (row["gpu"] is None) == (not torch.cuda.is_available())
    assert all(isinstance(value, str | int | None) for value in row.values())


def test_version_of_what_is_not_installed_is_none() -> None:
    assert machine.version("no-such-distribution") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["/usr/bin/pna", "train", "my table.csv"], "pna train 'my table.csv'"),
        (["/lib/pna/__main__.py", "train", "a.csv"], "python -m pna train a.csv"),
    ],
)
def test_command(monkeypatch: pytest.MonkeyPatch, given: list[str], expected: str) -> None:
    monkeypatch.setattr("sys.argv", given)
    assert machine.command() == expected


def test_an_untracked_copy_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PNA_COMMIT", raising=False)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    assert machine.commit() is None
    monkeypatch.setenv("PNA_COMMIT", "0123abc")
    assert machine.commit() == "0123abc"


# What lscpu prints on Arm, and on a machine without lscpu what /proc/cpuinfo has.
@pytest.mark.parametrize(
    ("system", "printed", "cpuinfo", "expected"),
    [
        ("Linux", "Architecture: aarch64\nModel name:  Neoverse-N1\n", "", "Neoverse-N1"),
        ("Linux", None, "processor\t: 0\nmodel name\t: Some x86 @ 3 GHz\n", "Some x86 @ 3 GHz"),
        ("Darwin", "Apple M2\n", None, "Apple M2"),
    ],
)
def test_cpu_model(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    printed: str | None,
    cpuinfo: str | None,
    expected: str,
) -> None:
    def run(command: tuple[str, ...], **_: object) -> CompletedProcess[str]:
        return CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(machine, "_output", machine._output.__wrapped__)
    monkeypatch.setattr(machine.platform, "system", lambda: system)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None if printed is None else name)
    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine, "_text", lambda path: cpuinfo)
    assert machine.cpu_model() == expected
