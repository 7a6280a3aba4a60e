import io
import math
from html.parser import HTMLParser

import pytest
from rich.console import Console

from pna.paper.scores import Estimate
from pna.report.tables import (
    TextTable,
    estimate,
    number,
    print_table,
    to_html,
    to_markdown,
)

TABLE = TextTable(
    "A <title>",
    ("model", "error", "spectral radius of it"),
    (("[a] & b", "−1.00", "2"), ("", "−2.00", "x|y")),
    strong=frozenset({(1, 1)}),
    ours=frozenset({0}),
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-3.128, "−3.13"), (-0.001, "0.00"), (8350.0, "8,350.00"), (None, "–"), (math.nan, "–"),
     (math.inf, "∞"), (-math.inf, "−∞")],
)  # fmt: skip
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_differences_have_a_sign() -> None:
    assert [number(v, sign=True) for v in (0.5, -0.5, 0.001)] == ["+0.50", "−0.50", "0.00"]
    assert number(8350, 0) == "8,350"


def test_estimates_have_an_interval_if_there_is_one() -> None:
    assert estimate(Estimate(-1.0, 0.25, (-1.1, -0.9))) == "−1.00 ± 0.25"
    assert estimate(Estimate.of([-1.0])) == "−1.00"
    assert estimate(Estimate.of([])) == "–"
    assert estimate(Estimate(math.inf, math.nan, (1.0, math.inf))) == "∞"


def test_the_terminal_shows_every_cell() -> None:
    out = io.StringIO()
    print_table(Console(file=out, width=80), TABLE)
    shown = out.getvalue()
    for text in ("A <title>", "model", "spectral", "radius of it", "[a] & b", "−2.00", "x|y"):
        assert text in shown


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_narrow_terminal_cuts_no_number(width: int) -> None:
    heads = ("model", *(f"task {i}" for i in range(6)))
    row = ("PNA, with a mean in the place of Set2Set", *(f"−{i}.25 ± 0.10" for i in range(6)))
    out = io.StringIO()
    print_table(Console(file=out, width=width), TextTable("errors", heads, (row,)))
    shown = out.getvalue()
    assert "…" not in shown and all(number in shown for number in row[1:])
    name = " ".join(line[:26].strip() for line in shown.splitlines()[4:]).split()
    assert width == 200 or name == row[0].split()


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_a_narrow_terminal_cuts_neither_heads_nor_names(width: int) -> None:
    heads = ("model", "members", "average of logs", "eccentricity", "spectral radius")
    rows = (("GCN", "paper", "–", "−1", "–"), ("GIN", "paper", "–", "−2", "–"))
    out = io.StringIO()
    print_table(Console(file=out, width=width), TextTable("errors", heads, rows, 2))
    shown = out.getvalue()
    for word in ("GCN", "GIN", "model", "members", "average of", "eccentricity", "spectral"):
        assert word in shown
    assert "…" not in shown


def test_html_is_escaped_and_marked() -> None:
    text = to_html(TABLE)
    assert "A &lt;title&gt;" in text and "[a] &amp; b" in text and "<title>" not in text
    assert "<b>−2.00</b>" in text
    assert text.count("<tr") == 3 and text.count("<td") == 4 and 'class="ours first"' in text

    class Balanced(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(text)
    assert parser.open == []


def test_markdown_is_a_table() -> None:
    assert to_markdown(TABLE) == (
        "A <title>\n\n"
        "| model | error | spectral radius of it |\n"
        "| --- | ---: | ---: |\n"
        "| [a] & b | −1.00 | 2 |\n"
        "|  | **−2.00** | x\\|y |\n"
    )
