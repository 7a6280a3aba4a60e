"""Descriptors of many molecules at once are, to the bit, those of RDKit's own functions."""

import numpy as np
import pytest

from pna.data import descriptors as own
from pna.data.descriptors import _AREAS, _NUMBERS, DESCRIPTORS, by_rdkit
from pna.data.molecule_features import OGB, MoleculeFeatures
from pna.data.molecules import Wanted, from_smiles, parse

Chem = pytest.importorskip("rdkit.Chem", reason="reading molecules needs pna[chem]")

USUAL = [
    *("C", "O", "N", "CC", "C#N", "O=C=O", "[Na+].[Cl-]", "OO", "NO", "SS", "COC"),
    *("C1CC1", "C1CCC1", "C1OC1C", "C12C3C1C23", "C1CC2CC1C2", "c1ccc2ccccc2c1"),  # small rings
    # rotatable bonds and their exceptions
    *("FC(F)(F)CCO", "ClC(Cl)(Cl)CC", "BrC(Br)(Br)c1ccccc1", "CC(C)(C)CN", "CC(C)(C)c1ccccc1"),
    *("CC(=O)NC", "CC(=O)OC", "CC(=S)N(C)C", "CC(=N)NC", "CC(=[NH2+])NC", "CC(=O)S", "CC(=O)SC"),
    *("O=C1NCCC1C", "CCC#CCC", "CC=CC", "C1CCCCC1C1CCCCC1", "NC(=O)c1ccccc1", "CCSCC", "CCOCC"),
    # hydrogens and oxygens of all kinds
    *("OCC", "Oc1ccccc1", "OC=C", "OC(=O)C", "ON", "OS(=O)(=O)C", "CO[Si](C)(C)O", "C[Se]O", "OP"),
    *(
        "O=Cc1ccccc1",
        "O=C(C)c1ccccc1",
        "CC(C)=O",
        "O=C(O)O",
        "[O-]C(=O)C",
        "C[N+](=O)[O-]",
        "O=NN1CCOCC1",
    ),
    *("CN=[N+]=[N-]", "C[N+](C)(C)C", "c1cc[nH]c1", "Cn1cnc2c1c(=O)n(C)c(=O)n2C", "c1ccoc1"),
    *("c1ccsc1", "CS(C)=O", "O=S(=O)(N)c1ccccc1Cl", "CP(C)(C)=O", "N[C@@H](C)C(=O)O", "F/C=C/F"),
    *("B(O)O", "C[Hg]C", "I[I+]I", "[K+].[Br-]", "CC(=O)Nc1ccc(O)cc1", "[CH3]", "[C-]#[O+]"),
    "CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O",
    "CN1CCC[C@H]1c2cccnc2",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O",
]
ODD = [
    *(
        "*CC",
        "[2H]OC",
        "[H][H]",
        "FS(F)(F)(F)(F)F",
        "[NH3]->[Cu]<-[NH3]",
        "[Al](O)(O)(O)(O)(O)(O)O",
    ),
    *("CN(C)(C)C", "[Fe+6]", "C" * 120, "C" + "C(C)(C)" * 60),
]
WANTED = Wanted(MoleculeFeatures.parse([OGB, "descriptors"]))


def found(texts):
    return from_smiles(texts, wanted=WANTED).x_graph


def test_all_are_those_of_rdkit():
    from rdkit.Chem import Descriptors, rdMolDescriptors

    texts = USUAL + ODD
    for row, text in zip(found(texts), texts, strict=True):
        molecule = parse(text)
        expected = [getattr(Descriptors, name)(molecule) for name in _NUMBERS]
        for name in _AREAS:
            expected += getattr(rdMolDescriptors, f"{name}_")(molecule)
        wrong = np.flatnonzero(row != np.array(expected, np.float32))
        assert not len(wrong), (text, [DESCRIPTORS[i] for i in wrong])


def test_what_is_usual_is_not_computed_one_by_one(monkeypatch):
    expected = found(USUAL)
    monkeypatch.setattr(own, "by_rdkit", None)
    assert np.array_equal(found(USUAL), expected)


def test_molecules_before_do_not_matter():
    backwards = np.concatenate([found([text]) for text in USUAL[::-1]])[::-1]
    assert np.array_equal(found(USUAL), backwards)


def test_another_definition_of_rotatable_bonds_is_that_of_rdkit(monkeypatch):
    expected = found(USUAL)
    monkeypatch.setattr(own, "_ROTATABLE", "another")
    assert np.array_equal(found(USUAL), expected)


def test_what_rdkit_cannot_compute_is_missing(monkeypatch):
    from rdkit.Chem import Descriptors, rdMolDescriptors

    def fails(molecule):
        raise RuntimeError("no parameters for this element")

    monkeypatch.setattr(Descriptors, "TPSA", fails)
    monkeypatch.setattr(rdMolDescriptors, "PEOE_VSA_", fails)
    missing = np.isnan(found(["CCO", "c1ccccc1"]))
    names = {DESCRIPTORS[i] for i in np.flatnonzero(missing.all(0))}
    assert names == {"TPSA", *(f"PEOE_VSA{i + 1}" for i in range(14))}
    assert missing.sum() == 2 * len(names) and len(by_rdkit(parse("C"))) == len(DESCRIPTORS)
