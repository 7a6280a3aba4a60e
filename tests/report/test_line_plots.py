"""Figures of losses by epoch: which curves share a panel, and what the panels reach to."""

from pathlib import Path

import pytest

from pna.paper.registry import EXPERIMENTS
from pna.report.drawings import drawings
from pna.report.line_plots import Losses, draw_losses
from pna.report.read import ExperimentResult
from tests.report.made import make

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")

EPOCHS = list(range(1, 201))
FALLING = [1 / epoch for epoch in EPOCHS]


def test_improved_rows_have_panels_of_their_own_beside_the_plain_pna(tmp_path: Path) -> None:
    drawn = drawings(ExperimentResult.read(make(tmp_path, "molhiv", members=2)))[-1]
    assert drawn.name == "molhiv-training"
    plain, improved = drawn.figure.axes
    assert plain.get_title(loc="left") == "plain rows"
    assert improved.get_title(loc="left") == "improved rows"
    labels = [variant.label for variant in EXPERIMENTS["molhiv"].variants]
    ours = [label for label in labels if label.startswith(("PNA +", "…"))]
    assert plain.get_legend_handles_labels()[1] == [one for one in labels if one not in ours]
    assert improved.get_legend_handles_labels()[1] == ["PNA", *ours]


def test_panels_are_told_apart_by_group(tmp_path: Path) -> None:
    figure = drawings(ExperimentResult.read(make(tmp_path, "mnist", members=2)))[-1].figure
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["no edge features, plain rows", "edge features, plain rows",
                      "edge features, improved rows"]  # fmt: skip


def test_a_loss_that_shot_up_does_not_press_the_others_together() -> None:
    wild = [*FALLING[:20], 1e6, float("inf"), float("nan"), *FALLING[23:]]
    curve = Losses("wild", EPOCHS, FALLING, wild)
    (axes,) = draw_losses({"plain rows": [curve]}).axes
    least, most = axes.get_ylim()
    assert least == pytest.approx(1 / 200 / 1.1)
    assert 0.2 < most <= 1.1  # all but one in a hundred


def test_runs_that_all_broke_are_drawn_as_nothing() -> None:
    nothing = [float("nan")] * 3
    figure = draw_losses({"plain rows": [Losses("broken", [1, 2, 3], nothing, nothing)]})
    figure.canvas.draw()
