"""Losses and learning rates of a run as TensorBoard shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pna.train.loop import Report, Reporter


@contextmanager
def events(folder: str | Path) -> Iterator[Reporter]:
    """A reporter that writes events into the folder of a run; none without `tensorboard`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda report: None
        return
    writer: Any = None  # made once the run has its folder

    def write(report: Report) -> None:
        nonlocal writer
        if writer is None:
            writer = SummaryWriter(str(folder), purge_step=report.epoch)
        for name in ("training", "validation", "lr"):
            for member, value in enumerate(getattr(report, name)):
                if math.isfinite(value):
                    writer.add_scalar(f"{name}/member {member}", value, report.epoch)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
