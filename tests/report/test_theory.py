from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pna import GraphSet
from pna.paper.theory import NODES, Theory, code, recover
from pna.report.advice import draw_advice
from pna.report.figures import save_svg
from pna.report.theory import draw_theory
from pna.theory import advise, find_collision

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")


def texts(svg: Path) -> list[str]:
    root = ElementTree.parse(svg).getroot()
    return ["".join(text.itertext()).strip() for text in root.iter(f"{root.tag[:-3]}text")]


def test_a_figure_of_each_statement_says_what_was_computed(tmp_path: Path) -> None:
    growth = {
        scaler: [np.full(3, factor * n) for n in NODES]
        for scaler, factor in (("identity", 0.0), ("amplification", 0.2), ("linear", 0.5))
    }
    searches = (find_collision(["mean"], 2), find_collision(["mean", "std"], 3))
    result = Theory(searches, tuple(map(recover, (2, 3, 4))), (code("identity"), code("linear")),
                    growth)  # fmt: skip
    words: dict[str, list[str]] = {}
    for name, figure in draw_theory(result).items():
        save_svg(figure, tmp_path / f"{name}.svg")
        words[name] = texts(tmp_path / f"{name}.svg")
    assert set(words) == {"theorem-1", "proposition-1", "theorem-2", "scalers"}
    assert {"n = 2", "n = 3"} <= set(words["theorem-1"])
    assert any(word.startswith("and std agree ") for word in words["theorem-1"])
    assert "mean × linear: 35 values of 35 multisets" in words["theorem-2"]
    assert any("hollow ones share theirs" in word for word in words["theorem-2"])
    assert {"linear", "amplification", "identity", "float32 ends"} <= set(words["scalers"])


def test_the_figure_of_an_advice(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2], [3, 3, 3]])
    graphs = GraphSet.from_arrays([4, 4], np.concatenate([edges, edges], 1), [3, 3],
                                  x=[0.0, 0, 4, 0, 0, 4, 4, 0])  # fmt: skip
    advice = advise(graphs)
    save_svg(draw_advice(advice, "mine"), tmp_path / "advice.svg")
    words = texts(tmp_path / "advice.svg")
    assert f"recommended: {', '.join(advice.recommended.aggregators)}" in words
    assert "Left merged of 2 distinct neighbourhoods" in words
    assert "mine, grid 0.1" in words
    assert "1 (50.0%)" in words  # what max leaves merged
    assert {"+ std", "+ moment_3"} <= set(words)
