"""The features that molecules can have, by name: of atoms and bonds, and of whole molecules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pna.data.descriptors import DESCRIPTORS, Parsed, descriptors
from pna.data.encodings import ENCODINGS, encodings_in
from pna.data.graphset import GraphSet
from pna.names import lookup, unique

#: OGB's features of atoms and bonds, in its order.
ATOM_FEATURES = (
    *("atomic number", "chirality", "degree", "formal charge", "hydrogens"),
    *("radical electrons", "hybridisation", "aromatic", "in ring"),
)
BOND_FEATURES = ("bond type", "stereo", "conjugated")

OGB = "ogb"
#: The features of the molecules of a table, if none are named.
USUAL = (OGB, "descriptors")
#: Where the metadata of graphs, and the data of a run, have the features and RDKit's version.
RECORD = "molecules"


def morgan(parsed: Parsed, size: int) -> NDArray[np.uint8]:
    """How often each of the groups of atoms within two bonds occurs, hashed to `size` numbers."""
    counts = fingerprint_generator(size).GetCountFingerprintAsNumPy
    each: list[NDArray[Any]] = [counts(molecule) for molecule in parsed.molecules]
    return np.minimum(np.stack(each), 255).astype(np.uint8)


@cache
def fingerprint_generator(size: int) -> Any:
    """RDKit's generator of Morgan fingerprints of radius 2."""
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=size)


def _none(size: int) -> tuple[str, ...]:
    return ()


class Feature(NamedTuple):
    """Features of molecules. Nothing has a default."""

    size: int | None  # the number that may follow the name, as in morgan=1024; None if none may
    #: Names of the features of atoms, bonds and whole molecules, from the size.
    atom_names: Callable[[int], tuple[str, ...]]
    bond_names: Callable[[int], tuple[str, ...]]
    names: Callable[[int], tuple[str, ...]]
    #: Features of whole molecules, (molecules, columns), from the size.
    of_molecules: Callable[[Parsed, int], NDArray[Any]] | None
    added: Callable[[GraphSet, int], GraphSet] | None  # graphs with more features of nodes or edges
    encoding: str | None  # the name of these features among `ENCODINGS`


def _encoding(name: str, size: int) -> Feature:
    """Features of atoms or bonds that are computed from the edges alone: one of `ENCODINGS`."""
    level, word, added = ENCODINGS[name]

    def named(size: int) -> tuple[str, ...]:
        return tuple(f"{word} {i + 1}" for i in range(size))

    return Feature(
        size=size,
        atom_names=named if level == "node" else _none,
        bond_names=named if level == "edge" else _none,
        names=_none,
        of_molecules=None,
        added=added,
        encoding=name,
    )


FEATURES = {
    # OGB's features of atoms and bonds, which `pna.data.molecules` computes
    OGB: Feature(
        size=None,
        atom_names=lambda size: ATOM_FEATURES,
        bond_names=lambda size: BOND_FEATURES,
        names=_none,
        of_molecules=None,
        added=None,
        encoding=None,
    ),
    "descriptors": Feature(
        size=None,
        atom_names=_none,
        bond_names=_none,
        names=lambda size: DESCRIPTORS,
        of_molecules=lambda parsed, size: descriptors(parsed),
        added=None,
        encoding=None,
    ),
    "morgan": Feature(
        size=2048,
        atom_names=_none,
        bond_names=_none,
        names=lambda size: tuple(f"morgan {i}" for i in range(size)),
        of_molecules=morgan,
        added=None,
        encoding=None,
    ),
    "walks": _encoding("walks", 16),
    "bond-walks": _encoding("edge-walks", 8),
    "laplacian": _encoding("laplacian", 8),
    "bond-heat": _encoding("edge-heat", 4),
}


