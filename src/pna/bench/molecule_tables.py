"""Tables of molecules: training and predicting with pna and with chemprop, on the same splits.

Each model is trained by the default command of its package, in a process of its own. The time is
that of the whole command: user and system time, and wall time. A model that was measured is kept
in the work folder, so that an interrupted benchmark goes on with the next one.

pna trains an ensemble in one command. Its members are the single models; one more command trains
the first of them alone, for its time.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pna.bench.measure import Log
from pna.data.molecule_table import from_table, numeric_columns, smiles_column
from pna.data.special_rows import LEFT_OUT, RowRules, SpecialRow
from pna.data.table import Table
from pna.files import make_folder, replacing
from pna.train.metrics import measure

OURS, CHEMPROP = "pna", "chemprop"
_SPLIT = "split"  # column of the table that both read
_WORDS = {"validation": "val"}  # as chemprop spells them
_RATE_ROWS = (2048, 10240)  # of two tables: the difference of their times has no start
RATE = "molecules per second"


@dataclass(frozen=True)
class MoleculeCase:
    """A table whose molecules are split, and the targets to predict."""

    table: Path
    targets: Sequence[str] = ()  # none: all numeric columns
    split: str = "scaffold"
    split_seed: int = 0
    seeds: int = 5

    @property
    def name(self) -> str:
        return self.table.name.partition(".")[0]


@dataclass(frozen=True)
class MoleculeResult:
    """One model, or an ensemble, of one package; or its rate of prediction.

    A rate is that after the start of the command. Its seconds are those of predicting all
    `molecules`, with the start.
    """

    table: str
    split: str
    contender: str
    model: str  # "seed 0", or "ensemble of 5"; "prediction, seed 0"
    metric: str
    value: float | None  # over the test molecules, mean over the targets
    molecules: int
    cpu_seconds: float | None  # user and system time of the training command; None for a member
    seconds: float | None  # wall time of it
    predict_seconds: float | None  # wall time of predicting the test molecules
    predict_cpu_seconds: float | None
    note: str | None = None


@dataclass(frozen=True)
class Commands:
    """The command lines of a package."""

    train: Callable[[_Prepared, Path, int, int], list[str]]  # table, run, seed, members
    #: Table, runs of an ensemble, predictions, and a member of one run or None for the mean.
    predict: Callable[[_Prepared, Sequence[Path], Path, int | None], list[str]]
    column: str  # of a target in the predictions
    ensembles: bool  # whether one command trains an ensemble; otherwise models are averaged


@dataclass(frozen=True)
class _Prepared:
    """A table as both packages get it."""

    path: Path  # smiles, targets, split
    test: Path  # the SMILES of the test molecules
    targets: list[str]
    known: np.ndarray  # (test molecules, targets), NaN if unknown
    molecules: int

    @property
    def is_binary(self) -> bool:
        return bool(np.isin(self.known[~np.isnan(self.known)], (0, 1)).all())


def peers(python: str) -> dict[str, Commands]:
    """The command lines of each package; `python` is that of chemprop's environment."""
    chemprop = [python, "-c", "import chemprop.cli.main; chemprop.cli.main.main()"]

    def train_chemprop(case: _Prepared, run: Path, seed: int, members: int) -> list[str]:
        kind = "classification" if case.is_binary else "regression"
        return [
            *chemprop, "train", "--data-path", str(case.path), "--output-dir", str(run),
            "--smiles-columns", "smiles", "--target-columns", *case.targets,
            "--splits-column", _SPLIT, "--task-type", kind, "--pytorch-seed", str(seed),
            "--ensemble-size", str(members),
        ]  # fmt: skip

    def predict_chemprop(
        case: _Prepared, runs: Sequence[Path], out: Path, member: int | None
    ) -> list[str]:
        return [
            *chemprop, "predict", "--test-path", str(case.test), "--smiles-columns", "smiles",
            "--model-paths", *map(str, runs), "--preds-path", str(out),
        ]  # fmt: skip

    def train_ours(case: _Prepared, run: Path, seed: int, members: int) -> list[str]:
        return [
            sys.executable, "-m", "pna", "train", str(case.path), "--out", str(run),
            "--targets", ",".join(case.targets), "--split", _SPLIT, "--seed", str(seed),
            "--members", str(members),
        ]  # fmt: skip

    def predict_ours(
        case: _Prepared, runs: Sequence[Path], out: Path, member: int | None
    ) -> list[str]:
        of_member = [] if member is None else ["--member", str(member)]
        (run,) = runs
        return [
            sys.executable, "-m", "pna", "predict", str(run), str(case.test), "--out", str(out),
            "--force", *of_member,
        ]  # fmt: skip

    return {
        OURS: Commands(train_ours, predict_ours, "{} predicted", True),
        CHEMPROP: Commands(train_chemprop, predict_chemprop, "{}", False),
    }


