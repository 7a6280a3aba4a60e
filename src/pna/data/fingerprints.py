"""Morgan fingerprints of the graphs of molecules, and similarities to the nearest molecule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.molecule_features import ATOM_FEATURES, BOND_FEATURES, fingerprint_generator

BITS = 2048
_COLUMNS = [ATOM_FEATURES.index(n) for n in ("atomic number", "formal charge", "hydrogens")]
_BOND_TYPE = BOND_FEATURES.index("bond type")
_WILDCARD, _NEUTRAL = 118, 5  # OGB's indices of no element, and of the charge 0


def has_fingerprints(graphs: GraphSet) -> bool:
    """Whether graphs have OGB's features, from which fingerprints are made."""
    atoms, bonds = (
        names[: len(own)] == own
        for names, own in (
            (graphs.node_features, ATOM_FEATURES),
            (graphs.edge_features, BOND_FEATURES),
        )
    )
    return atoms and bonds


def fingerprints(graphs: GraphSet) -> NDArray[np.uint8]:
    """Morgan fingerprints of radius 2 and `BITS` bits, (graphs, `BITS` / 8) packed.

    They are made from OGB's features of atoms and bonds, and equal those of RDKit's molecules but
    for isotopes, which the features do not have, and for bonds such as dative ones.
    """
    from rdkit.DataStructs import BitVectToBinaryText

    assert graphs.x is not None and graphs.edge_attr is not None
    atoms = graphs.x[:, _COLUMNS].long().tolist()
    own = torch.arange(graphs.num_nodes) - torch.repeat_interleave(
        graphs.node_offsets[:-1], graphs.sizes
    )
    ends = torch.stack([graphs.senders.long(), own.repeat_interleave(graphs.degree.long())], 1)
    bonds = torch.cat([ends, graphs.edge_attr[:, _BOND_TYPE, None].long()], 1).tolist()
    generator = fingerprint_generator(BITS)
    found = [
        BitVectToBinaryText(generator.GetFingerprint(_molecule(atoms[a:b], bonds[c:d])))
        for (a, b), (c, d) in zip(
            pairwise(graphs.node_offsets.tolist()),
            pairwise(graphs.edge_offsets.tolist()),
            strict=True,
        )
    ]
    return np.frombuffer(bytearray(b"".join(found)), np.uint8).reshape(-1, BITS // 8)


def _molecule(atoms: Sequence[Sequence[int]], bonds: Sequence[Sequence[int]]) -> Any:
    """The molecule of RDKit that has all that a fingerprint depends on."""
    from rdkit import Chem

    kinds = (*(getattr(Chem.BondType, n) for n in ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")),
             Chem.BondType.UNSPECIFIED)  # fmt: skip
    molecule = Chem.RWMol()
    for number, charge, hydrogens in atoms:
        atom = Chem.Atom(0 if number == _WILDCARD else number + 1)
        atom.SetFormalCharge(charge - _NEUTRAL)
        atom.SetNumExplicitHs(hydrogens)
        atom.SetNoImplicit(True)
        molecule.AddAtom(atom)
    for sender, receiver, kind in bonds:
        if sender < receiver:  # every bond is two edges
            molecule.AddBond(sender, receiver, kinds[kind])
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    return molecule


def bit_vectors(packed: NDArray[np.uint8]) -> list[Any]:
    """RDKit's bit vectors of `fingerprints`."""
    from rdkit.DataStructs import CreateFromBinaryText

    return [CreateFromBinaryText(row.tobytes()) for row in packed]


def nearest_similarities(found: NDArray[np.uint8], training: Sequence[Any]) -> NDArray[np.float64]:
    """The Tanimoto similarity of each fingerprint to the nearest of some bit vectors, (found,)."""
    from rdkit.DataStructs import BulkTanimotoSimilarity

    return np.array([max(BulkTanimotoSimilarity(one, training)) for one in bit_vectors(found)])
