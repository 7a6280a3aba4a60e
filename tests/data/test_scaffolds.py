"""Molecules divided by their rings, and OGB's own division."""

import csv
import gzip

import pytest

from pna.data.scaffolds import scaffold_split
from tests.data.benchmarks import folder_of

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")


def test_rings_stay_together():
    """Five with benzene and three without rings fill the eight; of single ones the later is first.

    What cannot be read has no rings."""
    smiles = ["C1CC1", "c1ccccc1C", "CC", "Cc1ccccc1", "nonsense", "c1ccccc1", "CO", "Oc1ccccc1",
              "Nc1ccccc1", "C1CCC1"]  # fmt: skip
    told = []
    found = scaffold_split(smiles, lambda *now: told.append(now))
    assert found == ["test", *["train"] * 8, "valid"] and told == [(10, 10)]


def test_what_has_no_room_goes_on():
    """Of eleven 8.8 may be trained on and 9.9 before the test: four more than six are too many."""
    found = scaffold_split(["CC"] * 6 + ["C1CC1"] * 4 + ["C1CCC1"])
    assert found == ["train"] * 6 + ["test"] * 4 + ["train"]
    assert scaffold_split([]) == []


@pytest.mark.slow
def test_the_split_of_ogb():
    """Looks for the rings of the 8,226 molecules that are not trained on. Methane stands for each
    of the others, as one scaffold that leaves no room in the training set."""
    with gzip.open(folder_of("molhiv") / "molhiv" / "molhiv.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    smiles = ["C" if row["split"] == "train" else row["smiles"] for row in rows]
    assert scaffold_split(smiles) == [row["split"] for row in rows]
