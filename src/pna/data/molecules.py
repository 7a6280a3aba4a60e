"""Molecules as graphs, from SMILES: parsed by RDKit, with the features of OGB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.pool import ordered_map
from pna.data.progress import Progress, reporting

#: OGB's features of atoms and bonds, in its order.
ATOM_FEATURES = (
    *("atomic number", "chirality", "degree", "formal charge", "hydrogens"),
    *("radical electrons", "hybridisation", "aromatic", "in ring"),
)
BOND_FEATURES = ("bond type", "stereo", "conjugated")

_BLOCK = 512  # molecules that a worker reads at a time


@dataclass(frozen=True)
class Molecules:
    """Concatenated molecules; every bond is two edges, one in each direction."""

    indices: NDArray[np.int64]  # (molecules,) index in the given list; some may be skipped
    sizes: NDArray[np.int64]  # (molecules,)
    edge_counts: NDArray[np.int64]  # (molecules,)
    edge_index: NDArray[np.int64]  # (2, edges), numbered within the molecule
    x: NDArray[np.uint8]  # (atoms, 9)
    edge_attr: NDArray[np.uint8]  # (edges, 3)


def from_smiles(
    smiles: Sequence[str],
    *,
    name: str = "the list",
    lines: Sequence[int] | None = None,
    skip: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Molecules:
    """Read molecules, in order.

    `name` and `lines` are for errors: the file, and the line of each molecule; by default its index
    in the list. A text that is no molecule is an error; with `skip` it is left out. `progress` is
    called with the number of molecules read, and the number in all.
    """
    check_chemistry()
    lines = range(len(smiles)) if lines is None else lines
    blocks = [
        (i, list(smiles[i : i + _BLOCK]), name, list(lines[i : i + _BLOCK]), skip)
        for i in range(0, len(smiles), _BLOCK)
    ]
    parts = ordered_map(_read_block, blocks, workers)
    parts = reporting(parts, len(smiles), progress, lambda part: _BLOCK)
    found = [part for part in parts if part is not None]
    if not found:
        raise ValueError(f"got no molecules in {name}, expected at least one")
    return _joined(found)


def as_graphs(found: Molecules, *, metadata: dict[str, Any], **given: Any) -> GraphSet:
    """Molecules as a graph set; `given` are further arguments of `GraphSet.from_arrays`."""
    node_values, edge_values = values()
    return GraphSet.from_arrays(
        found.sizes,
        found.edge_index,
        found.edge_counts,
        x=found.x,
        edge_attr=found.edge_attr,
        node_features=ATOM_FEATURES,
        edge_features=BOND_FEATURES,
        metadata=metadata | {"node_values": node_values, "edge_values": edge_values},
        **given,
    )


def check_chemistry() -> None:
    """Raise unless RDKit and OGB are installed."""
    missing = [package for package in ("rdkit", "ogb") if find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"got no {' and no '.join(missing)}, needed to read molecules; pip install 'pna[chem]'"
        )


def values() -> tuple[list[int], list[int]]:
    """The number of categories of each feature of atoms, and of bonds."""
    from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

    return get_atom_feature_dims(), get_bond_feature_dims()


def parse(smiles: str) -> Any:
    """The molecule of RDKit; None if the text is not one.

    RDKit refuses atoms of too high a valence, such as in aluminium complexes, which older versions
    accepted. For those, all of its sanitisation except the check of valences is done.
    """
    from rdkit import Chem

    molecule: Any = Chem.MolFromSmiles(smiles)
    if molecule is not None:
        return molecule
    molecule = Chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        return None
    flags = Chem.SanitizeFlags
    molecule.UpdatePropertyCache(strict=False)
    problem = Chem.SanitizeMol(
        molecule, flags.SANITIZE_ALL ^ flags.SANITIZE_PROPERTIES, catchErrors=True
    )
    return molecule if problem == flags.SANITIZE_NONE else None


def _read_block(block: tuple[int, list[str], str, list[int], bool]) -> Molecules | None:
    from rdkit.rdBase import BlockLogs

    first, smiles, name, lines, skip = block
    indices, atoms, bonds = list[int](), list[list[bytes]](), list[list[tuple[int, int, bytes]]]()
    with BlockLogs():  # of refused molecules and deprecated features
        for index, (line, text) in enumerate(zip(lines, smiles, strict=True), first):
            molecule = parse(text)
            if molecule is not None and molecule.GetNumAtoms() > 0:
                indices.append(index)
                atoms.append(_atoms(molecule, text))
                bonds.append(_bonds(molecule, text))
            elif not skip:
                raise ValueError(
                    f"got {text!r} in line {line} of {name}, expected the SMILES of a molecule; "
                    "correct it, or leave it out"
                )
    if not indices:
        return None
    ends = np.array([bond[:2] for some in bonds for bond in some], np.int64).reshape(-1, 2)
    both = np.stack([ends, ends[:, ::-1]], 1).reshape(-1, 2)  # each bond, then its reverse
    of_bonds = _rows((bond[2] for some in bonds for bond in some), len(BOND_FEATURES))
    return Molecules(
        indices=np.array(indices),
        sizes=np.array([len(some) for some in atoms]),
        edge_counts=np.array([2 * len(some) for some in bonds]),
        edge_index=both.T,
        x=_rows(chain.from_iterable(atoms), len(ATOM_FEATURES)),
        edge_attr=of_bonds.repeat(2, 0),
    )


#: OGB's features by all that they depend on. RDKit's answers cost less than OGB's lookups.
_of_atom: dict[tuple[Any, ...], bytes] = {}
_of_bond: dict[tuple[Any, ...], bytes] = {}


def _atoms(molecule: Any, smiles: str) -> list[bytes]:
    """OGB's features of every atom."""
    from rdkit.Chem import Atom, ChiralType

    number, charge, hydrogens = Atom.GetAtomicNum, Atom.GetFormalCharge, Atom.GetTotalNumHs
    degree, radicals = Atom.GetTotalDegree, Atom.GetNumRadicalElectrons
    hybrid, aromatic, in_ring = Atom.GetHybridization, Atom.GetIsAromatic, Atom.IsInRing
    chirality: Any = Atom.GetChiralTag
    if not _may_have(smiles, "@"):
        none = ChiralType.CHI_UNSPECIFIED
        chirality = lambda atom: none  # noqa: E731  four times as fast
    return [
        _of_atom.get(
            key := (
                number(atom), chirality(atom), degree(atom), charge(atom), hydrogens(atom),
                radicals(atom), hybrid(atom), aromatic(atom), in_ring(atom),
            )
        )
        or _learn_atom(key, atom)
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms()))
    ]  # fmt: skip