def measure_table(
    case: MoleculeCase, work: Path, python: str = "", status: Log = lambda words: None
) -> Iterator[MoleculeResult]:
    """A row for every model and ensemble; chemprop's if `python` names its environment."""
    folder = _folder(case, work)
    prepared = _prepared(case, folder)
    for name, commands in peers(python).items():
        if name == CHEMPROP and not python:
            continue
        words = f"ensemble of {case.seeds}"
        together, found = None, list[_Measured]()
        for seed in range(case.seeds):
            status(f"{folder.name}: {name}, seed {seed}")
            if together is None:
                run = folder / f"{name}-{seed}"
                found.append(_measured(commands, prepared, run, seed, 1))
            else:
                found.append(_of_member(commands, prepared, folder / f"{name}-ensemble", seed))
            yield _row(case, name, f"seed {seed}", prepared, found[-1])
            if commands.ensembles and case.seeds > 1 and together is None:
                status(f"{folder.name}: {name}, {words}")
                run = folder / f"{name}-ensemble"
                together = _measured(commands, prepared, run, 0, case.seeds)
        if case.seeds > 1:
            yield _row(case, name, words, prepared, together or _mean(found))


def measure_rates(
    case: MoleculeCase, work: Path, python: str = "", status: Log = lambda words: None
) -> Iterator[MoleculeResult]:
    """The rates at which models predict that `measure_table` has trained, and that of RDKit's
    parsing alone in one process."""
    folder = _folder(case, work)
    prepared = _prepared(case, folder)
    texts = Table.read(prepared.path).column("smiles")
    for name, commands in peers(python).items():
        if name == CHEMPROP and not python:
            continue
        runs = {"seed 0": [folder / f"{name}-0"]}
        if case.seeds > 1:
            every = [folder / f"{name}-{seed}" for seed in range(case.seeds)]
            together = [folder / f"{name}-ensemble"] if commands.ensembles else every
            runs[f"ensemble of {case.seeds}"] = together
        for model, some in runs.items():
            times = []
            for rows in _RATE_ROWS:
                status(f"{folder.name}: {name}, {model}, prediction of {rows:,} molecules")
                times.append(_time_to_predict(commands, prepared, some, texts, rows))
            (few, more), ((_, short), (cpu, long)) = _RATE_ROWS, times
            rate = (more - few) / max(long - short, 1e-9)
            where = (case.name, f"{case.split} {case.split_seed}", name, f"prediction, {model}")
            yield MoleculeResult(*where, RATE, rate, more, None, None, long, cpu)
    where = (case.name, f"{case.split} {case.split_seed}", "rdkit", "parsing")
    own = texts[: _RATE_ROWS[0]]
    seconds = _time_to_parse(own)
    yield MoleculeResult(*where, RATE, len(own) / seconds, len(own), None, None, seconds, seconds)


def _time_to_predict(
    commands: Commands, prepared: _Prepared, runs: Sequence[Path], texts: Sequence[str], rows: int
) -> tuple[float, float]:
    """Processor time and wall time of predicting so many molecules, those of a table again and
    again; or what an earlier call has measured."""
    run = runs[0] if len(runs) == 1 else runs[0].with_name(f"{len(runs)}-models")
    done = run.with_suffix(f".{rows}.json")
    if not done.exists():
        many = [[texts[i % len(texts)]] for i in range(rows)]
        path, out = run.with_suffix(".many.csv"), run.with_suffix(".rate.csv")
        Table(str(path), ("smiles",), many, [*range(2, rows + 2)]).save(path)
        command = commands.predict(replace(prepared, test=path), runs, out, None)
        with replacing(done) as file:
            json.dump(_timed(command, run.with_suffix(".log")), file)
    cpu, wall = json.loads(done.read_text())
    return cpu, wall


def _time_to_parse(texts: Sequence[str]) -> float:
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        begin = time.perf_counter()
        for text in texts:
            Chem.MolFromSmiles(text)
        return time.perf_counter() - begin


@dataclass(frozen=True)
class _Measured:
    """Predictions for the test molecules, and times, of one command."""

    predicted: np.ndarray  # (test molecules, targets)
    train: tuple[float | None, float | None]  # user and system time, wall time
    predict: tuple[float | None, float | None]


