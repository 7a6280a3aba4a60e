"""Molecules from SMILES have OGB's features, those with too many bonds too."""

import numpy as np
import pytest

from pna.data import molecules
from pna.data.molecules import ATOM_FEATURES, BOND_FEATURES, from_smiles, parse, values
from pna.data.table import Table
from tests.data.benchmarks import data_folder

Chem = pytest.importorskip("rdkit.Chem", reason="reading molecules needs pna[chem]")
ogb = pytest.importorskip("ogb.utils.mol", reason="reading molecules needs pna[chem]")

SOME = [
    "CCO",
    "c1ccccc1",
    "[Na+].[Cl-]",
    "C",
    "F/C=C/F",
    "N[C@@H](C)C(=O)O",
    "O=[N+]([O-])c1ccncc1",
    "CC=CC",  # stereo that is not specified
    "F[C@@H]1CC[C@](Cl)(Br)C1",
    "[CH3]->[Fe+2]",  # a bond of another type
    "[13CH3][O]",  # isotope and radical
    "C#C[Si-2](F)(F)(F)(F)F",
]
OVERVALENT = "[Al](O)(O)(O)(O)(O)(O)O"


def check_features(smiles, found):
    atoms, edges = np.cumsum(found.sizes)[:-1], np.cumsum(found.edge_counts)[:-1]
    for index, x, ends, attr in zip(
        found.indices,
        np.split(found.x, atoms),
        np.split(found.edge_index, edges, 1),
        np.split(found.edge_attr, edges),
        strict=True,
    ):
        expected = ogb.smiles2graph(smiles[index])
        assert np.array_equal(x, expected["node_feat"]), smiles[index]
        assert np.array_equal(ends, expected["edge_index"]), smiles[index]
        assert np.array_equal(attr, expected["edge_feat"]), smiles[index]


def test_features_are_those_of_ogb():
    check_features(SOME, from_smiles(SOME))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["esol", "lipophilicity", "bbbp", "tox21"])
def test_features_of_tables_are_those_of_ogb(name):
    """OGB reads a thousand molecules a second, and these are 1,900."""
    file = f"molecules/{name}.csv"
    smiles = Table.read(data_folder(file) / file).column("smiles")[::8]
    found = from_smiles(smiles, skip=True)
    assert len(found.indices) > 0.99 * len(smiles)
    strict = [i for i in found.indices if Chem.MolFromSmiles(smiles[i]) is not None]
    smiles = [smiles[i] for i in strict]  # ogb cannot read the others
    check_features(smiles, from_smiles(smiles))


def test_workers_give_the_same(monkeypatch):
    monkeypatch.setattr(molecules, "_BLOCK", 2)
    told = []
    one = from_smiles(SOME, progress=lambda *done: told.append(done))
    two = from_smiles(SOME, workers=2)
    assert told[:2] == [(2, len(SOME)), (4, len(SOME))] and told[-1] == (len(SOME),) * 2
    for name in ("sizes", "edge_counts", "edge_index", "x", "edge_attr"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


def test_too_many_bonds_are_read():
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        assert Chem.MolFromSmiles(OVERVALENT) is None
    found = from_smiles([OVERVALENT])
    assert found.sizes.tolist() == [8] and found.edge_counts.tolist() == [14]
    assert found.x[:, 0].tolist() == [12] + [7] * 7  # aluminium and oxygen, counted from 0


def test_a_bond_that_cannot_turn_has_no_stereo_of_ogbs():
    found = from_smiles(["Cc1cccc(I)c1-c1c(C)cccc1Br |wU:7.6|"])
    plain = from_smiles(["Cc1cccc(I)c1-c1c(C)cccc1Br"])
    assert np.array_equal(found.edge_attr, plain.edge_attr)


def test_what_can_be_read_strictly_is():
    assert parse("c1ccccc1").GetAtomWithIdx(0).GetIsAromatic()
    assert parse("c1cccc1") is None  # no Kekulé form, which is not a matter of valence


@pytest.mark.parametrize("wrong", ["C1CC", "what", "", "c1cccc1"])
def test_what_is_no_molecule(wrong):
    with pytest.raises(ValueError, match=r"in line 12 of my.csv, expected the SMILES"):
        from_smiles(["CC", "O", wrong], name="my.csv", lines=[10, 11, 12])


def test_no_molecules():
    with pytest.raises(ValueError, match="no molecules"):
        from_smiles([])


def test_values_of_every_feature():
    atoms, bonds = values()
    assert len(atoms) == len(ATOM_FEATURES) and len(bonds) == len(BOND_FEATURES)
    found = from_smiles(SOME)
    assert (found.x.max(0) < atoms).all() and (found.edge_attr.max(0) < bonds).all()


def test_without_rdkit(monkeypatch):
    monkeypatch.setattr(molecules, "find_spec", lambda name: None if name == "rdkit" else 1)
    with pytest.raises(ModuleNotFoundError, match=r"no rdkit, .*pip install 'pna\[chem\]'"):
        from_smiles(SOME)
