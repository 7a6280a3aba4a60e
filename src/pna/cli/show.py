"""Tables of the results of a run."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pna.cli.shared import make_table

if TYPE_CHECKING:
    from pna.train.evaluation import Evaluation, TaskScores

#: The metrics of numbers that the targets of a benchmark are known by.
_OF_BENCHMARKS = {"multitask": ("log10_mse", "mae")}
_MOST_BESIDE = 2  # metrics with a second column: more do not fit into 80 columns


def table(found: Evaluation) -> Table:
    """Tasks and their average. Of several members, their mean prediction and all of them."""
    from pna.train.metrics import METRICS  # imports torch

    kinds, names = {task.kind for task in found.tasks}, _shown(found)
    several, beside = len(found.members) > 1, _beside(found)
    shown = make_table(())
    shown.add_column("task", min_width=max(len(task.name) for task in found.tasks))
    if not several:
        shown.add_column(kinds.pop() if len(kinds) == 1 else "loss", justify="right")
    for place, name in enumerate(names):
        shown.add_column(METRICS[name].title, justify="right")
        if place < beside:
            shown.add_column("median" if found.split_each else "members", justify="right")
    rows: list[tuple[str, list[float], dict[str, list[float]], dict[str, float]]] = [
        (task.name, task.loss, task.metrics, task.ensemble) for task in found.tasks
    ]
    if len(rows) > 1:
        rows.append(("average", found.loss, found.metrics, found.ensemble))
    for row, loss, metrics, ensemble in rows:
        cells = [] if several else [f"{loss[0]:.4g}"]
        for place, name in enumerate(names):
            both = _cells(found, metrics.get(name), ensemble.get(name), form_of(name))
            cells += both[: 1 + (place < beside)]
        shown.add_row(escape(row), *cells, style="bold" if row == "average" else "")
    return shown


def form_of(metric: str) -> str:
    """The format of a number of this metric."""
    from pna.train.metrics import METRICS  # imports torch

    return ".4g" if "number" in METRICS[metric].takes else ".4f"


def _shown(found: Evaluation) -> list[str]:
    """The metrics of the table of one run."""
    names = metrics_of(found)
    several = len(found.members) > 1 and len(_kinds(found)) == 1
    return names[: _MOST_BESIDE + ("r2" in names)] if several else names


def _beside(found: Evaluation) -> int:
    """Number of the first metrics of the table that have a second column, of all members."""
    fits = len(found.members) > 1 and len(_kinds(found)) <= _MOST_BESIDE
    return _MOST_BESIDE if fits else 0


def metrics_of(found: Evaluation) -> list[str]:
    """The metrics to show: some of one kind of targets, or the first of each kind."""
    from pna.train.metrics import SHOWN  # imports torch

    by_kind = SHOWN | {"number": _OF_BENCHMARKS.get(found.benchmark, SHOWN["number"])}
    kinds = _kinds(found)
    return [by_kind[kind][0] for kind in kinds] if len(kinds) > 1 else list(by_kind[kinds[0]])


def _kinds(found: Evaluation) -> list[str]:
    """The kinds of the outputs of the tasks."""
    from pna.train.tasks import LOSSES  # imports torch

    return list(dict.fromkeys(LOSSES[task.kind].outputs for task in found.tasks))


def _cells(
    found: Evaluation, values: list[float] | None, ensemble: float | None, form: str
) -> list[str]:
    """The value of the mean prediction; mean and standard deviation of the members. If these have a
    split each, their mean and median."""
    if values is None:
        return ["", ""]
    if found.split_each:
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        return [f"{statistics.mean(known):{form}}", f"{statistics.median(known):{form}}"]
    is_spread = len(values) > 1 and all(map(math.isfinite, values))
    std = statistics.stdev(values) if is_spread else math.nan
    return [f"{ensemble:{form}}", spread(statistics.mean(values), std, form)]


def spread(mean: float, std: float, form: str) -> str:
    """A mean and a standard deviation."""
    return f"{mean:{form}} ± {std:.2g}"


def lines(found: Evaluation) -> list[str]:
    """What a table does not say: names of class 1, thresholds, and what an average leaves out."""
    from pna.train.metrics import METRICS  # imports torch

    named = [
        f"{task.name}: class 1 is {task.class_1}; F1 and average precision are those of class 1"
        for task in found.tasks
        if task.class_1 not in (None, "1")
    ]
    if found.split_each:
        return named[:1]
    if found.weighted:
        named.append("losses are weighted by the weights of the graphs; metrics are not")
    named += [
        f"{task.name}: {task.class_1 or 'class 1'} is predicted from a probability of "
        f"{task.ensemble_threshold:.4g} on"
        for task in found.tasks
        if task.ensemble_threshold not in (None, 0.5)
    ]
    named += [
        f"{task.name}: log loss {task.probabilities['log_loss']:.4g} and calibration error "
        f"{task.probabilities['calibration_error']:.4g} of probabilities as pna predict writes "
        f"them, with the temperature {task.probabilities['temperature']:.4g}"
        for task in found.tasks
        if task.probabilities.get("temperature", 1) != 1 and "log_loss" in task.probabilities
    ]
    left_out: dict[tuple[str, ...], list[TaskScores]] = {}
    for task in found.tasks:
        if task.rows and (names := tuple(n for n in _shown(found) if n in task.undefined)):
            left_out.setdefault(names, []).append(task)
    for names, tasks in left_out.items():
        metrics = " and ".join(METRICS[name].title for name in names)
        named.append(
            f"{', '.join(task.name for task in tasks)}: no {metrics}, because all known values are "
            "equal" + ("; averages leave it out" if len(found.tasks) > 1 else "")
        )
    return named


def class_tables(found: Evaluation) -> list[Table]:
    """The metrics of every class of a task and their mean, of the mean prediction."""
    from pna.train.metrics import BY_CLASS, METRICS  # imports torch

    tables = []
    for task in found.tasks:
        if task.classes is None:
            continue
        heads = (*(METRICS[name].title for name in BY_CLASS), "rows")
        shown = make_table((f"class of {escape(task.name)}",), heads)
        classes = task.ensemble_classes
        if classes is None:  # the first member that has the split of this target
            own = next(k for k, loss in enumerate(task.loss) if not math.isnan(loss))
            classes = {
                label: {name: values[own] for name, values in of_class.items()}
                for label, of_class in task.classes.items()
            }
        columns = [[of[name] for of in classes.values()] for name in BY_CLASS]
        for index, (label, of) in enumerate(classes.items()):
            cells = [f"{column[index]:.4f}" for column in columns]
            shown.add_row(escape(label), *cells, f"{of['rows']:,}")
        known = [[value for value in column if not math.isnan(value)] for column in columns]
        means = [f"{statistics.mean(column):.4f}" if column else "nan" for column in known]
        shown.add_row("mean", *means, "", style="bold")
        tables.append(shown)
    return tables


def caption(found: Evaluation) -> str:
    """Which graphs and members the numbers belong to, and their units."""
    where = f"{found.split}, " if found.split else ""
    who = f"member {found.members[found.best]}"
    if found.split_each:
        who = "each split with its own members, mean and median"
    elif len(found.members) > 1:
        who = f"mean prediction of {len(found.members)} members"
        if _beside(found):
            who += ", and the members' mean ± standard deviation"
    what = "1 graph" if found.graphs == 1 else f"{found.graphs:,} graphs"
    if found.graphs == 1 and len(found.tasks) == 1 and found.tasks[0].level != "graph":
        what = f"{found.tasks[0].rows:,} {found.tasks[0].level}s"
    return f"{where}{what}; {who}{units_of(_shown(found))}:"


def units_of(metrics: list[str]) -> str:
    """The units of the errors among some metrics, if there are any."""
    errors = [name.upper() for name in metrics if name in ("rmse", "mae")]
    return f"; {' and '.join(errors)} in the units of the targets" if errors else ""
