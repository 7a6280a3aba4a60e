"""Drawings of molecules whose atoms have numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from pna.data.molecules import parse

#: Colours of the largest positive and negative number, which colour-blind readers can tell apart.
_RAISES, _LOWERS = (0.30, 0.55, 0.95), (0.98, 0.60, 0.20)
_LEGEND = 30  # height of the legend in pixels


def draw_atoms(
    smiles: str, numbers: Sequence[float], legend: str = "", size: tuple[int, int] = (420, 320)
) -> str:
    """An SVG of a molecule: blue behind atoms of positive numbers, orange behind negative ones.

    The colour of the largest absolute number is full, and 0 is white.
    """
    from rdkit.Chem.Draw import rdMolDraw2D
    from rdkit.rdBase import BlockLogs

    with BlockLogs():  # of atoms with too many bonds
        molecule = parse(smiles)
    width, height = size
    drawing: Any = rdMolDraw2D.MolDraw2DSVG(width, height, width, height - _LEGEND)
    options = drawing.drawOptions()
    options.useBWAtomPalette()
    options.highlightRadius = 0.42
    largest = max((abs(number) for number in numbers), default=0.0) or 1.0
    colours = {atom: _colour(number / largest) for atom, number in enumerate(numbers)}
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawing,
        molecule,
        highlightAtoms=[*colours],
        highlightAtomColors=colours,
        highlightBonds=[],
    )
    drawing.FinishDrawing()
    text: str = drawing.GetDrawingText()
    # RDKit would draw the bytes of a letter that is not ASCII
    own = (
        f'<text x="{width / 2}" y="{height - _LEGEND / 3}" text-anchor="middle" '
        f'font-family="sans-serif" font-size="14">{escape(legend)}</text>\n</svg>'
    )
    return text.replace("iso-8859-1", "UTF-8", 1).replace("</svg>", own)


def _colour(share: float) -> tuple[float, float, float]:
    """The colour of a number from −1 to 1."""
    full = _RAISES if share > 0 else _LOWERS
    red, green, blue = (1 - abs(share) * (1 - part) for part in full)
    return red, green, blue
