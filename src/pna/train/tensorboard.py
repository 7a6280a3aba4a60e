"""Losses and learning rates of a run for TensorBoard."""

from __future__ import annotations

import itertools
import math
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pna.train.loop import Callback, Report

_number = itertools.count()  # makes the file names of this process differ


@contextmanager
def events(folder: str | Path) -> Iterator[Callback]:
    """A callback that writes events into the folder of a run, if `tensorboard` is installed.

    If events cannot be written, there is one warning and training continues.
    """
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        yield lambda report: None
        return
    writer: _Events | None = None  # made once the run has its folder
    has_failed = False

    def write(report: Report) -> None:
        nonlocal writer, has_failed
        if has_failed:
            return
        try:
            if writer is None:
                writer = _Events(Path(folder), report.epoch)
            writer.add(report)
        except OSError as error:
            has_failed = True
            warnings.warn(
                f"no more events for TensorBoard are written to {folder} ({error}); training "
                "continues, and metrics.csv has the same numbers",
                stacklevel=2,
            )

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


class _Events:
    """A file of events. torch's `SummaryWriter` has a thread, whose errors cannot be caught."""

    def __init__(self, folder: Path, epoch: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self._path = folder / f"events.out.tfevents.{name}"
        self._file = self._path.open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # hides this and later epochs of an earlier file
        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=time.time(), step=epoch, session_log=start))

    def add(self, report: Report) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{name}/member {member}", simple_value=value)
            for name in ("training", "validation", "lr")
            for member, value in enumerate(getattr(report, name))
            if math.isfinite(value)
        ]
        os.stat(self._path)  # raises if it was removed; writing would not
        self._write(Event(wall_time=time.time(), step=report.epoch, summary=Summary(value=values)))
        self._file.flush()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        with suppress(OSError):  # there was a warning already
            self._file.close()
