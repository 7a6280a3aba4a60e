"""Tables as data, and as text for a terminal, HTML and Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from pna.paper.scores import Estimate
from pna.report.page import render

NOTHING = "–"  # where there is no number
_HEAD = 12  # letters of a head on one line of a terminal: as many as a number has
_NAME = 24  # letters of a row's name that a narrow terminal leaves on a line
_ANY = 10_000  # columns, more than any table has


@dataclass(frozen=True)
class TextTable:
    """Heads and rows of text. A row with an empty first cell belongs to the row above it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1  # columns at the left that are words; the others are numbers
    strong: frozenset[tuple[int, int]] = frozenset()  # cells (row, column) that stand out
    ours: frozenset[int] = frozenset()  # rows that stand out


def number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    """A number with a minus sign as wide as a plus sign; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = round(value, digits) or 0.0  # and never −0
    return f"{rounded:{'+' if sign and rounded else ''},.{digits}f}".replace("-", "−")


def estimate(value: Estimate, digits: int = 2) -> str:
    """A mean, and half the width of its interval if it has one."""
    if not math.isfinite(value.mean) or not math.isfinite(value.half):
        return number(value.mean, digits)
    return f"{number(value.mean, digits)} ± {number(value.half, digits)}"


@dataclass(frozen=True)
class RowGroup:
    """Lines of one model, of which only the first names it."""

    label: str
    lines: dict[str, list[str]]  # cells, by what they are
    is_ours: bool = False
    means: Sequence[float] = ()  # if given, the least of each column stands out
    line: str = ""  # the line of the means, by default the first


def stacked(title: str, heads: tuple[str, ...], blocks: Sequence[RowGroup]) -> TextTable:
    """A table of blocks; the first two columns are a model and what its line is."""
    rows: list[tuple[str, ...]] = []
    ours: set[int] = set()
    means: dict[int, Sequence[float]] = {}
    for block in blocks:
        if block.is_ours:
            ours |= set(range(len(rows), len(rows) + len(block.lines)))
        if block.means:
            at = list(block.lines).index(block.line) if block.line else 0
            means[len(rows) + at] = block.means
        labels = [block.label] + [""] * (len(block.lines) - 1)
        rows += [
            (label, line, *cells)
            for label, (line, cells) in zip(labels, block.lines.items(), strict=True)
        ]
    return TextTable(title, heads, tuple(rows), 2, least(means, 2), frozenset(ours))


def least(means: Mapping[int, Sequence[float]], first: int) -> frozenset[tuple[int, int]]:
    """Cells (row, column) with the least mean of their column, if there are several rows."""
    if len(means) < 2:
        return frozenset()
    values = np.nan_to_num(list(means.values()), nan=np.inf, posinf=np.inf)
    rows = list(means)
    known = np.isfinite(values).any(0)
    return frozenset((rows[r], c + first) for c, r in enumerate(values.argmin(0)) if known[c])


def to_rich(table: TextTable) -> RichTable:
    """For the terminal, without the title; `print_table` makes it wide enough for all numbers."""
    shown = RichTable(box=SIMPLE_HEAD)
    for c, head in enumerate(table.heads):
        longest = max((len(row[c]) for row in table.rows), default=0)
        if table.words == len(table.heads):  # sentences
            shown.add_column(escape_markup(head))
        elif c == 0:  # the names of rows, which give way to numbers
            shown.add_column(escape_markup(head), min_width=min(longest, _NAME))
        else:
            broken = "\n".join(wrap(head, _HEAD))
            side: Any = "left" if c < table.words else "right"
            least = max(longest, *(len(line) for line in broken.splitlines() or [""]))
            shown.add_column(escape_markup(broken), justify=side, no_wrap=True, min_width=least)
    for r, row in enumerate(table.rows):
        cells = [escape_markup(cell) for cell in row]
        for c in range(len(cells)):
            if (r, c) in table.strong:
                cells[c] = f"[bold]{cells[c]}[/]"
        shown.add_row(*cells, style="cyan" if r in table.ours else None)
    return shown


def print_table(console: Console, table: TextTable) -> None:
    """Print a table below its title, which may be longer than its rows. A terminal too narrow for
    it breaks lines, and truncates no number."""
    shown = to_rich(table)
    console.print(Text(table.title, style="bold"))
    least = Measurement.get(console, console.options.update(width=_ANY), shown).minimum
    if least > console.width:
        shown.width = least
    console.print(shown, crop=False)


def to_html(table: TextTable) -> str:
    """For the page, in a box that scrolls by itself where the table is wider than the page."""
    return render("table.html", table=table)


def to_markdown(table: TextTable) -> str:
    """For documents; the title is a line above the table."""
    lines = [[_plain(head) for head in table.heads]]
    lines.append(["---" if c < table.words else "---:" for c in range(len(table.heads))])
    for r, row in enumerate(table.rows):
        cells = (_plain(cell) for cell in row)
        lines.append([f"**{t}**" if (r, c) in table.strong else t for c, t in enumerate(cells)])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table.title}\n\n{rows}\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
