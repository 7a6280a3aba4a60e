"""The scaffold split of MoleculeNet and OGB: molecules of one ring system are never parted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pna.data.molecules import parse

#: What OGB calls the splits, and what they are called here.
SPLITS = {"train": "train", "valid": "validation", "test": "test"}

#: Molecules after which progress is told.
_BLOCK = 512


def scaffold_split(
    smiles: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """For every molecule train, valid or test, 80, 10 and 10 of 100.

    Scaffolds of many molecules come first, of as many the one whose first molecule is later; each
    is trained on if there is room left for all of it, else validated, else tested. A molecule that
    cannot be read is one without rings. `progress` is told how many are read, and of how many.
    """
    from rdkit.rdBase import BlockLogs

    groups: dict[str, list[int]] = {}
    with BlockLogs():
        for place, text in enumerate(smiles):
            groups.setdefault(_scaffold(parse(text)), []).append(place)
            done = place + 1
            if progress is not None and (done % _BLOCK == 0 or done == len(smiles)):
                progress(done, len(smiles))
    by_size = sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True)
    splits = ["test"] * len(smiles)
    trained = validated = 0
    for group in by_size:
        if trained + len(group) <= 0.8 * len(smiles):
            name, trained = "train", trained + len(group)
        elif trained + validated + len(group) <= 0.9 * len(smiles):
            name, validated = "valid", validated + len(group)
        else:
            continue
        for place in group:
            splits[place] = name
    return splits


def _scaffold(molecule: Any) -> str:
    """Bemis and Murcko's rings and what links them, as SMILES; empty where there are no rings."""
    from rdkit import Chem

    if molecule is None:
        return ""
    rings = Chem.MurckoDecompose(molecule)
    rings.ClearComputedProps()
    rings.UpdatePropertyCache(strict=False)  # over-valent atoms may be among them
    Chem.GetSymmSSSR(rings)
    scaffold: str = Chem.MolToSmiles(rings, isomericSmiles=False)
    return scaffold
