"""The page of one run: metrics, plots of every target, the learning curve and the settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pna.data.molecule_table import TABLE
from pna.files import replacing
from pna.report.line_plots import draw_learning_curve
from pna.report.page import document, figure, render
from pna.report.run_plots import (
    MOST_BARS,
    MOST_CURVES,
    MOST_POINTS,
    Curve,
    ReliabilityBins,
    draw_coverage,
    draw_parity,
    draw_precision_recall,
    draw_reliability,
    draw_roc,
)
from pna.report.run_results import LEVELS, RunResults, TaskRows
from pna.report.run_tables import about, cell, scored, tables, tables_of_members
from pna.train.evaluation import TaskScores
from pna.train.metrics import METRICS, SHOWN

MOST_TARGETS = 12  # targets with plots: more would make the page long
_BY_LEVEL = {"node": "nodes", "edge": "edges"}


def write_page(path: Path, results: RunResults) -> None:
    """One file that needs no other, and no network."""
    with replacing(path) as file:
        file.write(page(results))


def page(results: RunResults) -> str:
    """The page as HTML."""
    kinds = {rows.kind for rows in results.rows}
    if kinds - {"number"} and find_spec("sklearn") is None:
        raise ModuleNotFoundError(
            "got no scikit-learn, needed for ROC and precision-recall curves; "
            "pip install 'pna[plot,sklearn]'"
        )
    config, title = results.config, results.run.folder.resolve().name
    left_out = len(results.rows) - MOST_TARGETS
    body = render(
        "run.html", title=title, about=about(results), tables=tables(results),
        members=tables_of_members(results), scored=scored(results),
        learning=_learning_curve(results),
        targets=[_target(results, rows) for rows in results.rows[:MOST_TARGETS]],
        left_out=f"{left_out:,} more targets are in the table only." if left_out > 0 else "",
        settings={
            "Training": config.settings.as_dict(), "Model": config.model.as_dict(),
            "Data": config.data, "Machine": results.run.environment,
        },
        json=lambda value: json.dumps(value, ensure_ascii=False),
    )  # fmt: skip
    return document(f"{title}: a run of pna", body)


def _learning_curve(results: RunResults) -> str:
    """The figure of losses by epoch; empty if there are none."""
    losses, finished = results.run.metrics(), results.run.summary
    if not losses:
        return ""
    best = finished or {"best_epoch": [], "best": []}
    pairs = zip(best["best_epoch"], best["best"], strict=True)
    caption = "Loss by epoch. Targets are divided by their scales."
    if results.config.settings.members > 1:
        caption += " Lines are means over the members in training, bands their range."
    drawn = draw_learning_curve(losses, [epoch for epoch, loss in pairs if loss is not None])
    return figure(drawn, caption, "learning")


@dataclass(frozen=True)
class _Target:
    """The section of a target."""

    name: str
    notes: list[str]
    figures: list[str]


def _target(results: RunResults, rows: TaskRows) -> _Target:
    split, found = next(iter(results.evaluations.items()))
    scores = next(task for task in found.tasks if task.name == rows.task.name)
    what = _BY_LEVEL.get(rows.task.level)
    what = what or ("molecules" if TABLE in results.graphs.metadata else "graphs")
    target = _Target(
        rows.task.name,
        [f"{split.capitalize()}: {len(rows.targets):,} {what} with a known value."],
        [],
    )
    if not len(rows.targets):
        target.notes[:] = [f"{split.capitalize()}: no known value, so there are no plots."]
    elif not np.isfinite(rows.found.mean).all():
        target.notes.append("Some predictions are not finite, so there are no plots.")
    else:
        {"number": _number, "probability": _binary, "classes": _classes}[rows.kind](
            target, results, rows, scores
        )
    return target


def _number(target: _Target, results: RunResults, rows: TaskRows, scores: TaskScores) -> None:
    found, count = rows.found, len(rows.targets)
    ends, words = found.ends, ["Predicted by measured values."]
    metrics = [f"{METRICS[n].title} {cell(n, scores.ensemble[n])}" for n in SHOWN["number"]]
    words.append(f"{', '.join(metrics)}.")
    if ends is not None:
        inside = ((ends[0] <= rows.targets) & (rows.targets <= ends[1])).mean()
        bars = " (bars)" if count <= MOST_BARS else ""
        words.append(f"{results.interval:.0%} intervals{bars} contain {inside:.0%} of the values.")
    elif found.std is not None:
        ends = (found.mean - found.std, found.mean + found.std)
        if count <= MOST_BARS:
            words.append("Bars are ± the standard deviation over the members.")
    if count > MOST_POINTS:
        words.append("Darker hexagons have more rows.")
    drawn = draw_parity(target.name, rows.targets, found.mean, ends)
    caption = " ".join(words)
    target.figures.append(figure(drawn, caption, f"{target.name} parity"))
    if rows.covered:
        caption = (
            "Share of measured values inside prediction intervals, by their level. Below the "
            "diagonal, intervals are too narrow."
        )
        drawn = draw_coverage(LEVELS, rows.covered)
        target.figures.append(figure(drawn, caption, f"{target.name} coverage"))


def _binary(target: _Target, results: RunResults, rows: TaskRows, scores: TaskScores) -> None:
    ones = rows.targets > 0.5
    name = "1" if rows.classes[1] == "1" else f"1 ({rows.classes[1]})"
    target.notes[0] = f"{target.notes[0][:-1]}, {int(ones.sum()):,} of them {name}."
    if ones.all() or not ones.any():
        target.notes.append(
            f"There is no ROC or precision-recall curve: all known values are {int(ones[0])}, and "
            "both curves need both classes."
        )
    else:
        dot = f"The dot is the prediction of a 1 from a probability of {rows.threshold:.3g} on."
        curve = [Curve(target.name, ones, rows.order, rows.predicts_one)]
        _curves(target, curve, [
            f"ROC AUC {cell('roc_auc', scores.ensemble['roc_auc'])}. {dot} The diagonal is a "
            "random order.",
            f"Average precision {cell('average_precision', scores.ensemble['average_precision'])}."
            f" The dashed line is a random order: {ones.mean():.1%} of the values are 1.",
        ])  # fmt: skip
    before = rows.uncalibrated
    hollow = "" if before is None else " Hollow points: before calibration by a temperature."
    _reliability(
        target, (rows.found.mean, ones), None if before is None else (before, ones),
        ("predicted probability of a 1", "share of 1"), hollow,
    )  # fmt: skip


def _classes(target: _Target, results: RunResults, rows: TaskRows, scores: TaskScores) -> None:
    actual, probabilities = rows.targets.astype(int), rows.found.mean
    counts = np.bincount(actual, minlength=len(rows.classes))
    usable = [c for c in np.argsort(-counts, kind="stable") if 0 < counts[c] < len(actual)]
    curves = [
        Curve(f"{rows.classes[c]} ({counts[c]:,})", actual == c, probabilities[:, c])
        for c in usable[:MOST_CURVES]
    ]
    if curves:
        more = f" The {MOST_CURVES} largest classes." if len(usable) > MOST_CURVES else ""
        _curves(target, curves, [
            f"ROC curve of each class against the rest.{more} The diagonal is a random order.",
            f"Precision and recall of each class against the rest.{more}",
        ])  # fmt: skip
    else:
        target.notes.append(
            f"There is no ROC or precision-recall curve: all known values are "
            f"{rows.classes[actual[0]]}, and both curves need several classes."
        )
    hits = probabilities.argmax(1) == actual
    labels = ("probability of the predicted class", "share of right predictions")
    _reliability(target, (probabilities.max(1), hits), None, labels, "")


def _curves(target: _Target, curves: list[Curve], captions: list[str]) -> None:
    for draw, caption in zip((draw_roc, draw_precision_recall), captions, strict=True):
        target.figures.append(figure(draw(curves), caption, f"{target.name} {draw.__name__}"))


def _reliability(
    target: _Target,
    now: tuple[np.ndarray, np.ndarray],
    before: tuple[np.ndarray, np.ndarray] | None,
    labels: tuple[str, str],
    more: str,
) -> None:
    bins = ReliabilityBins.of(*now)
    low, high = int(bins.rows.min()), int(bins.rows.max())
    size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    caption = (
        f"Each point is {size} rows with similar probabilities; bars are 95% "
        f"intervals. On the diagonal, probabilities are right.{more}"
    )
    drawn = draw_reliability(bins, None if before is None else ReliabilityBins.of(*before), labels)
    target.figures.append(figure(drawn, caption, f"{target.name} reliability"))
