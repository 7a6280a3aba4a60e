from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pna.paper.experiment import Variant
from pna.paper.registry import EXPERIMENTS
from pna.report.drawings import FIGURES, Drawing, draw, drawings
from pna.report.figures import save_svg
from pna.report.read import ExperimentResult
from tests.report.made import Errors, make, steadily

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
from matplotlib.text import Text

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: Path) -> list[str]:
    return ["".join(t.itertext()).strip() for t in ElementTree.parse(svg).iter(f"{SVG}text")]


def words_of(drawing: Drawing) -> list[str]:
    """Texts of a figure that is in memory, without the cost of laying it out."""
    for axes in drawing.figure.axes:
        axes.get_xticklabels(), axes.get_yticklabels()  # sets their words
    return [text.get_text() for text in drawing.figure.findobj(Text)]


#: The cheapest experiment of every kind of figure.
CHEAPEST = {"strips": "multitask", "pairs": "single-task", "curves": "diameter",
            "heatmap": "graph-types", "sizes": "parameters", "rates": "tuning", "decays": "decay",
            "benchmark": "molhiv"}  # fmt: skip
#: Six and eight figures of the same kind as those of "single-task".
MANY = ("architectures", "choice")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in MANY else name
        for name in EXPERIMENTS
        if name not in CHEAPEST.values()  # the next test draws those
    ],
)
def test_every_other_experiment_has_figures_of_all_its_models(name: str, tmp_path: Path) -> None:
    drawn = drawings(ExperimentResult.read(make(tmp_path, name)))
    assert drawn[0].name == name and len({drawing.name for drawing in drawn}) == len(drawn)
    words = [word for drawing in drawn for word in words_of(drawing)]
    for variant in EXPERIMENTS[name].variants:
        assert any(word.startswith(variant.label) for word in words), variant.label
    if name == "architectures":
        assert [drawing.name for drawing in drawn[::2]] == [
            "architectures", "architectures-no-gru", "architectures-mean-readout"
        ]  # fmt: skip
    if name == "moments":
        assert "the paper" not in words  # which printed no numbers of it


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_figures_of_every_kind_are_written_beside_their_scores(kind: str, tmp_path: Path) -> None:
    name = CHEAPEST[kind]
    assert EXPERIMENTS[name].figure == kind
    folder = make(tmp_path, name)
    written = draw(folder)
    assert written[0] == folder / f"{name}.svg" and all(path.is_file() for path in written)
    assert len(set(written)) == len(written)
    words = [word for path in written for word in texts(path)]
    for variant in EXPERIMENTS[name].variants:
        assert any(word.startswith(variant.label) for word in words), variant.label
    if name == "multitask":
        main, tasks = (set(texts(path)) for path in written)
        assert {"average of logs", "log of the mean", "−2.23", "the paper"} <= main
        assert {"SSSP", "eccentricity", "laplacian", "connected", "diameter",
                "spectral radius"} <= tasks  # fmt: skip


def test_the_same_scores_are_the_same_figures(tmp_path: Path) -> None:
    folder = make(tmp_path, "parameters")
    first, second = (draw(folder)[0].read_bytes() for _ in range(2))
    assert first == second


def test_members_that_are_not_among_the_best_are_hollow(tmp_path: Path) -> None:
    figure = drawings(ExperimentResult.read(make(tmp_path, "moments", members=8)))[0].figure
    axes = figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    filled = [len(line.get_xdata()) for line in dots if line.get_markerfacecolor() != "none"]
    hollow = [len(line.get_xdata()) for line in dots if line.get_markerfacecolor() == "none"]
    assert filled == [5] * 6 and hollow == [3] * 6  # of five moments and PNA


def test_published_numbers_are_where_they_belong(tmp_path: Path) -> None:
    result = ExperimentResult.read(make(tmp_path, "multitask"))
    axes = drawings(result)[0].figure.axes[0]
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert marks == [result.published.get(name, "average") for name in result.names]


def test_curves_are_of_the_middle_of_each_size(tmp_path: Path) -> None:
    figure = drawings(ExperimentResult.read(make(tmp_path, "extrapolation")))[0].figure
    models, altered = figure.axes
    curve = next(line for line in models.lines if len(line.get_xdata()) == 9)
    assert list(curve.get_xdata()) == [22, 27, 32, 37, 42, 47, 62, 77, 97]
    assert curve.get_ydata()[0] == pytest.approx(-0.73)
    dashed = [line for line in models.lines if line.get_linestyle() == "--"]
    assert dashed[0].get_ydata()[:6].tolist() == [-1.83, -1.60, -1.30, -0.96, -0.71, -0.58]
    names = [text.get_text() for text in altered.texts]
    assert "PNA" in names and "GCN" not in names
    assert any(name.startswith("PNA with linear scalers") for name in names)


def test_what_leaves_the_panel_has_an_arrow(tmp_path: Path) -> None:
    def explodes(variant: Variant, split: int, members: int) -> Errors:
        errors = steadily(variant, split, members)
        return errors + (9.0 if variant.row == "pna-linear" else -1.0) * (split == 8)

    figure = drawings(ExperimentResult.read(make(tmp_path, "extrapolation", errors=explodes)))[
        0
    ].figure
    names = [text.get_text() for text in figure.axes[1].texts]
    assert "PNA with linear scalers ↑" in names and "PNA" in names


def test_the_heat_map_has_a_number_in_every_cell(tmp_path: Path) -> None:
    (path,) = draw(make(tmp_path, "graph-types"))
    words = texts(path)
    assert words.count("−1.50") == 10  # predicting the mean
    assert {"−2.23", "erdos", "renyi", "predicting the mean"} <= set(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multitask", "diameter", "graph-types", "single-task",
                                  "parameters"])  # fmt: skip
def test_members_that_broke_or_exploded_do_not_stop_the_drawing(name: str, tmp_path: Path) -> None:
    assert {EXPERIMENTS[name].figure for name in EXPERIMENTS} == set(FIGURES)

    def some_break(variant: Variant, split: int, members: int) -> Errors:
        errors = steadily(variant, split, members)
        errors[:, 2] = np.inf if variant.row == "mpnn-sum" else errors[:, 2]
        return np.full_like(errors, np.inf) if variant.row == "gin" else errors

    drawn = drawings(ExperimentResult.read(make(tmp_path, name, members=1, errors=some_break)))
    for drawing in drawn[:2]:  # the others are of other pairs
        save_svg(drawing.figure, tmp_path / f"{drawing.name}.svg")
