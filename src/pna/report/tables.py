"""Tables as data, and as text for a terminal, HTML and Markdown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.measure import Measurement
from rich.table import Table as RichTable

from pna.paper.scores import Estimate
from pna.report.page import render

NOTHING = "–"  # where there is no number
_HEAD = 12  # letters of a head on one line of a terminal: as many as a number has
_NAME = 24  # letters of a row's name that a narrow terminal leaves on a line
_ANY = 10_000  # columns, more than any table has


@dataclass(frozen=True)
class Table:
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


def to_rich(table: Table) -> RichTable:
    """For the terminal; `print_table` makes it wide enough for all numbers."""
    shown = RichTable(
        title=escape_markup(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
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


def print_table(console: Console, table: Table) -> None:
    """Print a table. A terminal too narrow for it breaks lines, and truncates no number."""
    shown = to_rich(table)
    least = Measurement.get(console, console.options.update(width=_ANY), shown).minimum
    if least > console.width:
        shown.width = least
    console.print(shown, crop=False)


def to_html(table: Table) -> str:
    """For the page, in a box that scrolls by itself where the table is wider than the page."""
    return render("table.html", table=table)


def to_markdown(table: Table) -> str:
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
