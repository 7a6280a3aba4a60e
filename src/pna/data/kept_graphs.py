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

from pna.data.division import FoldOptions
from pna.data.download import sha256_of
from pna.data.encodings import encoded
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
    if path.exists() and not rows.strict:
        for words in GraphSet.load(path).metadata.get(_WARNINGS, ()):
            warnings.warn(words, stacklevel=2)
        return path, None
    with _warnings() as assumed:
        graphs = _made(table, options, rows, workers, progress)
    metadata = graphs.metadata | {_MADE_FROM: made_from} | ({_WARNINGS: assumed} if assumed else {})
    graphs = replace(graphs, metadata=metadata)
    graphs.save(path, force=True)
    return path, graphs


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
    if not found.exists():
        with_folds(GraphSet.load(path), options, seed).save(found, force=True)
    return found


def kept_encodings(path: Path, sizes: Mapping[str, int], progress: Progress | None = None) -> Path:
    """The file of a graph set with `ENCODINGS` of these sizes, beside that of the set; the set
    itself if it has them all. It is made if it is not there."""
    check_readable(path)
    if kind_of(path) == KIND:
        raise ValueError(
            f"got {path}, one graph, with a recipe for many graphs, expected a table of molecules "
            "or a set of graphs; leave the recipe out"
        )
    made_from = {"sha256": sha256_of(path), "encodings": dict(sizes)}
    found = path.with_name(f"{path.stem}-{_digest(made_from)}.safetensors")
    if found.exists():
        return found
    graphs = before = GraphSet.load(path)
    for done, (name, size) in enumerate(sizes.items()):
        if progress is not None:
            progress(done, len(sizes))
        graphs = encoded(graphs, name, size)
    if graphs is before:
        return path
    graphs.save(found, force=True)
    return found


def _digest(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
