"""Tables of the results of a run."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pna.cli.shared import make_table

if TYPE_CHECKING:
    from pna.train.evaluation import Evaluation

#: Metrics that are shown, and their formats. JSON has all of them.
_SHOWN = {
    "log10_mse": ".3f",
    "mae_in_units": ".4g",
    "roc_auc": ".4f",
    "average_precision": ".4f",
    "f1": ".4f",
    "accuracy": ".4f",
    "balanced_accuracy": ".4f",
}

#: Those that are shown if there are several members or losses: more do not fit into 80 columns.
_SHOWN_OF_SEVERAL = ("log10_mse", "mae_in_units", "roc_auc", "accuracy")


def table(found: Evaluation) -> Table:
    """Tasks and their average: the member with the best validation loss, and the median of all."""
    from pna.train.metrics import METRICS  # imports torch

    kinds = {task.kind for task in found.tasks}
    shown_names = _SHOWN_OF_SEVERAL if len(found.members) > 1 or len(kinds) > 1 else tuple(_SHOWN)
    names = [name for name in shown_names if any(name in task.metrics for task in found.tasks)]
    titles = (METRICS[name.removesuffix("_in_units")].title for name in names)
    heads = [kinds.pop() if len(kinds) == 1 else "loss", *titles]
    shown = make_table(())
    shown.add_column("task", min_width=max(len(task.name) for task in found.tasks))
    for head in heads:
        shown.add_column(head, justify="right")
        if len(found.members) > 1:
            shown.add_column("median", justify="right")
    rows: list[tuple[str, list[float], dict[str, list[float]]]] = [
        (task.name, task.loss, task.metrics) for task in found.tasks
    ]
    if len(rows) > 1:
        rows.append(("average", found.loss, found.metrics))
    for row, loss, metrics in rows:
        cells = _cells(found, loss, ".4g")
        for name in names:
            cells += _cells(found, metrics.get(name), _SHOWN[name])
        shown.add_row(escape(row), *cells, style="bold" if row == "average" else "")
    return shown


def class_lines(found: Evaluation) -> list[str]:
    """Names of class 1 that are not 1, and thresholds of the best member that are not 0.5."""
    named = [
        f"{task.name}: class 1 is {task.class_1}; F1 and average precision are those of class 1"
        for task in found.tasks
        if task.class_1 not in (None, "1")
    ]
    if found.split_each:
        return named[:1]
    return named + [
        f"{task.name}: {task.class_1 or 'class 1'} is predicted from a probability of "
        f"{value:.4g} on"
        for task in found.tasks
        if task.thresholds is not None and (value := task.thresholds[found.best]) != 0.5
    ]


def class_tables(found: Evaluation) -> list[Table]:
    """The metrics of every class of a task and their mean, of the best member."""
    from pna.train.metrics import BY_CLASS, METRICS  # imports torch

    tables = []
    for task in found.tasks:
        if task.classes is None:
            continue
        heads = (*(METRICS[name].title for name in BY_CLASS), "rows")
        shown = make_table((f"class of {escape(task.name)}",), heads)
        best = found.best
        if found.split_each:  # the first member that has the split of this target
            best = next(k for k, loss in enumerate(task.loss) if not math.isnan(loss))
        columns = [[of[name][best] for of in task.classes.values()] for name in BY_CLASS]
        for index, (label, of) in enumerate(task.classes.items()):
            cells = [f"{column[index]:.4f}" for column in columns]
            shown.add_row(escape(label), *cells, f"{of['rows'][best]:,}")
        known = [[value for value in column if not math.isnan(value)] for column in columns]
        means = [f"{statistics.mean(column):.4f}" if column else "nan" for column in known]
        shown.add_row("mean", *means, "", style="bold")
        tables.append(shown)
    return tables


def _cells(found: Evaluation, values: list[float] | None, form: str) -> list[str]:
    """The value of the best member and, if there are others, the median."""
    if values is None:
        return [""] * min(len(found.members), 2)
    if found.split_each:
        values = [value for value in values if not math.isnan(value)] or [math.nan]
        both = [f"{statistics.mean(values):{form}}", f"{statistics.median(values):{form}}"]
        return both[: len(found.members)]
    cells = [f"{values[found.best]:{form}}"]
    return cells if len(values) == 1 else [*cells, f"{statistics.median(values):{form}}"]


def caption(found: Evaluation) -> str:
    """Which graphs and members the numbers belong to."""
    where = f"{found.split}, " if found.split else ""
    who = f"member {found.members[found.best]}"
    if found.split_each:
        who = "each split with its own members, mean and median"
    elif len(found.members) > 1:
        who += f", the best of {len(found.members)} in validation, and the median over all"
    what = "1 graph" if found.graphs == 1 else f"{found.graphs:,} graphs"
    if found.graphs == 1 and len(found.tasks) == 1 and found.tasks[0].level != "graph":
        what = f"{found.tasks[0].rows:,} {found.tasks[0].level}s"
    return f"{where}{what}; {who}:"
