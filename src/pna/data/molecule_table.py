"""Molecules of a table as graphs: the columns of SMILES, targets and splits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pna.data.division import FoldOptions, divided
from pna.data.graphset import GraphSet
from pna.data.molecule_features import USUAL, MoleculeFeatures
from pna.data.molecules import Wanted, as_graphs, check_chemistry, from_smiles
from pna.data.progress import Progress
from pna.data.scaffolds import SPLITS, scaffold_groups, scaffold_split
from pna.data.special_rows import RowRules, special_rows
from pna.data.table import SPLIT_WORDS, UNKNOWN, Table, looks_numeric

#: Splits that need no column.
SCAFFOLD, RANDOM = "scaffold", "random"
#: The split of molecules that take no part in training, for prediction intervals.
CALIBRATION = "calibration"
#: Where the metadata of graphs have the name of the table.
TABLE = "table"
#: Where the metadata of graphs have their folds: the number of repeats, and a text for each fold
#: with the index of every graph in `pna.data.division.PARTS`.
FOLDS = "folds"

_DEFAULT_RULES = RowRules()
_RESOLUTION = 1e-6  # smallest deviation relative to the mean that float32 represents


def from_table(
    table: Table | str | Path,
    targets: Sequence[str] = (),
    *,
    smiles: str = "",
    split: str = "",
    seed: int = 0,
    calibration: float = 0.0,
    weight: str = "",
    folds: FoldOptions | None = None,
    rows: RowRules = _DEFAULT_RULES,
    features: Sequence[str] = USUAL,
    workers: int = 1,
    progress: Progress | None = None,
) -> GraphSet:
    """Molecules as graphs, in the order of the table. Needs ``pna[chem]``.

    Args:
        table: one molecule a row; or its file: CSV, SDF, Parquet or lines of SMILES.
        targets: columns of numbers to predict; an empty cell is an unknown number. A target with
            only 0 and 1 is trained with a binary loss by default.
        smiles: the column of SMILES; by default found by its name.
        split: a column with train, validation, test or calibration; or "scaffold", which keeps
            molecules of one ring system together, the default if there are targets; or "random".
            The last two have 80, 10 and 10 percent.
        seed: random seed of a random split, of folds, and of calibration molecules.
        calibration: share of the training molecules that are a split "calibration" instead, at
            random. Training never sees them; prediction intervals need them.
        weight: a column of numbers of at least 0, the weights of the molecules in the loss.
        folds: divide the molecules several times instead, by a scaffold or random split.
            `pna.train.cross_validate` trains the result, and `pna.data.folds.fold_of` gives the
            graphs of each fold.
        rows: what is done with rows that RDKit refuses and other special rows. By default, the
            first molecule that cannot be read is an error; all other rows are kept.
        features: names of `pna.data.molecule_features.FEATURES`, some with a size, such as
            ("ogb", "descriptors", "morgan=1024"). Features of whole molecules are `x_graph`. The
            default is that of `pna train`.
        workers: number of processes that read molecules.
        progress: called with the number of molecules read, and the number in all.
    """
    check_chemistry()
    chosen = MoleculeFeatures.parse(features)
    table = (table if isinstance(table, Table) else Table.read(table)).without_empty_rows()
    column = smiles_column(table, smiles)
    measured = {name: _measured(table, name, rows.take_limits) for name in targets}
    _warn_of_targets(table, measured)
    weights = _weights(table, weight, targets) if weight else None
    way = split or (SCAFFOLD if targets else "")
    if folds is not None:
        _check_folds(way, calibration)
    words = _words(table, way)
    texts = table.column(column)
    found = from_smiles(
        texts, name=table.name, lines=table.lines, skip=rows.skip, strict=rows.refuses_overvalent,
        wanted=Wanted(chosen, canonical=True), workers=workers, progress=progress,
    )  # fmt: skip
    special = special_rows(table, texts, found, measured, rows)
    kept = [texts[index] for index in found.indices]
    metadata: dict[str, Any] = {TABLE: Path(table.name).name}
    if folds is not None:
        is_random = way == RANDOM
        groups = [[k] for k in range(len(kept))] if is_random else scaffold_groups(kept)
        metadata[FOLDS] = divided(groups, folds, seed, "molecule" if is_random else SCAFFOLD)
    elif words:
        words = [words[index] for index in found.indices]
    else:
        words = _divided(kept, way, seed, table.name)
    words = _with_calibration(words, calibration, seed, table.name)
    rows.report(table.name, special)
    graphs = as_graphs(
        found,
        chosen,
        y_graph=np.stack([*measured.values()], 1)[found.indices] if measured else None,
        graph_targets=list(measured),
        sample_weight=None if weights is None else weights[found.indices],
        split=words or None,
        splits=_names_of(words) if words else None,
        metadata=metadata,
    )
    return standardised(graphs)


def smiles_column(table: Table, name: str = "") -> str:
    """The column of SMILES: of this name, or else the only one with "smiles" in its name."""
    if name:
        table.column(name)
        return name
    for likely in (str.__eq__, str.__contains__):
        found = [column for column in table.columns if likely(column.lower(), "smiles")]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"got {table.name} with several columns of SMILES, {' and '.join(found)}, expected "
                "one; name it (--smiles)"
            )
    raise ValueError(
        f"got {table.name} with the columns {', '.join(table.columns)}, expected one called "
        "smiles; name the column of SMILES (--smiles)"
    )


def standardised(graphs: GraphSet) -> GraphSet:
    """Set the mean and scale of each graph target to its mean and standard deviation over the
    training set. Targets with only 0 and 1 get a binary loss instead.

    `from_table` does this; sets that are joined afterwards need it again.
    """
    if graphs.y_graph is None:
        return graphs
    training = graphs.split("train") if "train" in graphs.splits else graphs
    seen = (training if len(training) else graphs).y_graph
    assert seen is not None
    losses, means, scales = {}, {}, []
    for name, every, trained in zip(graphs.graph_targets, graphs.y_graph.T, seen.T, strict=True):
        known = trained[~trained.isnan()].double()
        if set() < {*every[~every.isnan()].tolist()} <= {0.0, 1.0}:
            losses[name] = "bce"
        elif len(known):
            means[name] = float(known.mean())
        deviation = float(known.std(unbiased=False)) if name in means else 0.0
        scales.append(deviation if deviation > _RESOLUTION * abs(means.get(name, 0.0)) else 1.0)
    computed = {"losses": losses, "means": means}
    metadata = graphs.metadata | {name: entries for name, entries in computed.items() if entries}
    return replace(graphs, graph_scale=tuple(scales), metadata=metadata)


def numeric_columns(table: Table, smiles: str = "", take_limits: bool = False) -> list[str]:
    """The columns that can be targets: all of numbers, except the column of SMILES and numberings.

    A column has numbers if every cell is a number or unknown, and one is a number. A numbering has
    a whole number in every row, and no number twice. With `take_limits`, "<0.01" is a number.
    A column that is left out although most of its cells look like numbers is warned of.
    """
    column = smiles_column(table, smiles)
    found = []
    for name in table.columns:
        if name == column or table.columns.count(name) > 1:
            continue
        cells = [cell for cell in table.column(name) if cell.lower() not in UNKNOWN]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of decimal commas: the caller reads them again
                table.numbers(name, take_limits)
        except ValueError as error:
            if 2 * sum(map(looks_numeric, cells)) > len(cells):
                warnings.warn(f"{name} is not taken as a target: {error}", stacklevel=2)
            continue
        is_numbering = len({*cells}) == len(table.rows) and all(cell.isdecimal() for cell in cells)
        if cells and not is_numbering:
            found.append(name)
    return found


def _warn_of_targets(table: Table, measured: Mapping[str, NDArray[np.float32]]) -> None:
    """Warn of targets with one number only, and of targets that another one equals."""
    names = [*measured]
    for place, (name, numbers) in enumerate(measured.items()):
        known = numbers[~np.isnan(numbers)]
        if known.min() == known.max():
            what = "one class" if known[0] in (0, 1) else "one number"
            warnings.warn(
                f"got {name} in {table.name} with {what} only, {known[0]:g} in all {len(known):,} "
                "rows that have it: there is nothing to learn; leave it out of the targets",
                stacklevel=3,
            )
        for other in names[place + 1 :]:
            if np.array_equal(numbers, measured[other], equal_nan=True):
                warnings.warn(
                    f"got the targets {name} and {other} in {table.name} with equal numbers in all "
                    "rows; leave one out",
                    stacklevel=3,
                )


def _measured(table: Table, name: str, take_limits: bool) -> NDArray[np.float32]:
    """The numbers of a target as float32."""
    given = table.numbers(name, take_limits)
    known = given[~np.isnan(given)]
    if len(known) == 0:
        raise ValueError(
            f"got no number as {name} in {table.name}, expected some; check the column"
        )
    largest = np.abs(given) > np.finfo(np.float32).max
    if largest.any():
        row = int(largest.argmax())
        raise ValueError(
            f"got {given[row]:g} as {name} in line {table.lines[row]} of {table.name}, more "
            "than float32 holds; use another unit"
        )
    check_resolution(known, f"numbers as {name} in {table.name}")
    return given.astype(np.float32)


def check_resolution(known: NDArray[np.float64], what: str) -> None:
    """Raise if float32 cannot tell these numbers apart."""
    if len(known) and 0 < np.ptp(known) <= _RESOLUTION * np.abs(known).max():
        raise ValueError(
            f"got {what} that differ by at most {np.ptp(known):g}, too little for float32 at "
            f"{known[0]:g}; subtract that from all of them"
        )


def _weights(table: Table, name: str, targets: Sequence[str]) -> NDArray[np.float32]:
    """The weights of a column; raises if one is missing or negative, or if it is a target."""
    if name in targets:
        raise ValueError(
            f"got {name} of {table.name} as a target and as the weight, expected one of both; "
            "leave it out of the targets (--targets), or choose another column (--weight)"
        )
    given = table.numbers(name)
    odd = ~((given >= 0) & (given <= np.finfo(np.float32).max))
    if odd.any():
        row = int(odd.argmax())
        raise ValueError(
            f"got {table.column(name)[row]!r} as {name} in line {table.lines[row]} of "
            f"{table.name}, expected a weight: a finite number of at least 0; correct it, or "
            "write 0 to leave the row out of the loss"
        )
    weights = given.astype(np.float32)
    if not weights.any():
        raise ValueError(
            f"got 0 as {name} in all rows of {table.name}, expected a weight above 0 in some; "
            "correct the column, or choose another (--weight)"
        )
    return weights


def _check_folds(way: str, calibration: float) -> None:
    """Raise unless molecules can be divided into folds in this way."""
    if way not in (SCAFFOLD, RANDOM):
        raise ValueError(
            f"got the split {way!r} with folds or repeats, which divide the molecules themselves, "
            f"expected {SCAFFOLD} or {RANDOM}; change --split, or leave --folds and --repeats out"
        )
    if calibration:
        raise ValueError(
            f"got a share of {calibration:g} for calibration with folds or repeats, expected none; "
            "leave --calibration out, or --folds and --repeats"
        )


def _words(table: Table, way: str) -> list[str]:
    """The splits of a column; none if `way` is not a column."""
    if way in ("", SCAFFOLD, RANDOM):
        return []
    if way not in table.columns:
        raise ValueError(
            f"got the split {way!r}, expected {SCAFFOLD}, {RANDOM} or a column of {table.name}: "
            f"{', '.join(table.columns)}"
        )
    given, known = table.column(way), SPLIT_WORDS | {CALIBRATION: CALIBRATION}
    for line, word in zip(table.lines, given, strict=True):
        if word.lower() not in known:
            raise ValueError(
                f"got {word!r} as {way} in line {line} of {table.name}, expected train, "
                "validation, test or calibration; correct it"
            )
    return [known[word.lower()] for word in given]


def _divided(smiles: Sequence[str], way: str, seed: int, name: str) -> list[str]:
    """A split for every molecule; none if no way to divide them was given."""
    if not way:
        return []
    if way == SCAFFOLD:
        words = [SPLITS[word] for word in scaffold_split(smiles)]
    else:
        tenth = len(smiles) // 10
        parts = np.array(["train"] * (len(smiles) - 2 * tenth) + ["validation", "test"] * tenth)
        words = np.random.default_rng(seed).permutation(parts).tolist()
    missing = [split for split in SPLITS.values() if split not in words]
    if missing:
        remedy = f", or use the split {RANDOM}" if way == SCAFFOLD and len(smiles) >= 10 else ""
        raise ValueError(
            f"got {len(smiles)} molecules of {name}, whose {way} split leaves none for "
            f"{' and '.join(missing)}; name a column with the split of each{remedy}"
        )
    return words


def _with_calibration(words: list[str], share: float, seed: int, name: str) -> list[str]:
    """The splits, of which a share of the training molecules is `CALIBRATION`."""
    if share == 0:
        return words
    training = np.flatnonzero(np.array(words) == "train")
    count = round(share * len(training)) if 0 < share < 1 else 0
    if not 0 < count < len(training):
        raise ValueError(
            f"got a share of {share:g} of {len(training)} training molecules of {name} for "
            "calibration, expected one that takes some of them and leaves others, such as 0.1; "
            "change it (--calibration), or leave it out"
        )
    found = list(words)
    for index in np.random.default_rng([seed, 1]).choice(training, count, replace=False):
        found[index] = CALIBRATION
    return found


def _names_of(words: list[str]) -> list[str]:
    """The names of the splits, also of those that have no molecules."""
    return [*SPLITS.values(), *([CALIBRATION] if CALIBRATION in words else [])]
