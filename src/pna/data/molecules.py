"""Molecules as graphs, from SMILES: parsed by RDKit, with the features of OGB and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pna.data.descriptors import Parsed
from pna.data.fingerprints import fingerprints_of
from pna.data.graphset import GraphSet
from pna.data.molecule_features import ATOM_FEATURES, BOND_FEATURES, MoleculeFeatures
from pna.data.pool import ordered_map
from pna.data.progress import Progress, reporting

_BLOCK = 512  # molecules that a worker reads at a time
_TOGETHER = 64  # molecules of RDKit in memory


class Wanted(NamedTuple):
    """What is computed of each molecule."""

    features: MoleculeFeatures = MoleculeFeatures()
    canonical: bool = False  # whether canonical SMILES are
    fingerprints: bool = False  # whether those of `pna.data.fingerprints` are


_GRAPH_ONLY = Wanted()


class Note(IntFlag):
    """What is special about a text of the list that was read."""

    UNREADABLE = 1  # RDKit cannot read it
    OVERVALENT = 2  # RDKit refuses it, because an atom has too many bonds
    FRAGMENTS = 4  # several molecules: a salt or a mixture
    ISOTOPE = 8
    WILDCARD = 16  # an atom of no element (*)
    SINGLE = 32  # one atom
    NAMED = 64  # text after a blank, which RDKit takes for a name


@dataclass(frozen=True)
class Molecules:
    """Concatenated molecules; every bond is two edges, one in each direction."""

    notes: NDArray[np.uint8]  # (texts,) a `Note` of every text of the list, skipped or not
    canonical: NDArray[np.object_]  # (molecules,) canonical SMILES; empty unless asked for
    fingerprints: NDArray[np.uint8]  # (molecules, bytes) packed; empty unless asked for
    indices: NDArray[np.int64]  # (molecules,) index in the given list; some may be skipped
    sizes: NDArray[np.int64]  # (molecules,)
    edge_counts: NDArray[np.int64]  # (molecules,)
    edge_index: NDArray[np.int64]  # (2, edges), numbered within the molecule
    x: NDArray[np.uint8]  # (atoms, 9)
    edge_attr: NDArray[np.uint8]  # (edges, 3)
    x_graph: NDArray[Any]  # (molecules, features of whole molecules)


def from_smiles(
    smiles: Sequence[str],
    *,
    name: str = "the list",
    lines: Sequence[int] | None = None,
    skip: bool = False,
    strict: bool = False,
    wanted: Wanted = _GRAPH_ONLY,
    workers: int = 1,
    progress: Progress | None = None,
) -> Molecules:
    """Read molecules, in order.

    `name` and `lines` are for errors: the file, and the line of each molecule; by default its index
    in the list. A text that is no molecule is an error; with `skip` it is left out. With `strict`,
    so is a molecule with too many bonds at an atom, which is kept otherwise. `progress` is called
    with the number of molecules read, and the number in all.
    """
    check_chemistry()
    lines = range(len(smiles)) if lines is None else lines
    blocks = [
        _Block(i, list(smiles[i : i + _BLOCK]), name, list(lines[i : i + _BLOCK]), skip, strict,
               wanted)
        for i in range(0, len(smiles) or 1, _BLOCK)
    ]  # fmt: skip
    parts = ordered_map(_read_block, blocks, workers)
    found = _joined([*reporting(parts, len(smiles), progress, lambda part: _BLOCK)])
    if len(found.sizes) == 0:
        raise ValueError(f"got no molecules in {name}, expected at least one")
    return found


def molecule_blocks(
    blocks: Iterable[tuple[Sequence[str], Sequence[int]]],
    name: str,
    wanted: Wanted,
    workers: int = 1,
) -> Iterator[Molecules]:
    """Read molecules in blocks of texts and their lines, as `from_smiles` with `skip` reads them.

    Blocks are drawn as they are needed, and one may have no molecules.
    """
    check_chemistry()
    jobs = (_Block(0, [*texts], name, [*lines], True, False, wanted) for texts, lines in blocks)
    return ordered_map(_read_block, jobs, workers)


def as_graphs(
    found: Molecules,
    features: MoleculeFeatures | None = None,
    *,
    metadata: dict[str, Any],
    **given: Any,
) -> GraphSet:
    """Molecules as a graph set, with the `features` that they were read with.

    `given` are further arguments of `GraphSet.from_arrays`.
    """
    features = MoleculeFeatures() if features is None else features
    node_values, edge_values = values()
    known = metadata | features.record() | {"node_values": node_values, "edge_values": edge_values}
    graphs = GraphSet.from_arrays(
        found.sizes,
        found.edge_index,
        found.edge_counts,
        x=found.x,
        edge_attr=found.edge_attr,
        node_features=ATOM_FEATURES,
        x_graph=found.x_graph,
        edge_features=BOND_FEATURES,
        graph_features=features.names("graph"),
        metadata=known,
        **given,
    )
    return features.added(graphs)


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
    return _parse_overvalent(smiles) if molecule is None else molecule


def _parse_overvalent(smiles: str) -> Any:
    from rdkit import Chem

    molecule: Any = Chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        return None
    flags = Chem.SanitizeFlags
    molecule.UpdatePropertyCache(strict=False)
    problem = Chem.SanitizeMol(
        molecule, flags.SANITIZE_ALL ^ flags.SANITIZE_PROPERTIES, catchErrors=True
    )
    return molecule if problem == flags.SANITIZE_NONE else None


class _Block(NamedTuple):
    """Texts for a worker to read; the arguments are those of `from_smiles`."""

    first: int  # index of the first text
    smiles: list[str]
    name: str
    lines: list[int]
    skip: bool
    strict: bool
    wanted: Wanted


def _read_block(block: _Block) -> Molecules:
    from rdkit.rdBase import BlockLogs

    with BlockLogs():  # of refused molecules and deprecated features
        return _joined([_read_part(part) for part in _parts(block)])


def _parts(block: _Block) -> Iterator[_Block]:
    """Fewer texts at a time, because RDKit's molecules take memory."""
    for i in range(0, len(block.smiles) or 1, _TOGETHER):
        own = slice(i, i + _TOGETHER)
        yield block._replace(
            first=block.first + i, smiles=block.smiles[own], lines=block.lines[own]
        )


