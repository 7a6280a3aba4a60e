"""Results of experiments as a page or as Markdown: settings, claims, figures and tables."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pna.files import replacing
from pna.paper.claims import FAILS, HOLDS, NOT_RUN, OPEN
from pna.report.drawings import drawings
from pna.report.page import document, figure, render
from pna.report.read import ExperimentResult, in_order
from pna.report.results import about, claims, tables, verdicts
from pna.report.tables import number, to_html, to_markdown

TITLE = "The experiments of the paper, compared with its numbers"
#: Class and sign of every outcome of a claim.
_SIGNS = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✗"), OPEN: ("open", "?"),
          NOT_RUN: ("open", "–")}  # fmt: skip
_QUICK = (
    "A quick run: few graphs, few epochs and few members, to see that everything works. Its "
    "numbers are no evidence for or against the paper."
)


def write_page(path: Path, results: Sequence[ExperimentResult]) -> None:
    """One file with all results, in the order of the experiments."""
    with replacing(path) as file:
        file.write(page(results))


def page(results: Sequence[ExperimentResult]) -> str:
    """All results as one HTML page; several results get a table of contents."""
    sections: dict[str, ExperimentResult] = {}
    seen: Counter[str] = Counter()
    for result in in_order(results):
        facts = result.facts
        words = f"{result.experiment.name}-{facts['protocol']}-{facts['recipe']}"
        name = "".join(c if c.isalnum() else "-" for c in words)
        seen[name] += 1
        sections[name if seen[name] == 1 else f"{name}-{seen[name]}"] = result
    body = render(
        "experiments.html", title=TITLE, sections=sections, quick=_QUICK, signs=_SIGNS,
        tally=_tally, about=about, verdicts=verdicts, drawings=drawings, tables=tables,
        figure=figure, to_html=to_html, number=number,
        json=lambda value: json.dumps(value, ensure_ascii=False),
    )  # fmt: skip
    return document(TITLE if len(sections) > 1 else results[0].title, body)


def write_markdown(path: Path, results: Mapping[Path, ExperimentResult]) -> None:
    """All results, by their folders, as one document that shows the figures in them."""
    ordered = in_order(results.values())
    folders = {id(result): folder for folder, result in results.items()}
    sections = [f"# {TITLE}\n"]
    for result in ordered:
        folder = Path(os.path.relpath(folders[id(result)].resolve(), path.resolve().parent))
        sections += [f"## {result.title}\n", markdown(result, folder.as_posix())]
    with replacing(path) as file:
        file.write("\n".join(sections))


def markdown(result: ExperimentResult, folder: str) -> str:
    """Settings, claims, the figures in its folder, and the tables of one result."""
    quick = [f"**{_QUICK}**\n"] if result.is_quick else []
    facts = [f"- {name}: {value}" for name, value in about(result).items()]
    figures = [
        f"![{drawing.caption}]({folder}/{drawing.name}.svg)\n\n{drawing.caption}\n"
        for drawing in drawings(result)
    ]
    decided = map(to_markdown, claims(result))
    return "\n".join([*quick, *facts, "", *decided, *figures, *map(to_markdown, tables(result))])


def _tally(result: ExperimentResult) -> str:
    """How many claims hold."""
    found = Counter(verdict.outcome for _, verdict in verdicts(result))
    if not found:
        return "no claims"
    others = {"not": found[FAILS], "undecided": found[OPEN]}
    return ", ".join([f"{found[HOLDS]} of {found.total()} claims hold",
                      *(f"{count} {what}" for what, count in others.items() if count)])  # fmt: skip
