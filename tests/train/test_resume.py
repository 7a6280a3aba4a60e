"""Runs that are killed, interrupted and resumed end as those that were not, bit by bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from pna.signals import TOGETHER, ask_to_stop
from pna.train.loop import Interrupted, Report, train
from pna.train.run import BEST, LAST, Run
from pna.train.schedules import SCHEDULES
from pna.train.settings import ModelSettings, Settings
from tests import processes
from tests.train.cases import random_graphs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals and fork")

MODEL = ModelSettings("gin", hidden=4, arguments={"dropout": 0.2})
INTERRUPTED = 42
EPOCHS = 24
#: Two members that learn nothing stop soon and leave; a plateau lowers the rates of the others.
SETTINGS = {
    "members": 4,
    "epochs": EPOCHS,
    "batch_size": 6,
    "lr": [3e-3, 0.0, 1e-3, 0.0],
    "average": 0.9,
    "patience": 7,
    "schedule": "plateau",
    "plateau": 2,
    "keep_last": True,
}


def train_or_say(**asked: Any) -> None:
    try:
        train(**asked, device="cpu")
    except Interrupted:
        sys.exit(INTERRUPTED)


def wait_for_writes(process: BaseProcess, path: Path, writes: int) -> None:
    """Until a file was replaced so often, or the process has ended."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    while writes > 0 and process.is_alive():
        now = path.stat().st_mtime_ns if path.exists() else 0
        if now != before:
            before, writes = now, writes - 1
        time.sleep(0.001)


class Trainings:
    """Trainings, in processes of their own if they are sent a signal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "graphs.safetensors"
        random_graphs(train=8, validation=3, sizes=(3, 6)).save(self.data)

    def run(
        self,
        out: Path,
        send: int = 0,
        writes: int = 0,
        after: float = 0.0,
        and_send: int = 0,
        **settings: object,
    ) -> int | None:
        """How it ended, sent this signal, and perhaps another, some seconds after it wrote so many
        checkpoints. Without a signal it needs no process."""
        asked = {
            "data": self.data, "out": out, "model": MODEL,
            "settings": Settings(**(SETTINGS | settings)), "resume": Run(out).exists,
            "save_every": 0.0,
        }  # fmt: skip
        if not send:
            train(**asked, device="cpu")
            return 0
        process = processes.started(self.folder, partial(train_or_say, **asked))
        wait_for_writes(process, out / LAST, writes)
        time.sleep(after)
        assert process.pid is not None
        for number in filter(None, (send, and_send)):
            os.kill(process.pid, number)
        return processes.ended(process, self.folder).returncode


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("trainings"))


@pytest.fixture(scope="module")
def whole(trainings, tmp_path_factory) -> Run:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert trainings.run(out) == 0
    return Run(out)


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
    run, (tensors, _) = whole, whole.read(LAST)
    ids = tensors["ids"].tolist()
    assert 0 < len(ids) < 4
    epochs = [sum(row["member"] == k for row in run.metrics()) for k in range(4)]
    assert max(epochs) == epochs[ids[0]] == EPOCHS and min(epochs) < EPOCHS
    assert any(0 < r["lr"] < 1e-3 for r in run.metrics())


@pytest.mark.slow
def test_a_run_killed_many_times_ends_as_one_that_was_not(trainings, whole, tmp_path):
    """At whatever moment: reading, training, or writing its checkpoint."""
    rng = random.Random()  # other moments every time; the result is the same
    out, epochs = tmp_path / "run", [0]
    for writes in (0, 1, 2, 0, 1, 2):
        assert trainings.run(out, signal.SIGKILL, writes, rng.uniform(0, 0.1)) < 0
        epochs.append(Run(out).read(LAST)[1]["epoch"] if (out / LAST).is_file() else 0)
    assert epochs == sorted(epochs) and 0 < epochs[-1] < EPOCHS
    assert trainings.run(out) == 0
    assert_same_ending(Run(out), whole)
    assert not list(out.glob(".*")), "what was being written was not removed"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_resumed(trainings, tmp_path, name):
    """Killed in the middle, it ends as one that was not."""
    asked = {"schedule": name, "epochs": 12, "warmup": 3, "min_lr": 1e-4, "plateau": 1}
    folders = [tmp_path / "whole", tmp_path / "killed"]
    assert trainings.run(folders[0], **asked) == 0
    assert trainings.run(folders[1], signal.SIGKILL, writes=5, **asked) < 0
    assert 5 <= Run(folders[1]).read(LAST)[1]["epoch"] < 12
    assert trainings.run(folders[1], **asked) == 0
    assert_same_ending(Run(folders[1]), Run(folders[0]))
    rates = {row["lr"] for row in Run(folders[0]).metrics() if row["member"] == 0}
    assert len(rates) >= 4, "the rates would be the same from any epoch on"


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("send", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_run_asked_to_stop_saves_and_can_be_resumed(trainings, whole, tmp_path, send):
    out = tmp_path / "run"
    assert trainings.run(out, send, writes=10) == INTERRUPTED
    (_, facts), rows = Run(out).read(LAST), Run(out).metrics()
    assert 0 < facts["epoch"] < EPOCHS
    assert rows[-1]["epoch"] == facts["epoch"]
    assert Run(out).summary is None
    assert trainings.run(out) == 0
    assert_same_ending(Run(out), whole)


def test_two_signals_at_once_count_as_one(trainings, whole, tmp_path):
    """As `timeout` sends them, and batch systems."""
    out = tmp_path / "run"
    stopped = trainings.run(out, signal.SIGINT, writes=10, and_send=signal.SIGTERM)
    assert stopped == INTERRUPTED
    assert trainings.run(out) == 0
    assert_same_ending(Run(out), whole)


def test_a_training_that_was_signalled_may_be_asked_to_stop_too(trainings, whole, tmp_path):
    """As a worker is, whose process group was signalled more than a second before."""

    def report(now: Report) -> None:
        if now.epoch == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(TOGETHER + 0.1)
            ask_to_stop()

    out, settings = tmp_path / "run", Settings(**SETTINGS)
    with pytest.raises(Interrupted):
        train(trainings.data, out, MODEL, settings, device="cpu", report=report)
    assert Run(out).read(LAST)[1]["epoch"] == 3
    assert trainings.run(out) == 0
    assert_same_ending(Run(out), whole)


def test_a_finished_run_is_resumed_to_itself(trainings, whole):
    before = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    assert trainings.run(whole.folder) == 0
    assert {path.name: path.read_bytes() for path in whole.folder.iterdir()} == before