def _folder(case: MoleculeCase, work: Path) -> Path:
    folder = work / f"{case.name}-{case.split}-{case.split_seed}"
    make_folder(folder)
    return folder


def _prepared(case: MoleculeCase, folder: Path) -> _Prepared:
    """Write the table that both packages read: molecules that RDKit reads, with their splits."""
    table = Table.read(case.table).without_empty_rows()
    smiles = smiles_column(table)
    targets = list(case.targets) or numeric_columns(table, smiles)
    special: list[SpecialRow] = []
    rules = RowRules(skip=True, report=lambda _, rows: special.extend(rows))
    graphs = from_table(table, targets, split=case.split, seed=case.split_seed, rows=rules)
    assert graphs.split_of_graph is not None
    words = [graphs.splits[k] for k in graphs.split_of_graph.tolist()]
    lost = {row.line for row in special if row.done == LEFT_OUT}
    kept = [i for i, line in enumerate(table.lines) if line not in lost]
    texts = table.column(smiles)
    cells = {name: table.column(name) for name in targets}
    numbers = np.stack([table.numbers(name) for name in targets], 1)
    own = [[texts[i], *(cells[n][i] for n in targets)] for i in kept]
    spelt = [_WORDS.get(word, word) for word in words]
    rows = [[*row, word] for row, word in zip(own, spelt, strict=True)]
    test = [i for i, word in zip(kept, words, strict=True) if word == "test"]
    path, only = folder / "molecules.csv", folder / "test.csv"
    if not path.exists():
        lines = list(range(2, len(rows) + 2))
        Table(str(path), ("smiles", *targets, _SPLIT), rows, lines).save(path)
        Table(str(only), ("smiles",), [[texts[i]] for i in test], lines[: len(test)]).save(only)
    return _Prepared(path, only, targets, numbers[test], len(rows))


def _measured(commands: Commands, case: _Prepared, run: Path, seed: int, members: int) -> _Measured:
    """Train and predict, or read what an earlier call has measured."""
    done, out = run.with_suffix(".json"), run.with_suffix(".csv")
    if not done.exists():
        shutil.rmtree(run, ignore_errors=True)  # what an interrupted command has left
        for graphs in case.path.parent.glob(f"{case.path.name}-*"):
            graphs.unlink()  # of an earlier command; making them is a part of the time
        trained = _timed(commands.train(case, run, seed, members), run.with_suffix(".log"))
        predicted = _timed(commands.predict(case, [run], out, None), run.with_suffix(".log"))
        with replacing(done) as file:
            json.dump({"train": trained, "predict": predicted}, file)
    times = json.loads(done.read_text())
    return _Measured(_read(commands, case, out), tuple(times["train"]), tuple(times["predict"]))


def _of_member(commands: Commands, case: _Prepared, run: Path, member: int) -> _Measured:
    """The predictions of one member of an ensemble, whose training has no time of its own."""
    out = run.with_suffix(f".member-{member}.csv")
    if not out.exists():
        _timed(commands.predict(case, [run], out, member), run.with_suffix(".log"))
    return _Measured(_read(commands, case, out), (None, None), (None, None))


def _read(commands: Commands, case: _Prepared, predictions: Path) -> np.ndarray:
    table = Table.read(predictions)
    return np.stack([table.numbers(commands.column.format(name)) for name in case.targets], 1)


def _timed(command: list[str], log: Path) -> tuple[float, float]:
    """Run a command: its user and system time, and its wall time. Its output goes to a file."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("a") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begin
    if ended.returncode != 0:
        raise ValueError(
            f"{' '.join(command[:4])} … ended with {ended.returncode}; its output is in {log}"
        )
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def _mean(found: Sequence[_Measured]) -> _Measured:
    """Models of several commands as one ensemble: all times are added up."""
    train, predict = (
        tuple(np.sum([getattr(one, name) for one in found], 0).tolist())
        for name in ("train", "predict")
    )
    return _Measured(np.mean([one.predicted for one in found], 0), train, predict)


def _row(
    case: MoleculeCase, contender: str, model: str, prepared: _Prepared, found: _Measured
) -> MoleculeResult:
    metric = "roc_auc" if prepared.is_binary else "rmse"
    pairs = zip(found.predicted.T, prepared.known.T, strict=True)
    values = [measure(metric, predicted, known) for predicted, known in pairs]
    (cpu, wall), (predict_cpu, predict_wall) = found.train, found.predict
    return MoleculeResult(
        case.name, f"{case.split} {case.split_seed}", contender, model, metric,
        float(np.nanmean(values)), prepared.molecules, cpu, wall, predict_wall, predict_cpu,
    )  # fmt: skip
