"""Fingerprints of graphs are RDKit's fingerprints of the molecules."""

import numpy as np
import pytest

from pna.data import fingerprints as own
from pna.data.fingerprints import fingerprints, nearest_similarities
from pna.data.molecules import Wanted, as_graphs, from_smiles, parse

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "C[N+](C)(C)CC([O-])=O",  # charges
    "c1ccc2[nH]ccc2c1",  # a hydrogen that matters
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "F/C=C/F",
    "C[C@H](N)C(=O)O",
    "[Na+].[Cl-]",
    "[CH3]",
    "*CC",
    "CN(C)(C)C",  # too many bonds
    "O=S(=O)(N)c1ccc(cc1)C#N",
]


@pytest.fixture(scope="module")
def vectors():
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return [generator.GetFingerprint(parse(text)) for text in SMILES]


def test_fingerprints_of_graphs_are_those_of_molecules(vectors):
    packed = fingerprints(as_graphs(from_smiles(SMILES), metadata={}))
    assert packed.shape == (len(SMILES), 256)
    for text, found, expected in zip(SMILES, packed, vectors, strict=True):
        bits = np.flatnonzero(np.unpackbits(found, bitorder="little"))
        assert bits.tolist() == [*expected.GetOnBits()], text


def test_those_of_molecules_are_those_of_their_graphs():
    texts = ["[2H]C([2H])O", "[13CH4]", "[NH3]->[Cu]<-[NH3]", "[NH3]->[Cu+2]", *SMILES]
    found = from_smiles(texts, wanted=Wanted(fingerprints=True))
    assert np.array_equal(found.fingerprints, fingerprints(as_graphs(found, metadata={})))


@pytest.mark.parametrize("chunk", [8192, 2])
def test_the_nearest(vectors, chunk, monkeypatch):
    monkeypatch.setattr(own, "_CHUNK", chunk)
    packed = fingerprints(as_graphs(from_smiles(SMILES), metadata={}))
    sets = [{*vector.GetOnBits()} for vector in vectors]
    expected = [max(len(a & b) / len(a | b) for b in sets[3:6]) for a in sets]
    np.testing.assert_allclose(nearest_similarities(packed, packed[3:6]), expected)
    assert expected[3:6] == [1, 1, 1] and max(expected[:3]) < 1
