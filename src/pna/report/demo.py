"""Figure and page of the small comparison that `pna demo` makes."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pna.paper.demo import EPOCHS, MEMBERS, MODELS, SIZES, Comparison, Score
from pna.report.bars import OTHER
from pna.report.figures import APART, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_PHONE = 7  # inches; a broader figure is scrolled on a narrow screen, not shrunk


def draw_comparison(result: Comparison) -> Figure:
    """A bar for each model from the baseline to its average, and a dot for each of its runs."""
    from matplotlib.figure import Figure

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
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr{' class=ours' if row[0] == MODELS['pna'] else ''}><th>{escape(row[0])}</th>"
        + "".join(f"<td>{cell.replace('-', '−')}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    drawn = "".join(
        f"<figure{' class=broad' if figure.get_figwidth() > _PHONE else ''}>{_inline(figure)}"
        f"<figcaption>{escape(words)}</figcaption></figure>"
        for words, figure in figures
    )
    path.write_text(
        _PAGE.format(
            table=f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
            figures=drawn, epochs=epochs, members=MEMBERS, first=SIZES[0], last=SIZES[-1],
        ),
        encoding="utf-8",
    )  # fmt: skip


def _best_first(result: Comparison) -> list[Score]:
    return sorted(result.scores, key=lambda score: score.average)


def _inline(figure: Figure) -> str:
    """The figure as an <svg> that takes the width there is."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "demo"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None}, transparent=True)
    text = drawn.getvalue()
    return text[text.index("<svg") :]


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pna: the demo</title>
<style>
:root {{ color-scheme: light dark; --ink: #22262b; --faint: #59616b; --page: #fff; --line: #dde1e6;
  --ours: #e5f0fa }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e9ed; --faint: #a4adb8; --page: #15181c; --line: #343a42; --ours: #173450 }} }}
body {{ margin: 0 auto; padding: 1.2rem; max-width: 46rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif }}
h1 {{ font-size: 1.5rem; line-height: 1.25 }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }}
th, td {{ padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }}
th:first-child {{ text-align: left; position: sticky; left: 0; background: var(--page) }}
thead th {{ color: var(--faint); font-weight: normal }}
.ours th, .ours td {{ background: var(--ours) !important; font-weight: bold }}
figure {{ margin: 1.6rem 0; padding: .6rem; background: #fff; border-radius: .5rem;
  overflow-x: auto }}
svg {{ width: 100%; height: auto; display: block }}
.broad svg {{ min-width: 42rem }}
figcaption {{ color: #59616b; font-size: .9rem }}
code {{ font-size: .92em; overflow-wrap: anywhere }}
</style>
<h1>Several aggregators see more of a graph than one</h1>
<p>Six models were trained just now, on this machine, to tell of small random graphs ({first} to
{last} nodes) how far every node is from a source, its eccentricity, the Laplacian of a feature,
and of each graph whether it is connected, its diameter and its spectral radius. All of them have
the same architecture and training ({epochs} epochs, {members} runs each at once); only the
convolution differs.</p>
<p>log10 of the mean square error on graphs that were not trained on; less is better.</p>
<div class="wide">{table}</div>
{figures}
<p>This is the paper's comparison in small: tiny graphs, a short training, two runs, in
a setting that was picked among several because models differ in it after minutes. With two runs
each, a tenth more or less says nothing. Go on with <code>pna evaluate</code> and a folder in
<code>runs</code> beside this page, or with the whole
benchmark: <code>pna data multitask --out multitask.safetensors</code>, then
<code>pna train</code>.</p>
</html>
"""
