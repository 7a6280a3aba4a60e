"""Figure and page of the small comparison that `pna demo` makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pna.paper.demo import EPOCHS, MEMBERS, MODELS, SIZES
from pna.paper.scores import Estimate, Scores
from pna.report import page
from pna.report.bars import OTHER
from pna.report.colours import APART, FAINT, INK
from pna.report.tables import TextTable, to_html


def averages(scores: Scores) -> dict[str, Estimate]:
    """The average of the tasks of every model, the best first."""
    found = {name: scores.average(name, "test", top=None) for name in scores.populations}
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


def draw_comparison(scores: Scores) -> Figure:
    """A bar for each model from the baseline to its average, and a dot for each of its runs."""
    found, start = averages(scores), scores.baseline_average("test")
    figure = Figure(figsize=(5.2, 0.42 * len(found) + 1.1), layout="constrained")
    axes = figure.subplots()
    for y, (model, average) in enumerate(found.items()):
        colour = APART if model == "pna" else OTHER
        axes.barh(y, average.mean - start, left=start, height=0.62, color=colour)
        axes.plot(average.values, [y] * len(average.values), "o", ms=4, mfc="white", mec=INK)
        furthest = min(*average.values, average.mean)
        axes.annotate(
            f"{average.mean:.2f}".replace("-", "−"), (furthest, y), (8, 0),
            textcoords="offset points", va="center", ha="left", fontsize=10, color=INK,
        )  # fmt: skip
    axes.set_yticks(range(len(found)), [MODELS[model] for model in found])
    axes.tick_params(axis="y", labelsize=10.5, length=0)
    axes.tick_params(axis="x", labelsize=9, colors=FAINT)
    axes.invert_yaxis()
    lowest = min(min(average.values) for average in found.values())
    axes.set_xlim(start, lowest - 0.2 * (start - lowest))
    axes.axvline(start, color=INK, linewidth=1)
    axes.set_xlabel("log10 of the error, average of six tasks (further right is better)",
                    fontsize=9, color=FAINT)  # fmt: skip
    baseline = f"{start:.2f}".replace("-", "−")
    title = f"Left edge: always predicting the mean ({baseline})"
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def table_of(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, best model first, the baseline last."""
    heads = ["", "average", *(task.replace("_", " ") for task in scores.tasks)]
    rows = {}
    for model, average in averages(scores).items():
        tasks = (scores.of_task(model, task, "test", top=None).mean for task in scores.tasks)
        rows[MODELS[model]] = [average.mean, *tasks]
    baseline = np.log10(scores.baseline["test"]).tolist()
    rows["the mean"] = [scores.baseline_average("test"), *baseline]
    return heads, [[label, *(f"{mean:.2f}" for mean in row)] for label, row in rows.items()]


def write_page(
    path: Path, scores: Scores, figures: list[tuple[str, Figure]], epochs: int = EPOCHS
) -> None:
    """One file that needs no other and no network; `figures` are (what they show, figure)."""
    heads, rows = table_of(scores)
    table = TextTable(
        "log10 of the mean square error on test graphs: lower is better",
        tuple(heads),
        tuple((row[0], *(cell.replace("-", "−") for cell in row[1:])) for row in rows),
        ours=frozenset(r for r, row in enumerate(rows) if row[0] == MODELS["pna"]),
    )
    drawn = [
        page.figure(shown, words, f"demo {k}", adapts=False)
        for k, (words, shown) in enumerate(figures)
    ]
    body = page.render(
        "demo.html", table=to_html(table), figures=drawn, epochs=epochs, members=MEMBERS,
        sizes=SIZES,
    )  # fmt: skip
    path.write_text(page.document("pna: the demo", body), encoding="utf-8")
