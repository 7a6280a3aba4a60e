"""Tables of what a run has come to."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from pna.train.evaluation import Evaluation

#: What of an evaluation is shown, and how it is headed; JSON has the rest.
_SHOWN = {
    "log10_mse": "log10 MSE",
    "mae_in_units": "MAE in units",
    "roc_auc": "ROC AUC",
    "accuracy": "accuracy",
}


def table(found: Evaluation) -> Table:
    """Tasks and their average, of the member best in validation, and the median over all."""
    kinds = {task.kind for task in found.tasks}
    names = [name for name in _SHOWN if any(name in task.metrics for task in found.tasks)]
    heads = [kinds.pop() if len(kinds) == 1 else "loss", *(_SHOWN[name] for name in names)]
    shown = Table(box=SIMPLE_HEAD)
    shown.add_column("task")
    for head in heads:
        shown.add_column(head, justify="right")
        if len(found.members) > 1:
            shown.add_column("median", justify="right")
    for task in found.tasks:
        columns = [task.loss, *(task.metrics.get(name) for name in names)]
        shown.add_row(task.name, *_cells(found, columns))
    if len(found.tasks) > 1:
        columns = [found.loss, *(found.metrics.get(name) for name in names)]
        shown.add_row("average", *_cells(found, columns), style="bold")
    return shown


def _cells(found: Evaluation, columns: list[list[float] | None]) -> Iterator[str]:
    for values in columns:
        if values is None:
            yield from [""] * min(len(found.members), 2)
            continue
        yield f"{values[found.best]:.4g}"
        if len(values) > 1:
            yield f"{statistics.median(values):.4g}"


def caption(found: Evaluation) -> str:
    """What the numbers are of."""
    where = f"{found.split}, " if found.split else ""
    who = f"member {found.members[found.best]}"
    if len(found.members) > 1:
        who += f", the best of {len(found.members)} in validation, and the median over all"
    return f"{where}{found.graphs:,} graphs; {who}:"