@dataclass(frozen=True)
class MoleculeFeatures:
    """The features that the graphs of molecules have, in order: names of `FEATURES` and sizes."""

    chosen: tuple[tuple[str, int], ...] = ((OGB, 0),)

    @classmethod
    def parse(cls, given: Iterable[str]) -> MoleculeFeatures:
        """From names with or without a size: ["ogb", "morgan=1024"]."""
        chosen = [_parsed(text) for text in given]
        unique("features of molecules", [name for name, _ in chosen])
        if not chosen or chosen[0][0] != OGB:
            raise ValueError(
                f"got the features {', '.join(name for name, _ in chosen) or 'none'} of molecules, "
                f"expected {OGB} first, the features of atoms and bonds; add it"
            )
        return cls(tuple(chosen))

    @classmethod
    def of_run(cls, data: Mapping[str, Any], of_graphs: bool = True) -> MoleculeFeatures:
        """Those that a run was trained with, from the data of its configuration.

        Walks and the like that were added later (`pna data walks`) are known by the names of
        columns. Without `of_graphs`, features of whole molecules are left out. Raises if some
        features are not those of molecules; a warning says if RDKit has another version.
        """
        record, names = data.get(RECORD, {}), data.get("features", {})
        given = list(record.get("features", [OGB]))
        chosen = dict(cls.parse(given).chosen)
        by_encoding = {feature.encoding: name for name, feature in FEATURES.items()}
        for encoding, size in encodings_in(names):
            if by_encoding[encoding] not in chosen:
                given.append(f"{by_encoding[encoding]}={size}")
        own = cls.parse(given)
        if not of_graphs:
            kept = [c for c in own.chosen if FEATURES[c[0]].of_molecules is None]
            names = {**names, "graph": ()}
            own = cls(tuple(kept))
        for level in ("node", "edge", "graph"):
            expected = tuple(names.get(level, own.names(level)))
            if expected != own.names(level):
                odd = sorted({*expected} - {*own.names(level)})
                raise ValueError(
                    f"got models that were trained with other {level} features than pna data "
                    f"molecules makes ({', '.join(odd[:5]) or 'in another order'}); make a graph "
                    "set of the table, add the missing features, and use that"
                )
        _check_version(record.get("rdkit"))
        return own

    def names(self, level: str) -> tuple[str, ...]:
        """Names of the features of a "node", an "edge" or a "graph"."""
        fields = {"node": "atom_names", "edge": "bond_names", "graph": "names"}
        each = (getattr(FEATURES[name], fields[level])(size) for name, size in self.chosen)
        return tuple(name for names in each for name in names)

    def record(self) -> dict[str, Any]:
        """What the metadata of graphs say about them."""
        from rdkit import __version__

        written = [n if FEATURES[n].size is None else f"{n}={size}" for n, size in self.chosen]
        return {RECORD: {"features": written, "rdkit": __version__}}

    def of_molecules(self, parsed: Parsed) -> NDArray[Any]:
        """Features of whole molecules, (molecules, columns)."""
        entries = [(FEATURES[name].of_molecules, size) for name, size in self.chosen]
        used = [(function, size) for function, size in entries if function is not None]
        if not used or not parsed.molecules:
            return np.zeros((len(parsed.molecules), len(self.names("graph"))), np.uint8)
        return np.concatenate([function(parsed, size) for function, size in used], 1)

    def added(self, graphs: GraphSet) -> GraphSet:
        """Graphs with all features of atoms and bonds, from those with OGB's."""
        for name, size in self.chosen:
            add = FEATURES[name].added
            graphs = graphs if add is None else add(graphs, size)
        return graphs


def _parsed(text: str) -> tuple[str, int]:
    name, _, number = (part.strip() for part in text.partition("="))
    default = lookup("features of molecules", name, FEATURES).size
    if not number:
        return name, default or 0
    if default is None or not number.isdecimal() or not 0 < int(number) <= _LARGEST:
        expected = "no number" if default is None else f"a whole number of 1 to {_LARGEST:,}"
        raise ValueError(
            f"got the features {text!r} of molecules, expected {expected} after {name}"
        )
    return name, int(number)


_LARGEST = 1 << 16


def _check_version(trained: str | None) -> None:
    from rdkit import __version__

    if trained is not None and trained != __version__:
        warnings.warn(
            f"the models were trained with molecules read by RDKit {trained}, and this is RDKit "
            f"{__version__}: features may differ; install that version to be sure",
            stacklevel=4,
        )
