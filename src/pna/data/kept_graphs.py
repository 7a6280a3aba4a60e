"""The graph set of a table of molecules, which is made once and kept beside the table."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from pna.data.attributes import as_json
from pna.data.division import FoldOptions
from pna.data.download import sha256_of
from pna.data.encodings import encoded, encodings_in
from pna.data.folds import with_folds
from pna.data.graphset import GraphSet
from pna.data.molecule_features import USUAL
from pna.data.molecule_table import from_table, numeric_columns
from pna.data.molecules import check_chemistry
from pna.data.node_graph import KIND
from pna.data.progress import Progress
from pna.data.special_rows import RowRules
from pna.data.table import Table
from pna.data.tensor_file import kind_of
from pna.files import check_readable
from pna.machine import version

_MADE_FROM, _WARNINGS = "made_from", "warnings"  # in the metadata of a kept set


@dataclass(frozen=True)
class TableOptions:
    """How the molecules of a table are read; names and meanings are those of `from_table`.

    Without targets, all numeric columns are targets: `numeric_columns`.
    """

    targets: Sequence[str] = ()
    smiles: str = ""
    split: str = ""
    split_seed: int = 0
    encoding: str = ""
    features: Sequence[str] = USUAL
    calibration: float = 0.0
    weight: str = ""
    folds: FoldOptions | None = None


def kept_graphs(
    table: Path,
    options: TableOptions,
    rows: RowRules,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Path, GraphSet | None]:
    """The file of the graph set of a table, beside it. If it is not there, it is made, and the set
    is returned too. What was assumed is warned of again if it is there.

    Its name depends on the content of the table and on the options, so that runs find the graphs
    that they were trained on.
    """
    check_readable(table)
    check_chemistry()
    choices = {"skip": rows.skip, "keep": rows.keep, "take_limits": rows.take_limits}
    given = asdict(options) | choices
    for name in ("calibration", "weight", "folds"):
        if not given[name]:
            del given[name]  # so that files from before there was one are found
    made_from = {"sha256": sha256_of(table), "rdkit": version("rdkit"), **given}
    path = table.with_name(f"{table.name}-{_digest(made_from)}.safetensors")
    kept = None if rows.strict else _kept(path, made_from)
    if kept is not None:
        for words in kept.metadata.get(_WARNINGS, ()):
            warnings.warn(words, stacklevel=2)
        return path, None
    with _warnings() as assumed:
        graphs = _made(table, options, rows, workers, progress)
    if assumed:
        graphs = replace(graphs, metadata=graphs.metadata | {_WARNINGS: assumed})
    return path, _keep(path, made_from, graphs)


def _kept(path: Path, made_from: dict[str, Any]) -> GraphSet | None:
    """The graphs of a kept file; None if it has to be made: it is not there, is damaged, or was
    made from something else."""
    if not path.exists():
        return None
    try:
        graphs = GraphSet.load(path)
    except ValueError as error:
        warnings.warn(f"{error}; it is made again", stacklevel=3)
        return None
    return graphs if graphs.metadata.get(_MADE_FROM) == as_json(made_from) else None


def _keep(path: Path, made_from: dict[str, Any], graphs: GraphSet) -> GraphSet:
    """Write a file of graphs, with what they were made from."""
    graphs = replace(graphs, metadata=graphs.metadata | {_MADE_FROM: as_json(made_from)})
    graphs.save(path, force=True)
    return graphs


def _made(
    table: Path, options: TableOptions, rows: RowRules, workers: int, progress: Progress | None
) -> GraphSet:
    content = Table.read(table, options.encoding).without_empty_rows()
    targets = list(options.targets) or [
        name
        for name in numeric_columns(content, options.smiles, rows.take_limits)
        if name != options.weight
    ]
    if not targets:
        raise ValueError(
            f"got {table} without a column of numbers, expected one to predict; name the columns "
            "to predict (--targets): the error then names a cell that is no number"
            + _repeated(content)
        )
    return from_table(
        content, targets, smiles=options.smiles, split=options.split, seed=options.split_seed,
        calibration=options.calibration, weight=options.weight, folds=options.folds, rows=rows,
        features=options.features, workers=workers, progress=progress,
    )  # fmt: skip


def _repeated(table: Table) -> str:
    """Words for columns with the same name, which are no targets."""
    names = sorted(name for name, count in Counter(table.columns).items() if count > 1)
    return f". Several columns have the same name: rename {', '.join(names)}" if names else ""


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collects the words of our warnings. At the end, also by an error, all warnings are given."""
    words: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield words
    finally:
        for one in caught:
            if one.category is UserWarning:
                words.append(str(one.message))
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def kept_folds(path: Path, options: FoldOptions, seed: int) -> Path:
    """The file of a graph set with random folds, beside that of the set. It is made if it is not
    there."""
    check_readable(path)
    made_from = {"sha256": sha256_of(path), "split_seed": seed, **asdict(options)}
    found = path.with_name(f"{path.stem}-{_digest(made_from)}.safetensors")
    if _kept(found, made_from) is None:
        _keep(found, made_from, with_folds(GraphSet.load(path), options, seed))
    return found


def kept_encodings(
    path: Path, sizes: Mapping[str, int], progress: Progress | None = None
) -> tuple[Path, list[tuple[str, int]]]:
    """The file of a graph set with `ENCODINGS` of these sizes, beside that of the set, and the
    encodings that it has. It is made if it is not there. A set that has them all, of any size, is
    taken as it is."""
    check_readable(path)
    if kind_of(path) == KIND:
        raise ValueError(
            f"got {path}, one graph, with a recipe for many graphs, expected a table of molecules "
            "or a set of graphs; leave the recipe out"
        )
    made_from = {"sha256": sha256_of(path), "encodings": dict(sizes)}
    found = path.with_name(f"{path.stem}-{_digest(made_from)}.safetensors")
    graphs = _kept(found, made_from)
    if graphs is None:
        graphs = before = GraphSet.load(path)
        for done, (name, size) in enumerate(sizes.items(), 1):
            graphs = encoded(graphs, name, size)
            if progress is not None:
                progress(done, len(sizes))
        if graphs is before:
            found = path
        else:
            graphs = _keep(found, made_from, graphs)
    names = {"node": graphs.node_features, "edge": graphs.edge_features}
    return found, encodings_in(names)


def _digest(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
