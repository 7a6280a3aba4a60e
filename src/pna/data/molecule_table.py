"""Molecules of a table as graphs: their SMILES, what was measured of them, who is trained on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.molecules import Molecules, as_graphs, check_chemistry, from_smiles
from pna.data.scaffolds import SPLITS, scaffold_split
from pna.data.table import Table

#: Ways to divide molecules that are divided by no column.
SCAFFOLD, RANDOM = "scaffold", "random"

#: What a column of splits may say.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_NAMED = 10  # lines at most that a warning names
_RESOLUTION = 1e-6  # of numbers as they are kept, in float32, beside their mean

Progress = Callable[[int, int], None]


def from_table(
    table: Table | str | Path,
    targets: Sequence[str] = (),
    *,
    smiles: str = "",
    split: str = "",
    seed: int = 0,
    skip: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> GraphSet:
    """Molecules as graphs with OGB's features, in the order of the table. Needs ``pna[chem]``.

    Args:
        table: CSV, one molecule a row.
        targets: columns of numbers to predict, a cell empty where one is not known. Those that
            are 0 or 1 throughout are trained as such, if no other loss is asked for.
        smiles: the column of SMILES; found by its name if left out.
        split: a column that says train, validation or test; or "scaffold", so that molecules of
            one ring system are not parted, which is usual where there are targets; or "random".
            Both have 80, 10 and 10 of 100.
        seed: of a random split.
        skip: leave out molecules that cannot be read, with a warning, where otherwise the first
            of them is an error.
        workers: processes to read molecules.
        progress: told how many molecules are read, and of how many.
    """
    check_chemistry()
    table = table if isinstance(table, Table) else Table.read(table)
    column = smiles_column(table, smiles)
    measured = {name: _measured(table, name) for name in targets}
    way = split or (SCAFFOLD if targets else "")
    words = _words(table, way)
    found, texts = read_molecules(table, column, skip, workers, progress)
    if words:
        words = [words[place] for place in found.places]
    else:
        words = _divided(texts, way, seed, table.name)
    graphs = as_graphs(
        found,
        y_graph=np.stack([*measured.values()], 1)[found.places] if measured else None,
        graph_targets=list(measured),
        split=words or None,
        splits=list(SPLITS.values()) if words else None,
        metadata={"table": Path(table.name).name},
    )
    return standardised(graphs)


def smiles_column(table: Table, name: str = "") -> str:
    """The column of SMILES: that of this name, or else the one that is called so."""
    if name:
        table.column(name)
        return name
    for likely in (str.__eq__, str.__contains__):
        found = [column for column in table.columns if likely(column.lower(), "smiles")]
        if len(found) == 1:
            return found[0]
    raise ValueError(
        f"got {table.name} with the columns {', '.join(table.columns)}, of which it is not plain "
        "which has the SMILES; name it (--smiles)"
    )


def read_molecules(
    table: Table,
    column: str,
    skip: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Molecules, list[str]]:
    """The molecules of a table and their SMILES; of those left out a warning says where they are
    written."""
    texts = table.column(column)
    found = from_smiles(
        texts, name=table.name, lines=table.lines, skip=skip, workers=workers, progress=progress
    )
    lost = sorted({*range(len(texts))} - {*found.places.tolist()})
    if lost:
        lines = [str(table.lines[place]) for place in lost[:_NAMED]]
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        warnings.warn(
            f"cannot read {len(lost)} of {len(texts)} molecules of {table.name}: line "
            f"{', '.join(lines)}{more}",
            stacklevel=3,
        )
    return found, [texts[place] for place in found.places]


def standardised(graphs: GraphSet) -> GraphSet:
    """With what training is to begin from and to divide by, the mean and deviation of each target
    of graphs over the training set; those that are 0 or 1 are left to a loss for that.

    So `from_table` has them; sets of it that are joined need it again.
    """
    if graphs.y_graph is None:
        return graphs
    training = graphs.split("train") if "train" in graphs.splits else graphs
    seen = (training if len(training) else graphs).y_graph
    assert seen is not None
    losses, means, scales = {}, {}, []
    for name, every, trained in zip(graphs.graph_targets, graphs.y_graph.T, seen.T, strict=True):
        known = trained[~trained.isnan()].double()
        if {*every[~every.isnan()].tolist()} == {0.0, 1.0}:
            losses[name] = "bce"
        elif len(known):
            means[name] = float(known.mean())
        deviation = float(known.std(unbiased=False)) if name in means else 0.0
        scales.append(deviation if deviation > _RESOLUTION * abs(means.get(name, 0.0)) else 1.0)
    said = {"losses": losses, "means": means}
    metadata = graphs.metadata | {name: held for name, held in said.items() if held}
    return replace(graphs, graph_scale=tuple(scales), metadata=metadata)


def _measured(table: Table, name: str) -> NDArray[np.float32]:
    """The numbers of a target, as they are kept."""
    given = table.numbers(name)
    known = given[~np.isnan(given)]
    if len(known) == 0:
        raise ValueError(f"got no number as {name} in {table.name}, expected some")
    largest = np.abs(given) > np.finfo(np.float32).max
    if largest.any():
        place = int(largest.argmax())
        raise ValueError(
            f"got {given[place]:g} as {name} in line {table.lines[place]} of {table.name}, more "
            "than float32 holds; take another unit"
        )
    if 0 < np.ptp(known) <= _RESOLUTION * np.abs(known).max():
        raise ValueError(
            f"got numbers as {name} in {table.name} that differ by {np.ptp(known):g} at most, too "
            f"little for float32 beside {known[0]:g}; take that away from all of them"
        )
    return given.astype(np.float32)


def _words(table: Table, way: str) -> list[str]:
    """Splits as a column says; none where `way` is not one."""
    if way in ("", SCAFFOLD, RANDOM):
        return []
    if way not in table.columns:
        raise ValueError(
            f"got the split {way!r}, expected {SCAFFOLD}, {RANDOM} or a column of {table.name}: "
            f"{', '.join(table.columns)}"
        )
    given = table.column(way)
    for line, word in zip(table.lines, given, strict=True):
        if word.lower() not in _WORDS:
            raise ValueError(
                f"got {word!r} as {way} in line {line} of {table.name}, expected train, "
                "validation or test; correct it"
            )
    return [_WORDS[word.lower()] for word in given]


def _divided(smiles: Sequence[str], way: str, seed: int, name: str) -> list[str]:
    """A split for every molecule, or none where no way to divide them is asked for."""
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
        remedy = f", or take the split {RANDOM}" if way == SCAFFOLD and len(smiles) >= 10 else ""
        raise ValueError(
            f"got {len(smiles)} molecules of {name}, which by {way} leave none for "
            f"{' and '.join(missing)}; name a column that says who is in which split{remedy}"
        )
    return words