def _read_part(block: _Block) -> Molecules:
    from rdkit import Chem

    indices, atoms, bonds = list[int](), list[list[bytes]](), list[list[tuple[int, int, bytes]]]()
    notes, molecules = np.zeros(len(block.smiles), np.uint8), list[Any]()
    refused = Note.UNREADABLE | Note.OVERVALENT if block.strict else Note.UNREADABLE
    for row, text in enumerate(block.smiles):
        molecule, note = _noted(text)
        notes[row] = note
        if not note & refused:
            indices.append(block.first + row)
            atoms.append(_atoms(molecule, text))
            bonds.append(_bonds(molecule, text))
            molecules.append(molecule)
        elif not block.skip:
            unreadable = bool(note & Note.UNREADABLE)
            raise _refused(text, block.lines[row], block.name, unreadable)
    parsed = Parsed(
        molecules=molecules,
        sizes=np.array([len(some) for some in atoms], np.int64),
        bond_counts=np.array([len(some) for some in bonds], np.int64),
        x=_rows(chain.from_iterable(atoms), len(ATOM_FEATURES)),
        ends=np.array([bond[:2] for some in bonds for bond in some], np.int64).reshape(-1, 2),
        bonds=_rows((bond[2] for some in bonds for bond in some), len(BOND_FEATURES)),
    )
    both = np.stack([parsed.ends, parsed.ends[:, ::-1]], 1)  # each bond, then its reverse
    wanted, own = block.wanted, notes[np.array(indices, np.int64) - block.first]
    canonical = map(Chem.MolToSmiles, molecules) if wanted.canonical else ()
    none = np.zeros((0, 0), np.uint8)
    return Molecules(
        notes=notes,
        canonical=np.array([*canonical], object),
        fingerprints=fingerprints_of(parsed, own & Note.ISOTOPE > 0)
        if wanted.fingerprints
        else none,
        indices=np.array(indices, np.int64),
        sizes=parsed.sizes,
        edge_counts=2 * parsed.bond_counts,
        edge_index=both.reshape(-1, 2).T,
        x=parsed.x,
        edge_attr=parsed.bonds.repeat(2, 0),
        x_graph=wanted.features.of_molecules(parsed),
    )


_ISOTOPE = re.compile(r"\[\d")  # most molecules with brackets have none, and asking is slow


def _noted(text: str) -> tuple[Any, int]:
    """The molecule of a text, or None, and its `Note`."""
    from rdkit import Chem

    molecule: Any = Chem.MolFromSmiles(text)
    note = 0
    if molecule is None:
        molecule, note = _parse_overvalent(text), Note.OVERVALENT
    if molecule is None or molecule.GetNumAtoms() == 0:
        return None, Note.UNREADABLE
    if "." in text and len(Chem.GetMolFrags(molecule)) > 1:
        note |= Note.FRAGMENTS
    if _ISOTOPE.search(text) and any(atom.GetIsotope() for atom in molecule.GetAtoms()):
        note |= Note.ISOTOPE
    if "*" in text and not all(atom.GetAtomicNum() for atom in molecule.GetAtoms()):
        note |= Note.WILDCARD
    after = text.split(maxsplit=1)[1:]
    if after and not after[0].startswith("|"):  # which begins an extension (CXSMILES)
        note |= Note.NAMED
    return molecule, note | (Note.SINGLE if molecule.GetNumAtoms() == 1 else 0)


def _refused(text: str, line: int, name: str, unreadable: bool) -> ValueError:
    if unreadable:
        return ValueError(
            f"got {text!r} in line {line} of {name}, expected the SMILES of a molecule; correct "
            "it, or leave such rows out (--skip)"
        )
    return ValueError(
        f"got {text!r} in line {line} of {name}, which RDKit refuses because an atom has too many "
        "bonds, expected a molecule that it accepts; correct it, leave such rows out (--skip), or "
        "leave out --strict to read them without that check"
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
    return np.frombuffer(bytearray(b"".join(features)), np.uint8).reshape(-1, columns)


def _joined(parts: Sequence[Molecules]) -> Molecules:
    names = [field.name for field in fields(Molecules)]
    axes = dict.fromkeys(names, 0) | {"edge_index": 1}
    return Molecules(**{n: np.concatenate([getattr(p, n) for p in parts], axes[n]) for n in names})
