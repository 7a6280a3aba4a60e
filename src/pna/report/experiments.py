"""The page of experiments: what was run, its tables and figures, and the claims of the paper."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pna.files import replacing
from pna.paper.claims import FAILS, HOLDS, NOT_RUN, OPEN, Verdict
from pna.report.drawings import drawings
from pna.report.page import document, figure
from pna.report.read import Result, in_order
from pna.report.results import about, claims, tables, verdicts
from pna.report.tables import number, to_html, to_markdown

TITLE = "The experiments of the paper, beside its numbers"
_SIGNS = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✗"), OPEN: ("open", "?"),
          NOT_RUN: ("open", "–")}  # fmt: skip
_QUICK = (
    "A quick run: few graphs, few epochs and few members, to see that everything works. Its "
    "numbers are no evidence for or against the paper."
)


def write_page(path: Path, results: Sequence[Result]) -> None:
    """One file with all results, in the order of the experiments."""
    with replacing(path) as file:
        file.write(page(results))


def page(results: Sequence[Result]) -> str:
    """The same as text."""
    ordered = in_order(results)
    names = _names(ordered)
    if len(ordered) == 1:
        return document(ordered[0].title, section(ordered[0], names[0], "h1"))
    sections = [section(result, name) for name, result in zip(names, ordered, strict=True)]
    lines = "".join(
        f'<li><a href="#{name}">{escape(result.title)}</a><br>'
        f"<small>{escape(result.setting)}; {escape(_tally(result))}</small></li>"
        for name, result in zip(names, ordered, strict=True)
    )
    contents = f"<h1>{escape(TITLE)}</h1><nav aria-label=Contents><ol>{lines}</ol></nav>"
    return document(TITLE, contents + "".join(sections))


def section(result: Result, name: str, heading: str = "h2") -> str:
    """All that there is of one result; `name` is what it is linked by."""
    quick = f"<p class=quick><strong>Quick run.</strong> {escape(_QUICK)}</p>"
    drawn = "".join(
        figure(drawing.figure, drawing.caption, f"{name} {drawing.name}")
        for drawing in drawings(result)
    )
    return (
        f'<section id="{name}"><{heading}>{escape(result.title)}</{heading}>'
        f"{quick if result.is_quick else ''}{_list(about(result))}"
        f"{_claims(result)}"
        f"<h3>Figures</h3>{drawn}<h3>Numbers</h3>{''.join(map(to_html, tables(result)))}"
        f"{_source(result)}{_settings(result)}</section>"
    )


def write_markdown(path: Path, results: Mapping[Path, Result]) -> None:
    """All results, by their folders, as one document that shows the figures in them."""
    ordered = in_order(results.values())
    folders = {id(result): folder for folder, result in results.items()}
    sections = [f"# {TITLE}\n"]
    for result in ordered:
        folder = Path(os.path.relpath(folders[id(result)].resolve(), path.resolve().parent))
        sections += [f"## {result.title}\n", markdown(result, folder.as_posix())]
    with replacing(path) as file:
        file.write("\n".join(sections))


def markdown(result: Result, folder: str) -> str:
    """What was run, the claims, the figures in its folder, and the tables."""
    quick = [f"**{_QUICK}**\n"] if result.is_quick else []
    facts = [f"- {name}: {value}" for name, value in about(result).items()]
    figures = [
        f"![{drawing.caption}]({folder}/{drawing.name}.svg)\n\n{drawing.caption}\n"
        for drawing in drawings(result)
    ]
    told = map(to_markdown, claims(result))
    return "\n".join([*quick, *facts, "", *told, *figures, *map(to_markdown, tables(result))])


def _names(results: Sequence[Result]) -> list[str]:
    """For links, each of them once."""
    seen: Counter[str] = Counter()
    names = []
    for result in results:
        facts = result.facts
        parts = [result.experiment.name, str(facts["protocol"]), str(facts["recipe"])]
        name = "".join(c if c.isalnum() else "-" for c in "-".join(parts))
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _tally(result: Result) -> str:
    """How many claims hold."""
    found = Counter(verdict.outcome for _, verdict in verdicts(result))
    if not found:
        return "no claims"
    parts = [f"{found[HOLDS]} of {found.total()} claims hold"]
    if found[FAILS]:
        parts.append(f"{found[FAILS]} not")
    if found[OPEN]:
        parts.append(f"{found[OPEN]} undecided")
    return ", ".join(parts)


def _claims(result: Result) -> str:
    if not result.experiment.claims:
        return ""
    told = "".join(_claim(*found) for found in verdicts(result))
    return f"<h3>Claims</h3><ul class=claims>{told}</ul>"


def _claim(text: str, verdict: Verdict) -> str:
    kind, sign = _SIGNS[verdict.outcome]
    return (
        f"<li class={kind}>{escape(text)} <b>{sign} {escape(verdict.outcome)}</b>"
        f"<small>{escape(verdict.because)}</small></li>"
    )


def _source(result: Result) -> str:
    """Where the paper's numbers are from."""
    words = ". ".join(part.rstrip(".") for part in (result.published.source, result.published.notes)
                      if part)  # fmt: skip
    return f"<p class=source>The paper's numbers: {escape(words)}.</p>" if words else ""


def _settings(result: Result) -> str:
    """Everything that decided about each population, folded."""
    parts = []
    for name in result.names:
        facts = result.facts["populations"][name]
        held = "".join(
            f"<h4>{escape(part)}</h4>{_list(values)}"
            for part, values in facts.items()
            if isinstance(values, dict)
        )
        size = f"{number(result.parameters(name), 0)} parameters"
        summary = f"{escape(result.label(name))}: {size}, {facts['epochs']:,} epochs"
        parts.append(
            f"<details><summary>{summary} in {number(facts['seconds'], 0)} s</summary>{held}"
            "</details>"
        )
    return f"<details><summary>Settings of every population</summary>{''.join(parts)}</details>"


def _list(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(_text(value))}</dd>"
        for name, value in values.items()
    )
    return f"<dl class=facts>{rows}</dl>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
