"""Drawings of molecules: colours say the sign and the size of each atom's number."""

import re
from xml.etree import ElementTree

import pytest

from pna.data.molecule_drawing import draw_atoms

pytest.importorskip("rdkit", reason="molecules need pna[chem]")


def test_colours_and_legend():
    text = draw_atoms("CCO", [2.0, 0.0, -1.0], "löslich <b>: −1", (300, 200))
    drawing = ElementTree.fromstring(text.encode())
    assert drawing.get("width") == "300px" and drawing.get("height") == "200px"
    assert [one.text for one in drawing if one.tag.endswith("text")] == ["löslich <b>: −1"]
    filled = dict(re.findall(r"ellipse .*class='atom-(\d)'  style='fill:(#\w+)", text))
    red, blue = ({k: int(c[i : i + 2], 16) for k, c in filled.items()} for i in (1, 5))
    assert red["0"] < 255 * 0.35 and blue["0"] > 255 * 0.9  # blue
    assert filled["1"] == "#FFFFFF"
    assert red["2"] > 255 * 0.95 and 255 * 0.55 < blue["2"] < 255 * 0.65  # half of orange


def test_numbers_that_are_all_0():
    assert "#FFFFFF" in draw_atoms("C", [0.0])
