"""`pna train` under torchrun: two processes give what one gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data.multitask import multitask
from pna.train.run import LAST, Run

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "graphs.safetensors"
    counts = {"train": 7, "validation": 3, "test": 1}  # odd: one process has a graph more
    multitask(0, sizes=(15, 18), counts=counts).save(path)
    return path


def options(data: Path, out: Path) -> list[str]:
    """Of `pna`: a global batch of 5 graphs, so that shares are uneven too."""
    return [
        *("train", str(data), "--out", str(out)),
        *("--members", "2", "--epochs", "2", "--batch-size", "5", "--hidden", "8"),
        *("--precision", "float64", "--dropout", "0.2", "--device", "cpu", "--json"),
    ]


def train_alone(data: Path, out: Path) -> str:
    """What the command printed, in this process."""
    done = CliRunner().invoke(app, options(data, out))
    assert done.exit_code == 0, done.output
    return done.stdout


def train_together(data: Path, out: Path) -> str:
    """What the command printed, in two processes."""
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "-m", "pna", *options(data, out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        cwd=data.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> list[str]:
    """Their names, without the process that events for TensorBoard are named after."""
    return sorted("events" if p.name.startswith("events.") else p.name for p in folder.iterdir())


@pytest.mark.slow
def test_two_processes_give_what_one_gives(data, tmp_path):
    """Three processes import torch. test_distributed.py is quicker: it starts its own two."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    alone, together = tmp_path / "alone", tmp_path / "together"
    said = [train_alone(data, alone), train_together(data, together)]
    # One process prints, and writes: the same number of lines, each a whole one.
    lines = [[json.loads(line) for line in text.splitlines()] for text in said]
    assert len(lines[0]) == len(lines[1]) == 2 + 1
    assert files(alone) == files(together)
    rows = [Run(folder).metrics() for folder in (alone, together)]
    assert [(r["epoch"], r["member"]) for r in rows[1]] == [(e, m) for e in (1, 2) for m in (0, 1)]
    for one, two in zip(*rows, strict=True):
        assert one["training"] == pytest.approx(two["training"], rel=0, abs=1e-9)
        assert one["validation"] == pytest.approx(two["validation"], rel=0, abs=1e-9)
    assert [Run(folder).summary["processes"] for folder in (alone, together)] == [1, 2]
    one, two = (Run(folder).read(LAST)[0] for folder in (alone, together))
    assert one["weights"].dtype == torch.float64
    # A few weights have no gradient but rounding, about 1e-15, which Adam divides by its 1e-8.
    noise = one["adam.square"] < 1e-24
    assert noise.double().mean() < 0.05
    difference = (one["weights"] - two["weights"]).abs()
    assert difference[~noise].max() < 1e-9
    assert difference.max() < 1e-7
