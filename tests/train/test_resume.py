"""Runs that are killed, interrupted and resumed end as those that were not, bit by bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pna.train.run import BEST, LAST, Run
from tests.train.cases import random_graphs
from tests.train.forked_runs import INTERRUPTED

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals and fork")

MODEL = {"convolution": "gin", "hidden": 4, "arguments": {"dropout": 0.2}}
EPOCHS = 40
#: Two members that learn nothing stop soon and leave; a plateau lowers the rates of the others.
SETTINGS = {
    "members": 4,
    "epochs": EPOCHS,
    "batch_size": 6,
    "lr": [3e-3, 0.0, 1e-3, 0.0],
    "average": 0.9,
    "patience": 6,
    "schedule": "plateau",
    "plateau": 2,
}


class Trainings:
    """Trainings as children of a process of their own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.forked_runs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            cwd=Path(__file__).parents[2],
        )

    def run(self, out: Path, after: float | None = None, send: int = signal.SIGKILL) -> int:
        """How it ended, if it was sent this signal after some seconds."""
        asked = {
            "data": str(self.data), "out": str(out), "model": MODEL, "settings": SETTINGS,
            "resume": Run(out).exists, "save_every": 0.0, "after": after, "send": send,
        }  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings")
    random_graphs(train=8, validation=3, sizes=(3, 6)).save(folder / "graphs.safetensors")
    made = Trainings(folder / "graphs.safetensors")
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(trainings, tmp_path_factory) -> tuple[Run, float]:
    """A run that nobody disturbed, and how long it took."""
    out = tmp_path_factory.mktemp("whole") / "run"
    begin = time.monotonic()
    assert trainings.run(out) == 0
    return Run(out), time.monotonic() - begin


def assert_same_ending(got: Run, expected: Run) -> None:
    for name in (BEST, LAST):
        (tensors, facts), (others, wanted) = got.read(name), expected.read(name)
        assert tensors.keys() == others.keys()
        for key, tensor in tensors.items():
            assert torch.equal(tensor, others[key]), f"{key} of {name}"
        assert {**facts, "seconds": 0} == {**wanted, "seconds": 0}
    rows, wanted_rows = ([{**r, "seconds": 0} for r in run.metrics()] for run in (got, expected))
    assert rows == wanted_rows
    summaries = [{**run.summary, "seconds": 0} for run in (got, expected)]
    assert summaries[0] == summaries[1]


def test_members_left_in_the_run_that_is_compared(whole):
    """Else the comparisons below would say less."""
    run, _ = whole
    tensors, _ = run.read(LAST)
    ids = tensors["ids"].tolist()
    assert 0 < len(ids) < 4
    epochs = [sum(row["member"] == k for row in run.metrics()) for k in range(4)]
    assert max(epochs) == epochs[ids[0]] == EPOCHS and min(epochs) < EPOCHS
    assert len({row["lr"] for row in run.metrics() if row["member"] == ids[0]}) > 1


def test_a_run_killed_many_times_ends_as_one_that_was_not(trainings, whole, tmp_path):
    """At whatever moment: importing nothing, reading, training, or writing its checkpoint."""
    expected, seconds = whole
    rng = random.Random()  # another moment every time; the result is the same
    out, kills, epochs = tmp_path / "run", 0, []
    while True:
        after = rng.uniform(0.05, 0.3) * seconds if kills < 8 else None
        status = trainings.run(out, after)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
        epochs.append(Run(out).read(LAST)[1]["epoch"] if (out / LAST).is_file() else 0)
        assert epochs == sorted(epochs)
        assert kills < 60, f"no progress: {epochs}"
    assert kills >= 6, f"ended after {kills} kills, at epochs {epochs}"
    assert_same_ending(Run(out), expected)
    assert not list(out.glob(".*")), "what was being written was not removed"


@pytest.mark.parametrize("send", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_run_asked_to_stop_saves_and_can_be_resumed(trainings, whole, tmp_path, send):
    expected, seconds = whole
    out = tmp_path / "run"
    assert trainings.run(out, 0.4 * seconds, send) == INTERRUPTED
    (_, facts), rows = Run(out).read(LAST), Run(out).metrics()
    assert 0 < facts["epoch"] < EPOCHS
    assert rows[-1]["epoch"] == facts["epoch"]
    assert Run(out).summary is None
    assert trainings.run(out) == 0
    assert_same_ending(Run(out), expected)


def test_a_finished_run_is_resumed_to_itself(trainings, whole):
    run, _ = whole
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    assert trainings.run(run.folder) == 0
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
