"""Columns that models add to tables of molecules, in memory or from file to file in blocks of rows:
predictions, and others."""

from __future__ import annotations

import csv
import hashlib
import io
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from pna.data.download import sha256_of
from pna.data.graphset import GraphSet
from pna.data.molecule_features import MoleculeFeatures
from pna.data.molecule_table import smiles_column
from pna.data.molecules import (
    Molecules,
    Note,
    Wanted,
    as_graphs,
    check_chemistry,
    molecule_blocks,
)
from pna.data.progress import Progress
from pna.data.table import Table, opened_table
from pna.ops.aggregators import Aggregator
from pna.train.calibration import TaskCalibration
from pna.train.fold_runs import runs_of
from pna.train.partial_file import PartialFile
from pna.train.prediction import (
    PREDICTED,
    Ensemble,
    calibrations_of_all,
    cells_of,
    columns_of,
)
from pna.train.run import BEST, Run
from pna.train.training_molecules import EXTRAPOLATES, SIMILARITY, TrainingMolecules

BLOCK = 2048  # rows that are predicted at a time
_NAMED = 10  # largest number of lines that a warning names
#: The notes of molecules that a warning names, and its words.
_NOTED = {
    "UNREADABLE": "cannot read",
    "OVERVALENT": "an atom has too many bonds in",
    "NAMED": "took text after a blank as a name in",
}


def predict_table(
    run: Run | str | Path,
    table: Table | str | Path,
    member: int | None = None,
    *,
    smiles: str = "",
    workers: int = 1,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
    interval: float | None = None,
) -> Table:
    """A table of molecules with the predictions of a run, in columns called "… predicted".

    If several members predict, columns "…_std" have the standard deviation over the members. With
    `interval`, columns "…_low" and "…_high" have the ends of intervals. If the run was trained on
    molecules of a table, the column "similarity" has the Tanimoto similarity of the nearest one,
    and "extrapolates" says why a prediction is an extrapolation. If the table has a column of such
    a name, the new one is called "similarity_2"; only "… predicted" is an error then.
    If a molecule cannot be parsed, its cells are empty and a warning names its line. Arguments are
    those of `predict` and of `pna.data.molecule_table.from_table`. Needs ``pna[chem]``.
    """
    predictor = TablePredictor(run, member, smiles, workers, device, aggregators, interval)
    table = table if isinstance(table, Table) else Table.read(table)
    predictor.check(table)
    rows: list[list[str]] = []
    for block in predictor.extended(table, table.blocks(BLOCK)):
        rows += block.rows
        if progress is not None:
            progress(len(rows), len(table.rows))
    predictor.finish(table.name)
    return Table(table.name, block.columns, rows, table.lines)


