"""RDKit's descriptors of molecules: by its own functions, and faster for many molecules.

Most of the time of RDKit's functions goes into patterns that it matches again for each of them,
and into lists of paths. `descriptors` gets the same numbers from what atoms and bonds are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: RDKit's descriptors of molecules that are numbers. Others of its 217 are left out, because they
#: take most of the time (qed, BertzCT, Ipc, SPS, EState, BCUT2D, the counts of fragments, paths of
#: three and more bonds), or because they are not defined for all elements (partial charges).
_NUMBERS = (
    *("MolWt", "MolLogP", "MolMR", "TPSA", "LabuteASA", "FractionCSP3", "HallKierAlpha"),
    *("Chi0v", "Chi1v", "Chi2v", "Kappa1", "Kappa2", "Kappa3"),
    *("HeavyAtomCount", "NumHeteroatoms", "NHOHCount", "NOCount", "NumHAcceptors", "NumHDonors"),
    *("NumRotatableBonds", "NumAmideBonds", "NumAtomStereoCenters", "NumSpiroAtoms"),
    *("NumBridgeheadAtoms", "RingCount", "NumHeterocycles", "NumAromaticRings"),
    *("NumAromaticCarbocycles", "NumAromaticHeterocycles", "NumAliphaticRings"),
    *("NumAliphaticCarbocycles", "NumAliphaticHeterocycles", "NumSaturatedRings"),
    *("NumSaturatedCarbocycles", "NumSaturatedHeterocycles"),
)
#: Its surface areas, in bins of charge, refractivity and logP; how many bins each has.
_AREAS = {"PEOE_VSA": 14, "SMR_VSA": 10, "SlogP_VSA": 12}
DESCRIPTORS = (
    *_NUMBERS,
    *(f"{name}{i + 1}" for name, count in _AREAS.items() for i in range(count)),
)

#: Those that RDKit computes in one call, by the names that it has for them there.
_PROPERTIES = {
    "MolWt": "amw",
    "TPSA": "tpsa",
    "LabuteASA": "labuteASA",
    "FractionCSP3": "FractionCSP3",
    "HallKierAlpha": "hallKierAlpha",
    "Chi0v": "chi0v",
    "Chi1v": "chi1v",
    "Kappa1": "kappa1",
    "HeavyAtomCount": "NumHeavyAtoms",
    "NHOHCount": "lipinskiHBD",
    "NOCount": "lipinskiHBA",
    "NumHAcceptors": "NumHBA",
    "NumHDonors": "NumHBD",
    "RingCount": "NumRings",
    **{
        name: name
        for name in (
            *("NumHeteroatoms", "NumAmideBonds", "NumAtomStereoCenters"),
            *("NumSpiroAtoms", "NumBridgeheadAtoms", "NumHeterocycles", "NumAromaticRings"),
            *("NumAromaticHeterocycles", "NumAliphaticRings", "NumAliphaticHeterocycles"),
            *("NumSaturatedRings", "NumSaturatedHeterocycles"),
        )
    },
}
_KINDS = ("Aromatic", "Aliphatic", "Saturated")  # of rings, with heteroatoms or without


class Parsed(NamedTuple):
    """Molecules of RDKit, and OGB's features of their atoms and bonds."""

    molecules: Sequence[Any]
    sizes: NDArray[np.int64]  # (molecules,)
    bond_counts: NDArray[np.int64]  # (molecules,)
    x: NDArray[np.uint8]  # (atoms, 9)
    ends: NDArray[np.int64]  # (bonds, 2), numbered within the molecule
    bonds: NDArray[np.uint8]  # (bonds, 3)


def by_rdkit(molecule: Any) -> NDArray[np.float64]:
    """The numbers `DESCRIPTORS` by RDKit's own functions; NaN if one cannot be computed."""
    from rdkit.Chem import Descriptors, rdMolDescriptors

    found = [_tried(getattr(Descriptors, name), molecule, 1) for name in _NUMBERS]
    for name, count in _AREAS.items():
        found.append(_tried(getattr(rdMolDescriptors, f"{name}_"), molecule, count))
    return np.concatenate(found)


def _tried(function: Callable[[Any], Any], molecule: Any, count: int) -> NDArray[np.float64]:
    try:
        return np.array(function(molecule), np.float64).reshape(count)
    except (RuntimeError, ValueError):  # of RDKit, for atoms of too many bonds and odd elements
        return np.full(count, np.nan)


