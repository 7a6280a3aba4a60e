"""What the page of a run says in words and numbers: facts, and tables of metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from pna.data.molecule_table import TABLE
from pna.data.special_rows import read_rows, summary
from pna.report.run_results import RunResults
from pna.report.tables import NOTHING, RowGroup, stacked, to_html
from pna.train.evaluation import Evaluation, TaskScores
from pna.train.metrics import METRICS, SHOWN
from pna.train.tasks import LOSSES, OUTPUTS

_TITLES = {"number": "Numbers", "probability": "Targets of 0 and 1", "classes": "Classes"}


def about(results: RunResults) -> dict[str, str]:
    """What was trained on what, where and how."""
    run, config, graphs = results.run, results.config, results.graphs
    settings, finished, machine = config.settings, run.summary, run.environment
    what = "molecules" if TABLE in graphs.metadata else "graphs"
    sizes = [(len(graphs.split(name)), name) for name in graphs.splits]
    parts = ", ".join(f"{count:,} {name}" for count, name in sizes)
    parts = f" ({parts})" if parts and not graphs.splits_inside else ""
    found = {what: f"{len(graphs):,}{parts}"}
    if graphs.splits_inside:
        found["nodes"] = f"{graphs.num_nodes:,}"
    path = config.data["path"]
    listed = Path(path).with_suffix(".rows.csv") if path else None
    if listed is not None and listed.is_file() and (special := summary(read_rows(listed))):
        found["special rows"] = "; ".join(special)
    found["data"] = str(graphs.metadata.get(TABLE) or path or "graphs in memory")
    found["model"] = f"{config.model.convolution}, {config.model.architecture}"
    found["model"] += f", {config.model.hidden} features per node"
    several = f"{settings.members} members, " if settings.members > 1 else ""
    found["training"] = f"{several}not finished"
    if finished is not None:
        found["model"] += f", {finished['parameters']:,} parameters"
        broken = sum(finished["broken"])
        found["training"] = f"{several}{finished['epochs']:,} epochs in {finished['seconds']:.0f} s"
        found["training"] += f"; {broken} members broke" if broken else ""
    if "command" in machine:
        found["command"] = str(machine["command"])
    hardware = machine.get("gpu") or machine.get("cpu")
    if hardware:
        found["machine"] = str(hardware)
    versions = [f"{name} {machine[name]}" for name in ("pna", "torch") if machine.get(name)]
    if versions:
        commit = f" (commit {machine['commit']})" if machine.get("commit") else ""
        found["software"] = ", ".join(versions) + commit
    return found


def tables(results: RunResults) -> list[str]:
    """Metrics of the mean prediction, a table for each kind of targets, as HTML."""
    return _tables(results, _of_mean)


def tables_of_members(results: RunResults) -> list[str]:
    """The same of single members; none if there is one."""
    return _tables(results, _of_members)


#: What the line of a target in a split has: a cell for each metric; none if there is no line.
_Cells = Callable[[Evaluation, TaskScores | Evaluation, Sequence[str]], list[str]]


def _tables(results: RunResults, cells: _Cells) -> list[str]:
    """A table of metrics for each kind of targets."""
    first, found = next(iter(results.evaluations.values())), []
    for kind in OUTPUTS:
        places = [k for k, task in enumerate(first.tasks) if LOSSES[task.kind].outputs == kind]
        blocks = [
            RowGroup(first.tasks[k].name, {
                split: [*line, f"{one.tasks[k].rows:,}"]
                for split, one in results.evaluations.items()
                if (line := cells(one, one.tasks[k], SHOWN[kind]))
            })
            for k in places
        ]  # fmt: skip
        if 1 < len(places) == len(first.tasks):
            blocks.append(RowGroup("average", {
                split: [*line, ""]
                for split, one in results.evaluations.items()
                if (line := cells(one, one, SHOWN[kind]))
            }, is_ours=True))  # fmt: skip
        blocks = [block for block in blocks if block.lines]
        heads = ("target", "split", *(METRICS[name].title for name in SHOWN[kind]), "known")
        if blocks:
            found.append(to_html(stacked(_TITLES[kind], heads, blocks)))
    return found


def _of_mean(found: Evaluation, scores: TaskScores | Evaluation, names: Sequence[str]) -> list[str]:
    """Metrics of the mean prediction, or of the members if these have a split each."""
    if found.split_each:
        return [_spread(name, scores.metrics[name]) for name in names]
    return [cell(name, scores.ensemble.get(name)) for name in names]


def _of_members(
    found: Evaluation, scores: TaskScores | Evaluation, names: Sequence[str]
) -> list[str]:
    """Metrics of single members, if there are several and the other table does not have them."""
    if found.split_each or len(found.members) == 1:
        return []
    return [_spread(name, scores.metrics[name]) for name in names]


def cell(name: str, value: float | None) -> str:
    """A metric as a cell of a table."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:{_form(name)}}".replace("-", "−")


def _spread(name: str, values: list[float]) -> str:
    """Mean and standard deviation of the members."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return cell(name, known[0] if known else None)
    return f"{cell(name, statistics.mean(known))} ± {statistics.stdev(known):.2g}"


def _form(name: str) -> str:
    return ".4g" if "number" in METRICS[name].takes else ".4f"


def scored(results: RunResults) -> str:
    """What the numbers in the tables are."""
    first = next(iter(results.evaluations.values()))
    words = ["Metrics are in the units of the targets, as pna evaluate prints them."]
    if first.split_each:
        words.append("Every member has a split of its own: mean ± standard deviation over them. "
                     "There are no plots of such a run.")  # fmt: skip
    elif len(first.members) > 1:
        words.append(f"They are those of the mean prediction of {len(first.members)} members.")
    if any(
        task.undefined and task.rows for one in results.evaluations.values() for task in one.tasks
    ):
        words.append(
            f"{NOTHING} is a metric that is not defined, because all known values are equal."
        )
    if results.why_no_interval and any(rows.kind == "number" for rows in results.rows):
        words.append(f"There are no intervals: {results.why_no_interval}.")
    return " ".join(words)
