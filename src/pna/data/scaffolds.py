"""The scaffold split of MoleculeNet and OGB: it keeps molecules of one ring system together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pna.data.molecules import parse
from pna.data.progress import Progress

#: OGB's names of the splits, and ours.
SPLITS = {"train": "train", "valid": "validation", "test": "test"}

#: Number of molecules between calls of `progress`.
_BLOCK = 512


def scaffold_split(smiles: Sequence[str], progress: Progress | None = None) -> list[str]:
    """The split of every molecule: train, valid or test, with 80, 10 and 10 percent.

    Scaffolds are sorted by their number of molecules, largest first; of equal ones, the one whose
    first molecule is later comes first. Each goes to train if all of it fits, else to valid, else
    to test. A molecule that cannot be read counts as one without rings. `progress` is called with
    the number of molecules read, and the number in all.
    """
    groups = scaffold_groups(smiles, progress)
    by_size = sorted(groups, key=lambda group: (len(group), group[0]), reverse=True)
    splits = ["test"] * len(smiles)
    trained = validated = 0
    for group in by_size:
        if trained + len(group) <= 0.8 * len(smiles):
            name, trained = "train", trained + len(group)
        elif trained + validated + len(group) <= 0.9 * len(smiles):
            name, validated = "valid", validated + len(group)
        else:
            continue
        for index in group:
            splits[index] = name
    return splits


def scaffold_groups(smiles: Sequence[str], progress: Progress | None = None) -> list[list[int]]:
    """The indices of the molecules of each scaffold, in the order of their first molecules.

    Unreadable molecules and `progress` are as for `scaffold_split`.
    """
    from rdkit.rdBase import BlockLogs

    groups: dict[str, list[int]] = {}
    with BlockLogs():
        for index, text in enumerate(smiles):
            groups.setdefault(_scaffold(parse(text)), []).append(index)
            done = index + 1
            if progress is not None and (done % _BLOCK == 0 or done == len(smiles)):
                progress(done, len(smiles))
    return list(groups.values())


def _scaffold(molecule: Any) -> str:
    """The Bemis–Murcko scaffold as SMILES: rings and their links; empty without rings."""
    from rdkit import Chem

    if molecule is None:
        return ""
    rings = Chem.MurckoDecompose(molecule)
    rings.ClearComputedProps()
    rings.UpdatePropertyCache(strict=False)  # there may be atoms of too high a valence
    Chem.GetSymmSSSR(rings)
    scaffold: str = Chem.MolToSmiles(rings, isomericSmiles=False)
    return scaffold