def _bonds(molecule: Any, smiles: str) -> list[tuple[int, int, bytes]]:
    """Both ends and OGB's features of every bond."""
    from rdkit.Chem import Bond, BondStereo

    begin, end = Bond.GetBeginAtomIdx, Bond.GetEndAtomIdx
    kind, conjugated = Bond.GetBondType, Bond.GetIsConjugated
    stereo: Any = Bond.GetStereo
    if not _may_have(smiles, "/\\"):
        none = BondStereo.STEREONONE
        stereo = lambda bond: none  # noqa: E731  four times as fast
    return [
        (
            begin(bond),
            end(bond),
            _of_bond.get(key := (kind(bond), stereo(bond), conjugated(bond)))
            or _learn_bond(key, bond),
        )
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds()))
    ]


def _may_have(smiles: str, signs: str) -> bool:
    """Whether a SMILES has one of the signs of stereochemistry, or an extension (CXSMILES)."""
    return any(sign in smiles for sign in (*signs, "|"))


def _learn_atom(key: tuple[Any, ...], atom: Any) -> bytes:
    from ogb.utils.features import atom_to_feature_vector

    return _of_atom.setdefault(key, bytes(atom_to_feature_vector(atom)))


def _learn_bond(key: tuple[Any, ...], bond: Any) -> bytes:
    from ogb.utils.features import allowable_features, bond_to_feature_vector
    from rdkit.Chem import BondStereo

    if str(bond.GetStereo()) not in allowable_features["possible_bond_stereo_list"]:
        bond.SetStereo(BondStereo.STEREONONE)  # atropisomer, which OGB does not encode
    return _of_bond.setdefault(key, bytes(bond_to_feature_vector(bond)))


def _rows(features: Iterable[bytes], columns: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(features), np.uint8).reshape(-1, columns)


def _joined(parts: Sequence[Molecules]) -> Molecules:
    names = [field.name for field in fields(Molecules)]
    axes = dict.fromkeys(names, 0) | {"edge_index": 1}
    return Molecules(**{n: np.concatenate([getattr(p, n) for p in parts], axes[n]) for n in names})
