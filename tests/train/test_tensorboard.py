"""Events for TensorBoard where it is installed, and nothing where it is not."""

import math
import shutil
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from pna.train.loop import Report
from pna.train.tensorboard import events

REPORT = Report(7, 9, 1.0, [0.5, math.nan], [0.25, math.nan], [0.2, 0.1], [True, False],
                [False, False], [0.1, 0.1])  # fmt: skip


@pytest.fixture
def read():
    """What TensorBoard reads from a folder: (step, value) by tag."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def scalars(folder):
        found = EventAccumulator(str(folder)).Reload()
        return {
            tag: [(e.step, pytest.approx(e.value)) for e in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
        }

    return scalars


def test_scalars(tmp_path, read):
    with events(tmp_path) as write:
        assert list(tmp_path.iterdir()) == []  # the folder of a run begins empty
        write(REPORT)
        write(replace(REPORT, epoch=8, training=[0.4, 0.3]))
    assert read(tmp_path) == {
        "training/member 0": [(7, 0.5), (8, 0.4)],
        "training/member 1": [(8, 0.3)],
        "validation/member 0": [(7, 0.25), (8, 0.25)],
        "lr/member 0": [(7, 0.1), (8, 0.1)],
        "lr/member 1": [(7, 0.1), (8, 0.1)],
    }


def test_a_resumed_run_is_shown_once(tmp_path, read):
    """What was written after the checkpoint is written again."""
    for epochs, loss in (((1, 2, 3), 0.5), ((2, 3, 4), 0.25)):
        with events(tmp_path) as write:
            for epoch in epochs:
                write(replace(REPORT, epoch=epoch, training=[loss]))
    assert read(tmp_path)["training/member 0"] == [(1, 0.5), (2, 0.25), (3, 0.25), (4, 0.25)]


def refuse(*_, **__):
    raise OSError(27, "File too large")


@pytest.mark.parametrize("how", ["its folder is gone", "its file is gone", "it cannot be written"])
def test_training_goes_on_without_it(tmp_path, monkeypatch, how):
    """Its thread died with a traceback, or training with it; now there is one warning."""
    pytest.importorskip("tensorboard")
    folder, told = tmp_path / "run", []
    folder.mkdir()
    monkeypatch.setattr(threading, "excepthook", told.append)
    with warnings.catch_warnings(record=True) as found, events(folder) as write:
        warnings.simplefilter("always")
        write(REPORT)
        if how == "its folder is gone":
            shutil.rmtree(folder)
        elif how == "its file is gone":
            next(folder.iterdir()).unlink()
        else:
            from tensorboard.summary.writer.record_writer import RecordWriter

            monkeypatch.setattr(RecordWriter, "write", refuse)
        for epoch in range(8, 30):
            write(replace(REPORT, epoch=epoch))
    assert [str(w.message).partition(" (")[0] for w in found] == [
        f"no more events for TensorBoard are written to {folder}"
    ]
    assert told == []


def test_a_folder_that_cannot_be_written_to(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with (
        pytest.warns(UserWarning, match="Not a directory.*training continues"),
        events(Path(tmp_path / "file")) as write,
    ):
        write(REPORT)


def test_without_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # cannot be imported
    with events(tmp_path) as write:
        write(REPORT)
    assert list(tmp_path.iterdir()) == []
