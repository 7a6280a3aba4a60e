"""What a run knows of its training molecules, to tell how far new ones are from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from pna.data import tensor_file
from pna.data.fingerprints import fingerprints, has_fingerprints, nearest_similarities
from pna.data.graphset import GraphSet
from pna.data.molecule_table import TABLE
from pna.stored import check
from pna.train.calibration import is_number
from pna.train.disk_errors import disk_errors
from pna.train.run import Config, Run, unusable
from pna.train.tasks import column_of
from pna.waiting import waiting_for

FILE = "molecules.safetensors"
SIMILARITY, EXTRAPOLATES = "similarity", "extrapolates"
_KIND, _VERSION = "pna.train.molecules", 1
_FACTS = {"atoms": int, "ranges": dict[str, list[float]]}


@dataclass(frozen=True)
class TrainingMolecules:
    """Fingerprints and sizes of the molecules, and the ranges of their targets."""

    fingerprints: np.ndarray  # (different ones, bytes) packed bits, of `pna.data.fingerprints`
    atoms: int  # of the largest molecule
    ranges: dict[str, list[float]]  # smallest and largest number of each target

    @classmethod
    def seen_by(cls, config: Config, data: GraphSet) -> TrainingMolecules | None:
        """Those of a configuration; None if its graphs are not of a table, or without RDKit."""
        is_table = TABLE in data.metadata and has_fingerprints(data)
        if not is_table or find_spec("rdkit") is None:
            return None
        waiting_for("computing fingerprints of the training molecules")
        graphs = data.split(config.data["splits"][0])
        columns = [column_of(graphs, task.level, task.column) for task in config.tasks]
        measured = ~torch.stack(columns, 1).isnan().all(1)
        graphs, ranges = graphs[measured.nonzero()[:, 0]], {}
        for task in config.tasks:
            y = column_of(graphs, task.level, task.column).double()
            known = y[~y.isnan()]
            if is_number(task) and len(known):
                ranges[task.name] = [float(known.min()), float(known.max())]
        different = np.unique(fingerprints(graphs), axis=0)
        return cls(different, int(graphs.sizes.max()), ranges)

    def save(self, run: Run) -> None:
        tensors = {"fingerprints": torch.from_numpy(self.fingerprints)}
        facts = {"atoms": self.atoms, "ranges": self.ranges}
        with disk_errors(run.folder):
            tensor_file.write(
                run.folder / FILE, tensors, facts, kind=_KIND, version=_VERSION, force=True
            )

    @classmethod
    def of(cls, run: Run) -> TrainingMolecules | None:
        """Those that a run has stored; None if it was not trained on a table."""
        path = run.folder / FILE
        if not path.is_file():
            return None
        tensors, facts = tensor_file.read(path, kind=_KIND, version=_VERSION)
        try:
            check(facts, _FACTS, "its header")
            check(tensors, {"fingerprints": torch.Tensor}, "it")
        except ValueError as error:
            raise unusable(path, error) from error
        return cls(tensors["fingerprints"].numpy(), facts["atoms"], facts["ranges"])

    @classmethod
    def of_all(cls, runs: Sequence[Run]) -> TrainingMolecules | None:
        """Those of several runs together; None if one was not trained on a table."""
        every = [found for run in runs if (found := cls.of(run)) is not None]
        if len(every) < len(runs):
            return None
        prints = np.unique(np.concatenate([each.fingerprints for each in every]), axis=0)
        ends = {
            name: [each.ranges[name] for each in every if name in each.ranges]
            for name in every[0].ranges
        }
        ranges = {
            n: [min(low for low, _ in e), max(high for _, high in e)] for n, e in ends.items()
        }
        return cls(prints, max(each.atoms for each in every), ranges)

    def similarity(self, found: np.ndarray) -> np.ndarray:
        """Tanimoto similarity of fingerprints to the nearest training molecule, (found,)."""
        return nearest_similarities(found, self.fingerprints).round(4)

    def extrapolation(self, sizes: np.ndarray, predicted: Mapping[str, np.ndarray]) -> np.ndarray:
        """Why the predictions of molecules are extrapolations, in words; empty if they are not.

        They are if a molecule has more than twice the atoms of the largest training molecule, or if
        a prediction lies outside the range of the training targets by more than half its width.
        """
        reasons: list[list[str]] = [[] for _ in sizes]
        for row in np.flatnonzero(sizes > 2 * self.atoms):
            reasons[row].append(f"{sizes[row]} atoms, at most {self.atoms} in training")
        for name, (low, high) in self.ranges.items():
            half = (high - low) / 2
            values = predicted[name]
            for row in np.flatnonzero((values < low - half) | (values > high + half)):
                given = f"{name} of {values[row]:.4g}"
                reasons[row].append(f"{given}, from {low:.4g} to {high:.4g} in training")
        return np.array(["; ".join(some) for some in reasons], object)