@dataclass
class TableModels:
    """Adds columns to a table of molecules, in blocks of rows. The models of a run compute them.

    A subclass has `check` and `columns_of`. Arguments are those of `predict_table`.
    """

    given: Run | str | Path
    member: int | None = None
    smiles: str = ""
    workers: int = 1
    device: str | torch.device | None = None
    aggregators: Sequence[type[Aggregator]] = ()
    count: int = field(default=0, init=False)  # rows so far
    #: Number of the molecules so far by `Note`, and the first of their lines.
    noted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NOTED, 0), init=False)
    lines: dict[str, list[int]] = field(
        default_factory=lambda: {name: [] for name in _NOTED}, init=False
    )

    def __post_init__(self) -> None:
        run = self.run
        if any(task.level != "graph" for task in run.config.tasks):
            raise ValueError(
                f"got {run.folder}, whose models predict targets of nodes or edges, expected "
                "targets of molecules; use a graph set instead of the table"
            )
        check_chemistry()
        of_graphs = run.config.model.graph_features > 0
        self.features = MoleculeFeatures.of_run(run.config.data, of_graphs)

    @cached_property
    def run(self) -> Run:
        return self.given if isinstance(self.given, Run) else Run(self.given)

    @cached_property
    def models(self) -> Ensemble:
        return Ensemble.of(self.run, self.member, self.device, aggregators=self.aggregators)

    @property
    def wanted(self) -> Wanted:
        """What is computed of each molecule."""
        return Wanted(self.features)

    def check(self, table: Table) -> str:
        """The column of SMILES of a table; an error if the columns cannot be added to it."""
        raise NotImplementedError

    def columns_of(self, found: Molecules) -> dict[str, np.ndarray]:
        """The columns of some molecules, (molecules,) each."""
        raise NotImplementedError

    def read(self, table: Table, blocks: Iterable[Table]) -> Iterator[tuple[Table, Molecules]]:
        """The blocks of `table`, each with its molecules."""
        column = self.check(table)
        waiting: deque[Table] = deque()  # blocks whose molecules are being read

        def texts() -> Iterator[tuple[list[str], list[int]]]:
            for block in blocks:
                waiting.append(block)
                yield block.column(column), block.lines

        for found in molecule_blocks(texts(), table.name, self.wanted, self.workers):
            block = waiting.popleft()
            self.count += len(block.rows)
            for name in _NOTED:
                rows = np.flatnonzero(found.notes & Note[name])
                self.noted[name] += len(rows)
                more = [block.lines[row] for row in rows[:_NAMED]]
                self.lines[name] = [*self.lines[name], *more][:_NAMED]
            yield block, found

    def extended(self, table: Table, blocks: Iterable[Table]) -> Iterator[Table]:
        """The blocks of `table`, each with the new columns."""
        for block, found in self.read(table, blocks):
            if len(found.sizes):
                columns = self.columns_of(found)
            else:
                columns = dict.fromkeys(self.columns, np.empty(0))
            more = {}
            for column, values in columns.items():
                name = block.free_name(column)
                more[name] = [""] * len(block.rows)
                for row, cell in zip(found.indices.tolist(), cells_of(values), strict=True):
                    more[name][row] = cell
            yield block.with_columns(more)

    def graphs(self, found: Molecules) -> GraphSet:
        return as_graphs(found, self.features, metadata={})

    @cached_property
    def columns(self) -> list[str]:
        """The names of the new columns."""
        methane = next(molecule_blocks([(["C"], [1])], "", self.wanted))
        return [*self.columns_of(methane)]

    def finish(self, name: str) -> None:
        """Warn of the molecules of `_NOTED`; an error if there were none."""
        if self.count == 0:
            raise ValueError(f"got no molecules in {name}, expected at least one")
        for note, words in _NOTED.items():
            lines, count = self.lines[note], self.noted[note]
            if count:
                more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
                warnings.warn(
                    f"{words} {count:,} of {self.count:,} molecules of {name}: line "
                    f"{', '.join(map(str, lines))}{more}",
                    stacklevel=3,
                )

    def origin(self) -> dict[str, Any]:
        """What the columns depend on, besides the table."""
        weights = hashlib.sha256((self.run.folder / BEST).read_bytes()).hexdigest()
        return {"weights": weights, "member": self.member, "smiles": self.smiles}


@dataclass
class TablePredictor(TableModels):
    """Adds columns of predictions to a table of molecules.

    Arguments are those of `predict_table`.
    """

    interval: float | None = None
    similarity: bool = True  # whether there is a column of similarities

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval is not None:  # before the work: it may be refused
            _ = self.calibrations

    @cached_property
    def runs(self) -> list[Run]:
        """The run, or those of all folds of a cross-validation."""
        return runs_of(self.given)

    @cached_property
    def run(self) -> Run:
        return self.runs[0]  # others have the same model, targets and features

    @cached_property
    def ensembles(self) -> list[Ensemble]:
        return [
            Ensemble.of(run, self.member, self.device, aggregators=self.aggregators)
            for run in self.runs
        ]

    @cached_property
    def calibrations(self) -> list[TaskCalibration]:
        return calibrations_of_all(self.runs, self.ensembles, self.interval)

    @cached_property
    def training(self) -> TrainingMolecules | None:
        return TrainingMolecules.of_all(self.runs)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.features, fingerprints=self.similarity and self.training is not None)

    def check(self, table: Table) -> str:
        table.check_without(PREDICTED.format(task.name) for task in self.run.config.tasks)
        return smiles_column(table, self.smiles)

    def columns_of(self, found: Molecules) -> dict[str, np.ndarray]:
        graphs = self.graphs(found)
        outputs = [each.outputs(graphs) for each in self.ensembles]
        columns, spread = columns_of(
            self.runs, self.ensembles, outputs, self.calibrations, self.member
        )
        predicted = {PREDICTED.format(name): values for name, values in columns["graph"].items()}
        more = spread["graph"]
        if self.training is not None:
            if self.similarity:
                more[SIMILARITY] = self.training.similarity(found.fingerprints)
            more[EXTRAPOLATES] = self.training.extrapolation(found.sizes, columns["graph"])
        return predicted | more

    def origin(self) -> dict[str, Any]:
        more = [sha256_of(run.folder / BEST) for run in self.runs[1:]]
        own = {"interval": self.interval, "similarity": self.similarity}
        return super().origin() | own | ({"weights of folds": more} if more else {})


