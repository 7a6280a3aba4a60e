"""Events for TensorBoard where it is installed, and nothing where it is not."""

import math
import sys
from types import SimpleNamespace

import pytest

from pna.train.loop import Report
from pna.train.tensorboard import events

REPORT = Report(7, 9, 1.0, [0.5, math.nan], [0.25, math.nan], [0.2, 0.1], [True, False],
                [False, False], [0.1, 0.1])  # fmt: skip


def test_scalars(monkeypatch, tmp_path):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer)
    )
    with events(tmp_path) as write:
        assert written == []  # the folder of a run begins empty
        write(REPORT)
    assert written[0] == (str(tmp_path), 7) and written[-1] == "closed"
    assert ("training/member 0", 0.5, 7) in written
    assert ("validation/member 0", 0.25, 7) in written
    assert not any("training/member 1" in line for line in written)


def test_files(tmp_path):
    pytest.importorskip("tensorboard")
    with events(tmp_path) as write:
        write(REPORT)
    assert [path.name for path in tmp_path.glob("events.out.tfevents.*")]


def test_without_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # cannot be imported
    with events(tmp_path) as write:
        write(REPORT)
    assert list(tmp_path.iterdir()) == []
