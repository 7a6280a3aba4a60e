"""Folds of a graph set: several divisions into graphs to train, validate and test with."""

from __future__ import annotations

from dataclasses import replace

import torch

from pna.data.division import PARTS, FoldOptions, divided
from pna.data.graphset import GraphSet
from pna.data.molecule_table import FOLDS, TABLE, standardised
from pna.stored import check


def with_folds(graphs: GraphSet, options: FoldOptions, seed: int = 0) -> GraphSet:
    """A set of graphs without splits, with random folds. `fold_of` gives the set of each fold.

    `pna.data.molecule_table.from_table` makes folds of molecules by their scaffolds too.
    """
    if graphs.has_splits:
        raise ValueError(
            f"got graphs with splits of their own ({', '.join(graphs.splits)}), expected none, or "
            "a table of molecules; leave --folds and --repeats out, or make the graphs without "
            "splits"
        )
    entry = divided([[index] for index in range(len(graphs))], options, seed, "graph")
    return replace(graphs, metadata=graphs.metadata | {FOLDS: entry})


def labels(graphs: GraphSet) -> list[tuple[int, int]]:
    """The repeat of every fold of a set, and its number in the repeat; none without folds."""
    repeats, parts = _folds(graphs)
    return [divmod(number, len(parts) // repeats) for number in range(len(parts))]


def fold_of(graphs: GraphSet, number: int) -> GraphSet:
    """The graphs with the splits of one fold, and with targets scaled by its training graphs."""
    _, parts = _folds(graphs)
    if number >= len(parts):
        raise ValueError(f"got fold {number}, expected one of 0 to {len(parts) - 1}")
    tags = torch.tensor([int(part) for part in parts[number]], dtype=torch.uint8)
    rest = {name: value for name, value in graphs.metadata.items() if name != FOLDS}
    found = replace(graphs, split_of_graph=tags, splits=PARTS, metadata=rest)
    return standardised(found) if {TABLE, "means"} & {*rest} else found.with_scales()


def _folds(graphs: GraphSet) -> tuple[int, list[str]]:
    """The number of repeats, and the parts of every fold."""
    entry = graphs.metadata.get(FOLDS, {"repeats": 1, "parts": []})
    try:
        check(entry, {"repeats": int, "parts": list[str]}, FOLDS)
        repeats, parts = entry["repeats"], entry["parts"]
        if repeats < 1 or len(parts) % repeats:
            raise ValueError(f"{len(parts)} folds cannot be those of {repeats} repeats")
        if any(len(text) != len(graphs) or {*text} - {*"012"} for text in parts):
            raise ValueError(f"they are not those of these {len(graphs):,} graphs")
    except ValueError as error:
        raise ValueError(
            f"got graphs whose folds cannot be used ({error}); make them again (--folds)"
        ) from error
    return repeats, parts
