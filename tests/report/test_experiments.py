import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pna.paper.registry import EXPERIMENTS
from pna.report.experiments import TITLE, markdown, page, write_page
from pna.report.read import ExperimentResult
from tests.report.made import make

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")


class Seen(HTMLParser):
    """Tags, ids, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        held = dict(attrs)
        self.ids += [str(held["id"])] if "id" in held else []
        self.links += [str(held[name]) for name in ("href", "src", "xlink:href") if name in held]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_one_result_is_a_page_of_itself(tmp_path: Path) -> None:
    text = page([ExperimentResult.read(make(tmp_path, "multitask"))])
    seen = Seen(text)
    assert seen.tags.count("svg") == 2 and seen.tags.count("table") == 2
    assert seen.tags.count("h1") == 1 and "nav" not in seen.tags and "Quick run" not in seen.text
    for words in (EXPERIMENTS["multitask"].title, "a card", "commit", "✓ holds", "+0.90",
                  "Corso et al.", "Settings of every population", "weight_decay"):  # fmt: skip
        assert words in seen.text, words


@pytest.mark.slow
def test_several_results_have_contents_and_links_of_their_own(tmp_path: Path) -> None:
    folders = [make(tmp_path / "a", "parameters"), make(tmp_path / "b", "diameter"),
               make(tmp_path / "c", "diameter", members=1, quick=True)]  # fmt: skip
    seen = Seen(page([ExperimentResult.read(folder) for folder in folders]))
    assert TITLE in seen.text
    sections = [name for name in seen.ids if name.startswith(("diameter", "parameters"))]
    first, second = "diameter-paper-redrawn", "parameters-paper-redrawn"
    assert sections == [first, second, f"{first}-2"]
    assert [f"#{name}" for name in sections] == seen.links[: len(sections)]
    assert seen.text.count("Quick run.") == 1
    assert "quick; 0 of 2 claims hold, 2 undecided" in seen.text
    assert len(seen.ids) == len(set(seen.ids))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = page([ExperimentResult.read(make(tmp_path, "graph-types"))])
    seen = Seen(text)
    assert all(link.startswith("#") for link in seen.links)
    assert not {"script", "link", "iframe", "img"} & set(seen.tags)
    assert not re.search(r"url\((?!#)|@import", text)


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    result = ExperimentResult.read(
        make(tmp_path, "extrapolation", label=lambda name: f"{name} {evil}")
    )
    text = page([result])
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "PNA <script>alert('&')</script>" in Seen(text).text


def test_the_same_results_are_the_same_page(tmp_path: Path) -> None:
    result = ExperimentResult.read(make(tmp_path / "results", "parameters"))
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, [result])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_markdown_has_claims_and_tables(tmp_path: Path) -> None:
    text = markdown(ExperimentResult.read(make(tmp_path, "multitask")), "of/it")
    assert "| PNA has the lowest error on the average of the tasks | holds |" in text
    assert "| PNA | best 5 of 6 | **−2.23 ± 0.02** |" in text
    assert "| --- | --- | ---: |" in text and "quick" not in text
    assert "](of/it/multitask.svg)" in text and "](of/it/multitask-tasks.svg)" in text
    assert "quick run" in markdown(
        ExperimentResult.read(make(tmp_path / "q", "moments", quick=True)), "."
    )
    assert "Claims" not in markdown(ExperimentResult.read(make(tmp_path / "t", "tuning")), ".")
