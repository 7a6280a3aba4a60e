from pathlib import Path
from xml.etree import ElementTree

import pytest

from pna.paper.failures import METHODS, braces, failures, pairs
from pna.paper.scores import Estimate
from pna.report.bars import Bar, Bars, draw_bars
from pna.report.figures import draw_failures, save
from pna.report.heatmap import draw_heatmap
from pna.report.line_plots import Losses, draw_curves, draw_losses
from pna.report.panels import Panel, Series

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")


def texts(svg: Path) -> list[str]:
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(text.itertext()).strip() for text in root.iter(f"{root.tag[:-3]}text")]


def test_the_figure_says_what_was_computed(tmp_path: Path) -> None:
    svg, png = save(draw_failures(failures()), tmp_path, "failures")
    words = texts(svg)
    for method in METHODS:
        assert method.name in words
    for pair in pairs():
        assert {braces(pair.left), braces(pair.right)} <= set(words)
    assert "0.333 ≠ 0.667" in words  # the means of the first pair
    assert "4 = 4" in words  # the maxima of the fourth
    assert [word for word in words if word.endswith("of 5")] == [
        "1 of 5", "1 of 5", "1 of 5", "1 of 5", "2 of 5", "4 of 5", "5 of 5"
    ]  # fmt: skip
    assert png.read_bytes().startswith(b"\x89PNG")


def test_names_are_drawn_letter_by_letter(tmp_path: Path) -> None:
    """Wherever figures take them: no formulas, and nothing that SVG may not hold."""
    name = "a$\\frac$\x00_\\$^{&<b>"
    shown = name.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    estimates = [Estimate.of([1.0, 2.0]), Estimate.of([2.0, 3.0])]
    drawn = {
        "bars": draw_bars([Bars(name, name, [Bar(name, 1.0, name, True)])]),
        "heatmap": draw_heatmap(name, [name], [name], [[1.0]], [True]),
        "training": draw_losses({name: [Losses(name, [1, 2], [1.0, 2.0], [1.0, 2.0])]}),
        "curves": draw_curves([Panel(name, [Series(name, estimates)])], [0.0, 1.0], name, 5.0),
    }
    for kind, figure in drawn.items():
        svg, _ = save(figure, tmp_path, kind)
        assert shown in texts(svg), kind


def test_every_leaf_shows_its_value(tmp_path: Path) -> None:
    svg, _ = save(draw_failures(failures()), tmp_path, "failures")
    leaves = [f"{value:g}" for pair in pairs() for value in (*pair.left, *pair.right)]
    digits = [word for word in texts(svg) if word.isdigit()]
    assert sorted(digits) == sorted(leaves)


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    first, _ = save(draw_failures(failures()), tmp_path / "a", "failures")
    second, _ = save(draw_failures(failures()), tmp_path / "b", "failures")
    assert first.read_bytes() == second.read_bytes()


def test_a_name_has_one_colour_in_every_panel_and_no_other_has_it_beside() -> None:
    values = [Estimate.of([-1.0]), Estimate.of([-0.5])]

    def panel(*names: str) -> Panel:
        return Panel("", [Series(name, values, is_ours=name == "PNA") for name in names])

    panels = [panel("GCN", "PNA", "GAT"), panel("GIN", "GAT", "PNA"), panel("GIN", "GCN", "SAGE")]
    figure = draw_curves(panels, [1.0, 2.0], "nodes", highest=0.5)
    found: dict[str, set[str]] = {}
    for axes in figure.axes:
        shown = {text.get_text(): text.get_color() for text in axes.texts}
        assert len(set(shown.values())) == len(shown) == 3
        for name, colour in shown.items():
            found.setdefault(name, set()).add(colour)
    assert all(len(colours) == 1 for colours in found.values())