def descriptors(parsed: Parsed) -> NDArray[np.float32]:
    """The numbers `by_rdkit` of every molecule, (molecules, `DESCRIPTORS`)."""
    from rdkit.Chem import MolSurf, rdMolDescriptors

    count, graph = len(parsed.molecules), _Graph(parsed)
    properties = _properties()
    numbers = np.zeros((count, len(_PROPERTIES)))
    charges = np.zeros((count, _AREAS["PEOE_VSA"]))
    areas = np.zeros(len(parsed.x))  # of the surface of every atom
    usual = graph.usual()
    for row in np.flatnonzero(usual).tolist():
        molecule = parsed.molecules[row]
        try:
            numbers[row] = properties.ComputeProperties(molecule)
            charges[row] = rdMolDescriptors.PEOE_VSA_(molecule)
            begin, end = graph.first[row : row + 2]
            areas[begin:end] = rdMolDescriptors._CalcLabuteASAContribs(molecule)[0]
        except (RuntimeError, ValueError):
            usual[row] = False
    found = dict(zip(_PROPERTIES, numbers.T, strict=True))
    for kind in _KINDS:
        rings, others = found[f"Num{kind}Rings"], found[f"Num{kind}Heterocycles"]
        found[f"Num{kind}Carbocycles"] = rings - others
    found |= graph.paths(found["HallKierAlpha"], usual)
    found["NumRotatableBonds"] = graph.rotatable(usual)
    logp, refractivity, *others = graph.crippen(usual).T
    for name, heavy, hydrogen in zip(("MolLogP", "MolMR"), others[:2], others[2:], strict=True):
        found[name] = graph.summed_with_hydrogens(heavy, hydrogen)
    columns = [*(found[name] for name in _NUMBERS), *charges.T]
    for bins, values in ((MolSurf.mrBins, refractivity), (MolSurf.logpBins, logp)):
        bin_of = np.searchsorted(bins, values, side="right")
        bins_in_all = len(bins) + 1
        flat = np.bincount(graph.owner * bins_in_all + bin_of, areas, count * bins_in_all)
        columns += [*flat.reshape(count, bins_in_all).T]
    table = np.stack(columns, 1)
    for row in np.flatnonzero(~usual | ~np.isfinite(table).all(1)).tolist():
        table[row] = by_rdkit(parsed.molecules[row])
    return table.astype(np.float32)


@cache
def _properties() -> Any:
    from rdkit.Chem import rdMolDescriptors

    return rdMolDescriptors.Properties([*_PROPERTIES.values()])


#: Columns of OGB's features of atoms, and the classes of those that it cannot tell apart.
_NUMBER, _DEGREE, _CHARGE, _HYDROGENS, _AROMATIC = 0, 2, 3, 4, 7
_UNKNOWN = {_NUMBER: 118, _DEGREE: 11, _CHARGE: 11, _HYDROGENS: 9}
_HYDROGEN, _OXYGEN = 0, 7  # atomic numbers less one
_SINGLE, _DOUBLE, _TRIPLE, _AROMATIC_BOND, _UNKNOWN_BOND = range(5)  # classes of bonds
_CARBON, _NITROGEN, _SULFUR, _HALOGENS = 5, 6, 15, (8, 16, 34)  # fluorine, chlorine and bromine
_PLUS = 6  # the class of the charge +1
_ROTATABLE = "3.2.0"  # version of RDKit's definition of rotatable bonds
_MOST_BONDS = 4  # of an atom
_MOST_ATOMS = 100  # RDKit finds at most 1,000 matches of a pattern, which more atoms may exceed


