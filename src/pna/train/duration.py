"""How long a training will likely take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pna.data.graphset import GraphSet
from pna.train.loop import train
from pna.train.settings import Settings

_BATCHES = 4  # that are trained on


def likely_seconds(graphs: GraphSet, settings: Settings, **arguments: Any) -> float | None:
    """Seconds that all epochs of a training will take on a CPU: a few batches are tried.

    None if these batches cannot be trained on, for example if a target is not known in them.

    Args:
        arguments: of `pna.train.train`, except `out` and `device`.
    """
    most, chosen = _BATCHES * settings.batch_size, []
    names = arguments.get("splits", ("train", "validation"))
    of_graph = graphs.split_of_graph
    if of_graph is None or not all(name in graphs.splits for name in names):
        return None
    members = [(of_graph == graphs.splits.index(name)).nonzero().flatten() for name in names]
    share = min(1.0, most / max(1, len(members[0])))
    for own in members:
        count = min(len(own), max(1, round(share * len(own))))
        chosen.append(own[torch.arange(count) * len(own) // max(1, count)])
    seconds: list[float] = []
    short = replace(settings, epochs=2, patience=None, warmup=0)
    with TemporaryDirectory() as folder:
        try:
            train(
                graphs[torch.cat(chosen)], Path(folder) / "run", settings=short, device="cpu",
                report=lambda report: seconds.append(report.seconds), **arguments,
            )  # fmt: skip
        except ValueError:
            return None
    return seconds[-1] * len(members[0]) / len(chosen[0]) * settings.epochs
