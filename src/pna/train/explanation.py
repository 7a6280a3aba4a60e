"""What each atom of a molecule adds to a prediction: Shapley values of the atoms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations as all_orders
from math import factorial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.molecule_drawing import draw_atoms
from pna.data.molecule_features import ATOM_FEATURES
from pna.data.molecule_table import smiles_column
from pna.data.molecules import Molecules, molecule_blocks, parse
from pna.data.table import Table
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.train.calibration import TaskCalibration, calibrations_of
from pna.train.prediction import columns_of
from pna.train.run import Run
from pna.train.table_prediction import BLOCK, TableModels

#: Columns of a table of contributions.
COLUMNS = ("row", "smiles", "target", "atom", "symbol", "contribution", "error")
_MOST_ATOMS = 2**16  # of the changed molecules that are predicted at a time


@dataclass(frozen=True)
class Explanation:
    """The contributions of the atoms of a molecule to a prediction.

    ``prediction = baseline + sum(atoms) + features``, up to the rounding of float64. A notebook
    draws it.
    """

    smiles: str
    target: str  # the name of the prediction
    prediction: float  # what `predict` gives
    baseline: float  # prediction if all atoms are CH2 and features of the molecule are the means
    atoms: NDArray[np.float64]  # (atoms,) contributions, in the order of the SMILES
    errors: NDArray[np.float64]  # (atoms,) standard errors of these, from the sampling of orders
    symbols: tuple[str, ...]  # (atoms,) of the elements
    features: float = 0.0  # contribution of the features of the whole molecule; 0 without any
    features_error: float = 0.0  # standard error of it
    row: int = 1  # of the molecule among those that were given, from 1

    def svg(self, size: tuple[int, int] = (420, 320)) -> str:
        """A drawing: atoms that raise the prediction are blue, atoms that lower it are orange."""
        words = f"{self.target}: {self.prediction:.3g} = {self.baseline:.3g} (baseline)"
        for part, number in (("atoms", self.atoms.sum()), ("features", self.features)):
            if number or part == "atoms":
                words += f" {'−' if number < 0 else '+'} {abs(number):.3g} ({part})"
        return draw_atoms(self.smiles, self.atoms.tolist(), words, size)

    def _repr_svg_(self) -> str:
        return self.svg()

    def rows(self) -> list[list[str]]:
        """Rows of a table with `COLUMNS`: the baseline, the atoms and the features, whose
        contributions add up to the prediction."""
        found = [("baseline", "", self.baseline, 0.0)]
        of_atoms = zip(self.symbols, self.atoms.tolist(), self.errors.tolist(), strict=True)
        found += [(str(atom), *part) for atom, part in enumerate(of_atoms)]
        found.append(("features", "", self.features, self.features_error))
        return [
            [str(self.row), self.smiles, self.target, atom, symbol, f"{number:.9g}", f"{error:.3g}"]
            for atom, symbol, number, error in found
        ]


def explain(
    run: Run | str | Path,
    molecules: str | Sequence[str] | Table | Path,
    target: str = "",
    member: int | None = None,
    *,
    permutations: int = 16,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
) -> list[Explanation]:
    """What each atom of a molecule adds to the prediction of a run.

    Contributions are Shapley values. Start with all atoms replaced by CH2, an aliphatic carbon with
    two hydrogens outside of rings, while the bonds stay. Put the real atoms in one after another;
    the contribution of an atom is the change of the prediction, averaged over orders of the atoms.
    Contributions therefore add up to the prediction less the one of the start, for any number of
    orders. Features of whole molecules are one more part, put in like an atom: before, they are
    the means of the training set.

    What is explained is the number that `predict` gives: in the units of the target, or the
    calibrated probability of a target of 0 and 1. Of several members it is the mean.

    Args:
        run: a run of molecules, or its folder.
        molecules: a SMILES, a list of SMILES, a table of molecules, or the path of one.
        target: which prediction to explain. Default: the only one.
        member: explain this member only. Default: the mean of all with a finite validation loss.
        permutations: number of orders, each of which comes with its reverse: an even number. If a
            molecule has no more orders, all are taken, and the values are exact.
        device: a device of torch. Default: a GPU if there is one.
        aggregators: the classes of your own aggregators, if the models have any.

    Returns:
        The explanation of each molecule that RDKit can read; a warning names the lines of others.
    """
    if isinstance(molecules, Path):
        molecules = Table.read(molecules)
    elif not isinstance(molecules, Table):
        texts = [molecules] if isinstance(molecules, str) else [*molecules]
        lines = [*range(1, len(texts) + 1)]
        molecules = Table("the list", ("smiles",), [[one] for one in texts], lines)
    explainer = TableExplainer(run, member, "", 1, device, aggregators, target, permutations)
    return [*explainer.explained(molecules)]


@dataclass
class TableExplainer(TableModels):
    """Explains the predictions for a table of molecules. Arguments are those of `explain`."""

    target: str = ""
    permutations: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permutations < 4 or self.permutations % 2:
            raise ValueError(
                f"got {self.permutations} permutations, expected an even number of at least 4"
            )

    @cached_property
    def calibrations(self) -> list[TaskCalibration]:
        return calibrations_of(self.run, self.models.members, None)

    @cached_property
    def chosen(self) -> str:
        """The name of the prediction to explain."""
        if not self.target and len(self.columns) > 1:
            raise ValueError(
                f"got no target, expected one of {', '.join(self.columns)}; choose it (--target)"
            )
        return lookup("target", self.target or self.columns[0], {c: c for c in self.columns})

    def check(self, table: Table) -> str:
        _ = self.chosen
        return smiles_column(table, self.smiles)

    def columns_of(self, found: Molecules) -> dict[str, np.ndarray]:
        return self._predicted(self.graphs(found))

    def _predicted(self, graphs: GraphSet) -> dict[str, np.ndarray]:
        """All predictions that are numbers, (graphs,) each."""
        outputs = [self.models.outputs(graphs)]
        columns, _ = columns_of([self.run], [self.models], outputs, self.calibrations, self.member)
        return {name: c for name, c in columns["graph"].items() if c.dtype.kind == "f"}

    def explained(self, table: Table) -> Iterator[Explanation]:
        """The explanations of the molecules that RDKit can read, and warnings of the others."""
        column, first = self.check(table), 1
        for block, found in self.read(table, table.blocks(BLOCK)):
            texts = block.column(column)
            graphs = self.graphs(found) if len(found.sizes) else None
            for index, row in enumerate(found.indices.tolist()):
                assert graphs is not None
                yield replace(self._explanation(texts[row], graphs[[index]]), row=first + row)
            first += len(texts)
        self.finish(table.name)

    @cached_property
    def _carbon(self) -> torch.Tensor:
        """OGB's features of a CH2 outside of rings."""
        propane = next(molecule_blocks([(["CCC"], [1])], "", self.wanted))
        return torch.from_numpy(propane.x[1])

    def _explanation(self, smiles: str, graph: GraphSet) -> Explanation:
        from rdkit.Chem import CanonicalRankAtoms
        from rdkit.rdBase import BlockLogs

        with BlockLogs():  # of atoms with too many bonds, which `finish` warns of
            molecule = parse(smiles)
        assert graph.x is not None
        real = graph.x[:, : len(ATOM_FEATURES)]
        # in an order that does not depend on the SMILES; atoms that are CH2 contribute nothing
        ranks = np.array([*CanonicalRankAtoms(molecule)])
        order = np.argsort(ranks)
        parts = order[(real != self._carbon).any(1).numpy()[order]]
        has_features = self.run.config.model.graph_features > 0
        orders, is_all = _orders(len(parts) + has_features, self.permutations)
        gains, first, last = self._gains(graph, parts, orders)
        # atoms that the molecule's symmetry exchanges have the same value, but not the same error
        ties = np.array([*CanonicalRankAtoms(molecule, breakTies=False)])
        equal = np.column_stack([ties, real.numpy()])[parts]
        classes = np.unique(equal, axis=0, return_inverse=True)[1].reshape(-1)
        same = classes[:, None] == classes
        of_atoms = gains[:, : len(parts)] @ (same / same.sum(0))
        gains = np.concatenate([of_atoms, gains[:, len(parts) :]], 1)
        error = np.zeros(gains.shape[1])
        if not is_all:
            pairs = gains.reshape(-1, 2, gains.shape[1]).mean(1)
            error = pairs.std(0, ddof=1) / np.sqrt(len(pairs))
        atoms, errors = np.zeros(len(real)), np.zeros(len(real))
        mean = gains.mean(0)
        atoms[parts], errors[parts] = mean[: len(parts)], error[: len(parts)]
        of_features = (float(mean[-1]), float(error[-1])) if has_features else (0.0, 0.0)
        symbols = tuple(atom.GetSymbol() for atom in molecule.GetAtoms())
        return Explanation(smiles, self.chosen, last, first, atoms, errors, symbols, *of_features)

    def _gains(
        self, graph: GraphSet, parts: NDArray[np.int64], orders: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], float, float]:
        """What each part adds to the prediction in each order, (orders, parts), and the predictions
        without and with all parts. The last part may be the features of the molecule."""
        count = orders.shape[1]
        rank = np.argsort(orders, 1)
        present = rank[:, None] < np.arange(count + 1)[:, None]  # (orders, steps, parts)
        sets, where = np.unique(present.reshape(-1, count), axis=0, return_inverse=True)
        values = self._values(graph, parts, sets)[where.reshape(len(orders), count + 1)]
        gains = np.empty(orders.shape)
        np.put_along_axis(gains, orders, np.diff(values), 1)
        return gains, float(values[0, 0]), float(values[0, -1])

    def _values(
        self, graph: GraphSet, parts: NDArray[np.int64], sets: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """The prediction with each set of parts, (sets,); `sets` are (sets, parts)."""
        assert graph.x is not None
        found = []
        atoms, width = len(graph.x), len(ATOM_FEATURES)
        for some in np.array_split(sets, -(-len(sets) * atoms // _MOST_ATOMS)):
            copies = graph[torch.zeros(len(some), dtype=torch.int64)]
            x = graph.x.repeat(len(some), 1, 1)
            absent = torch.zeros(len(some), atoms, dtype=torch.bool)
            absent[:, parts] = torch.from_numpy(~some[:, : len(parts)])
            x[..., :width][absent] = self._carbon.to(x.dtype)
            copies = replace(copies, x=x.flatten(0, 1))
            if some.shape[1] > len(parts) and copies.x_graph is not None:
                missing = torch.from_numpy(~some[:, -1:])  # NaN counts as the mean
                copies = replace(
                    copies, x_graph=copies.x_graph.float().masked_fill(missing, torch.nan)
                )
            found.append(self._predicted(copies)[self.chosen])
        return np.concatenate(found)


def _orders(count: int, most: int) -> tuple[NDArray[np.int64], bool]:
    """Orders of so many parts, (orders, parts): all if there are no more than `most`, which the
    second result says; or else random ones, each followed by its reverse."""
    if count < 10 and factorial(count) <= most:
        return np.array([*all_orders(range(count))], np.int64).reshape(-1, count), True
    random = np.random.default_rng(0)
    drawn = [random.permutation(count) for _ in range(most // 2)]
    return np.array([order for one in drawn for order in (one, one[::-1])]), False