class _Graph:
    """The atoms and bonds of several molecules as one graph."""

    def __init__(self, parsed: Parsed) -> None:
        self.parsed, self.x = parsed, parsed.x.astype(np.int64)
        self.first = np.concatenate([[0], parsed.sizes.cumsum()])
        self.owner = np.repeat(np.arange(len(parsed.sizes)), parsed.sizes)
        ends = parsed.ends + np.repeat(self.first[:-1], parsed.bond_counts)[:, None]
        self.receivers, self.senders = np.concatenate([ends, ends[:, ::-1]]).T
        self.bond_types = np.tile(parsed.bonds[:, 0].astype(np.int64), 2)
        self.degrees = np.bincount(self.receivers, minlength=len(self.x))

    def summed(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum over the atoms of each molecule."""
        sums: NDArray[Any] = np.bincount(self.owner, values, len(self.parsed.sizes))
        return sums.astype(np.float64, copy=False)

    def summed_with_hydrogens(
        self, heavy: NDArray[np.float64], hydrogen: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The sum over the atoms and then over their hydrogens, the order in which RDKit adds."""
        count = np.where(np.isnan(hydrogen), 0, self.x[:, _HYDROGENS])
        owner = np.concatenate([self.owner, np.repeat(self.owner, count)])
        values = np.concatenate([heavy, np.repeat(hydrogen, count)])
        sums: NDArray[Any] = np.bincount(owner, values, len(self.parsed.sizes))
        return sums

    def usual(self) -> NDArray[np.bool_]:
        """Molecules whose features say all that descriptors depend on, (molecules,)."""
        odd = (self.x[:, _NUMBER] == _HYDROGEN) | (self.degrees > _MOST_BONDS)
        for column, unknown in _UNKNOWN.items():
            odd |= self.x[:, column] == unknown
        odd[self.receivers[self.bond_types == _UNKNOWN_BOND]] = True
        return (self.summed(odd) == 0) & (self.parsed.sizes <= _MOST_ATOMS)

    def paths(
        self, alpha: NDArray[np.float64], usual: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.float64]]:
        """The descriptors that depend on paths of two and three bonds."""
        from rdkit.Chem import rdMolDescriptors

        degrees, size = self.degrees, self.parsed.sizes
        others = degrees - 1  # bonds of an atom that continue a path
        two = self.summed(degrees * others) / 2
        further = np.bincount(self.receivers, others[self.senders], len(degrees))
        three = self.summed(others * further) / 2
        deltas = _delta_table()[self.x[:, _NUMBER], self.x[:, _HYDROGENS]]
        beside = deltas[self.senders]
        sums, squares = (
            np.bincount(self.receivers, values, len(degrees)) for values in (beside, beside**2)
        )
        full = size + alpha
        odd = size % 2
        found = {
            "Chi2v": self.summed(deltas * (sums**2 - squares) / 2),
            "Kappa2": _ratio((full - 1) * (full - 2) ** 2, (two + alpha) ** 2),
            "Kappa3": _ratio((full - 2 + odd) * (full - 3) ** 2, (three + alpha) ** 2),
        }
        for row in np.flatnonzero(usual).tolist():  # rings of three are no paths of three bonds
            molecule = self.parsed.molecules[row]
            if any(len(ring) == 3 for ring in molecule.GetRingInfo().AtomRings()):
                found["Kappa3"][row] = rdMolDescriptors.CalcKappa3(molecule)
        return found

    def rotatable(self, usual: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The number of rotatable bonds by RDKit's strict definition: single bonds outside of rings
        between atoms that have other bonds, except those to triple bonds, methyl, trihalomethyl and
        tert-butyl, and those of amides, esters and the like."""
        from rdkit.Chem import rdMolDescriptors

        if rdMolDescriptors._CalcNumRotatableBonds_version != _ROTATABLE:
            count = rdMolDescriptors.CalcNumRotatableBonds
            rows = zip(self.parsed.molecules, usual.tolist(), strict=True)
            return np.array([count(m) if is_usual else 0 for m, is_usual in rows], np.float64)
        number, kinds, beside = self.x[:, _NUMBER], self.bond_types, self.senders
        is_chain = self.x[:, _AROMATIC] == 0
        nitrogen, oxygen = number == _NITROGEN, is_chain & (number == _OXYGEN)
        carbon, sulfur = is_chain & (number == _CARBON), is_chain & (number == _SULFUR)

        def bonded(bonds: NDArray[np.bool_], least: int = 1) -> NDArray[np.bool_]:
            return np.bincount(self.receivers[bonds], minlength=len(number)) >= least

        loose = (kinds == _SINGLE) | (kinds == _AROMATIC_BOND)
        free = loose & ~np.tile(self._in_ring(usual), 2)
        methyl = carbon & (self.x[:, _HYDROGENS] == 3)
        ends = bonded(kinds == _TRIPLE) | (self.degrees == 1) | methyl
        for leaf in (methyl, *(number == halogen for halogen in _HALOGENS)):
            ends |= carbon & bonded(loose & leaf[beside], 3)
        stiff = np.zeros(len(number), bool)
        centre = carbon & (self.degrees == 3)
        inner = self.degrees != 1
        for doubled, partner in (
            ((is_chain & nitrogen) | oxygen | sulfur, nitrogen | oxygen | (sulfur & inner)),
            (is_chain & nitrogen & (self.x[:, _CHARGE] == _PLUS), nitrogen & inner),
        ):
            middle = centre & bonded((kinds == _DOUBLE) & doubled[beside])
            own = free & (kinds == _SINGLE) & middle[self.receivers] & partner[beside]
            stiff[self.receivers[own]] = stiff[beside[own]] = True
        one, other = self.receivers, beside
        turns = free & ~ends[one] & ~ends[other] & ~(stiff[one] & stiff[other])
        return self.summed(np.bincount(one[turns], minlength=len(number))) / 2

    def _in_ring(self, usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each bond is in a ring, (bonds,)."""
        first = np.concatenate([[0], self.parsed.bond_counts.cumsum()])
        found = np.zeros(first[-1], bool)
        for row in np.flatnonzero(usual).tolist():
            for ring in self.parsed.molecules[row].GetRingInfo().BondRings():
                found[first[row] + np.array(ring)] = True
        return found

    def crippen(self, usual: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Contributions to logP and refractivity of atoms in molecules without hydrogens, of atoms
        in molecules with hydrogens, and of each hydrogen of an atom, (atoms, 6)."""
        numbers = self._environments()
        known = _learnt.of(numbers)
        for row in np.unique(self.owner[np.isnan(known[:, 0])]).tolist():
            if usual[row]:
                own = slice(*self.first[row : row + 2])
                _learnt.add(self.parsed.molecules[row], numbers[own])
        return _learnt.of(numbers)

    def _environments(self) -> NDArray[np.int64]:
        """Numbers (atoms,) that are equal only if the patterns of Crippen match alike: for an atom
        and its neighbours, and for oxygen their neighbours too."""
        x, receivers, senders = self.x, self.receivers, self.senders
        element = (x[:, _NUMBER] * 16 + x[:, _CHARGE]) * 2 + x[:, _AROMATIC]
        own = (element * 16 + x[:, _HYDROGENS]) * 16 + x[:, _DEGREE]
        bonds = self.bond_types + 1  # 0 is no bond
        numbers = _numbered(own, receivers, element[senders] * 8 + bonds)
        is_oxygen = x[:, _NUMBER] == _OXYGEN
        kept = is_oxygen[receivers]
        further = _numbered(
            np.where(is_oxygen, own, -1), receivers[kept], numbers[senders[kept]] * 8 + bonds[kept]
        )
        return np.where(is_oxygen, further, numbers)


_environments: dict[bytes, int] = {}  # numbers of what was seen around an atom


def _numbered(
    own: NDArray[np.int64], receivers: NDArray[np.int64], beside: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for every different combination of an atom and the bonds at it, (atoms,)."""
    order = np.lexsort((beside, receivers))
    receivers, beside = receivers[order], beside[order]
    place = np.arange(len(receivers)) - np.searchsorted(receivers, receivers)
    kept = place < _MOST_BONDS
    keys = np.zeros((len(own), 1 + _MOST_BONDS), np.int64)
    keys[:, 0] = own
    keys[receivers[kept], 1 + place[kept]] = beside[kept]
    text, width = keys.tobytes(), keys.strides[0]
    known = _environments
    return np.array(
        [known.setdefault(text[i : i + width], len(known)) for i in range(0, len(text), width)]
    )


class _Contributions:
    """RDKit's contributions to logP and refractivity by the number of the environment."""

    def __init__(self) -> None:
        self.table = np.full((0, 6), np.nan)

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        missing = len(_environments) - len(self.table)
        if missing > 0:
            more = np.full((missing + len(self.table) // 4, 6), np.nan)
            self.table = np.concatenate([self.table, more])
        return self.table[numbers]

    def add(self, molecule: Any, numbers: NDArray[np.int64]) -> None:
        """Ask RDKit for the contributions of the atoms of a molecule."""
        from rdkit import Chem
        from rdkit.Chem.rdMolDescriptors import _CalcCrippenContribs

        alone, full = _CalcCrippenContribs(molecule), Chem.AddHs(molecule)
        every = np.array(_CalcCrippenContribs(full))
        hydrogens = np.zeros((len(numbers), 2))
        for hydrogen in range(len(numbers), len(every)):
            (atom,) = full.GetAtomWithIdx(hydrogen).GetNeighbors()
            hydrogens[atom.GetIdx()] = every[hydrogen]
        self.table[numbers] = np.concatenate([alone, every[: len(numbers)], hydrogens], 1)


_learnt = _Contributions()


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    """A quotient; 0 if the divisor is."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


@cache
def _delta_table() -> NDArray[np.float64]:
    """Kier and Hall's δ^(-1/2) by atomic number less one, and hydrogens."""
    from rdkit.Chem import GetPeriodicTable

    outer_of, hydrogens = GetPeriodicTable().GetNOuterElecs, np.arange(_UNKNOWN[_HYDROGENS] + 1)
    table = np.zeros((_UNKNOWN[_NUMBER] + 1, len(hydrogens)))
    for number in range(2, _UNKNOWN[_NUMBER] + 1):
        outer = outer_of(number)
        table[number - 1] = (outer - hydrogens) / (number - outer - 1 if number > 10 else 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(table == 0, 0.0, table**-0.5)
