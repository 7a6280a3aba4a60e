"""Morgan fingerprints of the graphs of molecules, and similarities to the nearest molecule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.descriptors import Parsed
from pna.data.graphset import GraphSet
from pna.data.molecule_features import ATOM_FEATURES, BOND_FEATURES, fingerprint_generator

BITS = 2048
_COLUMNS = [ATOM_FEATURES.index(n) for n in ("atomic number", "formal charge", "hydrogens")]
_BOND_TYPE = BOND_FEATURES.index("bond type")
_WILDCARD, _NEUTRAL = 118, 5  # OGB's indices of no element, and of the charge 0
_OTHER_BOND = 4  # its index of dative bonds and others
_CHUNK = 8192  # training molecules that are compared at a time


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
    assert graphs.x is not None and graphs.edge_attr is not None
    atoms = graphs.x[:, _COLUMNS].long().tolist()
    own = torch.arange(graphs.num_nodes) - torch.repeat_interleave(
        graphs.node_offsets[:-1], graphs.sizes
    )
    ends = torch.stack([graphs.senders.long(), own.repeat_interleave(graphs.degree.long())], 1)
    bonds = torch.cat([ends, graphs.edge_attr[:, _BOND_TYPE, None].long()], 1).tolist()
    return _packed(
        _molecule(atoms[a:b], bonds[c:d])
        for (a, b), (c, d) in zip(
            pairwise(graphs.node_offsets.tolist()),
            pairwise(graphs.edge_offsets.tolist()),
            strict=True,
        )
    )


def fingerprints_of(parsed: Parsed, isotopes: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """`fingerprints` of the graphs of molecules of RDKit; `isotopes` says which have some."""
    last_atoms, last_bonds = parsed.sizes.cumsum(), parsed.bond_counts.cumsum()
    kinds = parsed.bonds[:, _BOND_TYPE]
    odd = isotopes.copy()
    odd[np.searchsorted(last_bonds, np.flatnonzero(kinds == _OTHER_BOND), side="right")] = True
    molecules = [*parsed.molecules]
    for row in np.flatnonzero(odd):
        atoms = slice(last_atoms[row] - parsed.sizes[row], last_atoms[row])
        bonds = slice(last_bonds[row] - parsed.bond_counts[row], last_bonds[row])
        ends = np.sort(parsed.ends[bonds], 1)
        beside = np.concatenate([ends, kinds[bonds, None]], 1).tolist()
        molecules[row] = _molecule(parsed.x[atoms, _COLUMNS].tolist(), beside)
    return _packed(molecules)


def _packed(molecules: Iterable[Any]) -> NDArray[np.uint8]:
    from rdkit.DataStructs import BitVectToBinaryText

    made = fingerprint_generator(BITS).GetFingerprint
    found = b"".join(BitVectToBinaryText(made(molecule)) for molecule in molecules)
    return np.frombuffer(bytearray(found), np.uint8).reshape(-1, BITS // 8)


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


def nearest_similarities(
    found: NDArray[np.uint8], training: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """The Tanimoto similarity of each of some `fingerprints` to the nearest of others, (found,)."""
    nearest = np.zeros(len(found))
    bits_of = [np.flatnonzero(row) for row in np.unpackbits(found, axis=1)]
    for first in range(0, len(training), _CHUNK):
        # a row for each bit: only those of the bits of a molecule are read
        have = np.unpackbits(training[first : first + _CHUNK], axis=1).T.copy()
        counts = have.sum(0, dtype=np.int64)
        for row, bits in enumerate(bits_of):
            narrow = np.uint8 if len(bits) < 256 else np.int64
            both = have[bits].sum(0, dtype=narrow)
            nearest[row] = max(nearest[row], (both / (counts + len(bits) - both)).max())
    return nearest
