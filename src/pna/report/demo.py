"""Figure and page of the small comparison that `pna demo` makes."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from pna.paper.demo import EPOCHS, MEMBERS, MODELS, SIZES, Comparison, Score
from pna.report import page
from pna.report.bars import OTHER
from pna.report.colours import APART, FAINT, INK
from pna.report.tables import Table, to_html


def draw_comparison(result: Comparison) -> Figure:
    """A bar for each model from the baseline to its average, and a dot for each of its runs."""
    figure = Figure(figsize=(5.2, 0.42 * len(result.scores) + 1.1), layout="constrained")
    axes = figure.subplots()
    start = result.baseline_average
    for y, score in enumerate(_best_first(result)):
        colour = APART if score.model == "pna" else OTHER
        axes.barh(y, score.average - start, left=start, height=0.62, color=colour)
        axes.plot(score.averages, [y] * len(score.averages), "o", ms=4, mfc="white", mec=INK)
        label = f"  {score.average:.2f}"
        furthest = min(*score.averages, score.average)
        axes.text(furthest, y, label, va="center", ha="left", fontsize=10, color=INK)
    axes.set_yticks(range(len(result.scores)), [MODELS[s.model] for s in _best_first(result)])
    axes.tick_params(axis="y", labelsize=10.5, length=0)
    axes.tick_params(axis="x", labelsize=9, colors=FAINT)
    axes.invert_yaxis()
    lowest = min(min(score.averages) for score in result.scores)
    axes.set_xlim(start, lowest - 0.2 * (start - lowest))
    axes.axvline(start, color=INK, linewidth=1)
    axes.set_xlabel("log10 of the error, average of six tasks (further right is better)",
                    fontsize=9, color=FAINT)  # fmt: skip
    title = f"Left edge: always predicting the mean ({start:.2f})"
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def table_of(result: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, best model first, the baseline last."""
    heads = ["", "average", *(task.replace("_", " ") for task in result.tasks)]
    rows = [
        [MODELS[score.model], *(f"{e:.2f}" for e in (score.average, *score.tasks))]
        for score in _best_first(result)
    ]
    mean = [f"{e:.2f}" for e in (result.baseline_average, *result.baseline)]
    return heads, [*rows, ["the mean", *mean]]


def write_page(
    path: Path, result: Comparison, figures: list[tuple[str, Figure]], epochs: int = EPOCHS
) -> None:
    """One file that needs no other and no network; `figures` are (what they show, figure)."""
    heads, rows = table_of(result)
    table = Table(
        "log10 of the mean square error on graphs that were not trained on: less is better",
        tuple(heads),
        tuple((row[0], *(cell.replace("-", "−") for cell in row[1:])) for row in rows),
        ours=frozenset(r for r, row in enumerate(rows) if row[0] == MODELS["pna"]),
    )
    drawn = "".join(
        page.figure(shown, words, f"demo {k}", adapts=False)
        for k, (words, shown) in enumerate(figures)
    )
    body = _BODY.format(
        table=to_html(table), figures=drawn, epochs=epochs, members=MEMBERS, first=SIZES[0],
        last=SIZES[-1],
    )  # fmt: skip
    path.write_text(page.document("pna: the demo", body), encoding="utf-8")


def _best_first(result: Comparison) -> list[Score]:
    return sorted(result.scores, key=lambda score: score.average)


_BODY = """<h1>Several aggregators see more of a graph than one</h1>
<p>Six models were trained just now, on this machine, to tell of small random graphs ({first} to
{last} nodes) how far every node is from a source, its eccentricity, the Laplacian of a feature,
and of each graph whether it is connected, its diameter and its spectral radius. All of them have
the same architecture and training ({epochs} epochs, {members} runs each at once); only the
convolution differs.</p>
{table}
{figures}
<p>This is the paper's comparison in small: tiny graphs, a short training, two runs, in
a setting that was picked among several because models differ in it after minutes. With two runs
each, a tenth more or less says nothing. Go on with <code>pna evaluate</code> and a folder in
<code>runs</code> beside this page, or with the whole
benchmark: <code>pna data multitask --out multitask.safetensors</code>, then
<code>pna train</code>.</p>
"""