def extend_file(
    models: TableModels,
    table: Path,
    out: Path | IO[str],
    *,
    encoding: str = "",
    resume: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a copy of a table of molecules with more columns, as CSV.

    The table is read, computed and written in blocks of rows, so that its length needs no memory.
    If the process is interrupted, a folder ``OUT.partial`` has the rows so far. With `resume`, they
    are kept, and the first rows of the table must be those that were computed.

    Args:
        models: the run, and which columns it adds.
        table: file of the table.
        out: file to write, or a stream.
        encoding: encoding of the table; by default UTF-8.
        resume: continue an interrupted call.
        progress: called with the number of rows done, and an estimate of the number in all.
    """
    with opened_table(table, encoding) as (empty, tables):
        models.check(empty)
        writer = _Writer(models, out, resume)
        fractions: deque[float] = deque()  # of the file, at the ends of blocks that are computed

        def blocks() -> Iterator[Table]:
            for block, fraction in writer.skip(_sized(tables)):
                fractions.append(fraction)
                yield block

        for block in models.extended(empty, blocks()):
            writer.write(block, len(empty.columns))
            if progress is not None:
                progress(models.count, round(models.count / fractions.popleft()))
    writer.finish(str(table))


def _sized(tables: Iterable[tuple[Table, float]]) -> Iterator[tuple[Table, float]]:
    """Tables of at most `BLOCK` rows, each with the fraction of the file at its end."""
    before = 0.0
    for table, after in tables:
        done = 0
        for block in table.blocks(BLOCK):
            done += len(block.rows)
            yield block, before + (after - before) * done / len(table.rows)
        before = after


class _Writer:
    """Writes blocks to a stream, or to a file that can be resumed."""

    def __init__(self, models: TableModels, out: Path | IO[str], resume: bool) -> None:
        self.models = models
        self.stream = None if isinstance(out, Path) else out
        self.file = None
        self.digest = hashlib.sha256()  # of the cells of the table so far
        self.skipped = 0
        if isinstance(out, Path):
            self.origin = models.origin()
            self.file = PartialFile.resumed(out) if resume else PartialFile(out)
            if resume and self.file.state["origin"] != self.origin:
                raise ValueError(
                    f"got --resume for {self.file.folder}, which was made with other weights, "
                    "another member or other columns (--smiles, --interval), expected the "
                    "same command; leave out --resume, with --force, to start again"
                )

    def skip(self, tables: Iterable[tuple[Table, float]]) -> Iterator[tuple[Table, float]]:
        """The tables without the rows that were written; an error if these are others."""
        state = self.file.state if self.file else {}
        left = state.get("count", 0)
        for table, fraction in tables:
            if left:
                self._digest(table.rows[:left])
                left, table = max(left - len(table.rows), 0), table.part(left)
                if left == 0:
                    self._check(state)
            if table.rows:
                yield table, fraction
        if left:
            self._check({"digest": None})

    def _check(self, state: dict[str, Any]) -> None:
        assert self.file is not None
        if self.digest.hexdigest() != state["digest"]:
            raise ValueError(
                f"got --resume for {self.file.folder}, but the first rows of the table are others "
                "than those that were predicted, expected the same table; leave out --resume, with "
                "--force, to start again"
            )
        models = self.models
        models.count = state["count"]
        models.noted |= state["refused"]
        models.lines |= state["lines"]

    def _digest(self, rows: Iterable[Sequence[str]]) -> None:
        self.digest.update("\x1e".join("\x1f".join(row) for row in rows).encode())
        self.digest.update(b"\x1e")

    def write(self, block: Table, given: int) -> None:
        """Write a block, of which so many columns are those of the table."""
        self._digest(row[:given] for row in block.rows)
        text = io.StringIO(newline="")
        rows = block.rows
        begin = self.models.count == len(rows)
        csv.writer(text).writerows([block.columns, *rows] if begin else rows)
        if self.stream is not None:
            self.stream.write(text.getvalue())
            self.stream.flush()
        if self.file is not None:
            models = self.models
            state = {
                "origin": self.origin,
                "count": models.count,
                "refused": models.noted,
                "lines": models.lines,
                "digest": self.digest.hexdigest(),
            }
            self.file.append(text.getvalue(), state)

    def finish(self, name: str) -> None:
        try:
            self.models.finish(name)
        except ValueError:
            if self.file is not None:
                self.file.discard()
            raise
        if self.file is not None:
            self.file.finish()
