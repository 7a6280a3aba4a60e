"""Data with several splits: which of them a run trains with, or all of them for one graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pna.data.encoding import ENCODING
from pna.data.folds import fold_of
from pna.data.graphset import GraphSet
from pna.data.molecule_table import FOLDS
from pna.data.node_graph import KIND, SPLITS_OF_TARGETS, NodeGraph
from pna.data.tensor_file import kind_of
from pna.train.run import Config
from pna.train.settings import ALL, Settings
from pna.train.tasks import Task


def graphs_of(
    path: str | Path, mask_column: str = "0", levels: Collection[str] | None = None
) -> GraphSet:
    """The graphs of a file: a graph set, with one of its folds if it has any, or one graph with one
    of its splits, or all of them.

    `mask_column` is that of `Settings`, and `levels` is as for `NodeGraph.graph_set`.
    """
    if kind_of(Path(path)) == KIND:
        return _one_graph(NodeGraph.load(path), path, mask_column, levels)
    graphs = GraphSet.load(path)
    if FOLDS in graphs.metadata and mask_column != ALL:
        return fold_of(graphs, int(mask_column))
    if mask_column != "0":
        raise ValueError(
            f"got mask_column={mask_column!r} for {path}, a set of graphs with one split, expected "
            "one graph with several splits of its nodes or edges; leave it out"
        )
    return graphs


def _one_graph(
    graph: NodeGraph, path: str | Path, mask_column: str, levels: Collection[str] | None
) -> GraphSet:
    try:
        return graph.graph_set(None if mask_column == ALL else int(mask_column), levels)
    except IndexError as error:  # there is no such split
        raise ValueError(f"{error}, in {path}; choose another (--mask-column)") from error


def graph_for(
    config: Config, path: str | Path, levels: Collection[str] | None = None
) -> tuple[NodeGraph, GraphSet]:
    """One graph in a file, and as a set with the features that the model of a run expects."""
    column = config.settings.mask_column
    graph, encoding = NodeGraph.load(path), dict(config.data.get(ENCODING, {}))
    if not config.model.edge_features:
        encoding.pop("edge", None)
    try:
        graph = graph.encoded_as(encoding, 0 if column == ALL else int(column))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return graph, _one_graph(graph, path, column, levels)


def with_a_split_each(settings: Settings, graphs: GraphSet, tasks: Sequence[Task]) -> Settings:
    """With all splits: settings by which member k learns the targets of split k alone."""
    if settings.mask_column != ALL or settings.task_weights:
        return settings
    counts: dict[str, int] = graphs.metadata[SPLITS_OF_TARGETS]
    most = max(counts.values())
    if settings.members < most:
        raise ValueError(
            f"got {settings.members} members for {most} splits, expected at least one member for "
            f"each split; set members={most} (--members {most})"
        )
    rows = []
    for k in range(settings.members):
        own = [(task.column - k) % counts[task.level] == 0 for task in tasks]
        # the loss of a member is a mean over all tasks, of which it learns some
        rows.append(tuple(task.weight * len(own) / max(sum(own), 1) * is_own
                          for task, is_own in zip(tasks, own, strict=True)))  # fmt: skip
    return replace(settings, task_weights=tuple(rows))


def learners(settings: Settings, members: Sequence[int], task: int) -> np.ndarray:
    """Which of these members learn a task, (members,) bool; all of them if none does."""
    if not settings.task_weights:
        return np.ones(len(members), bool)
    found = np.array([settings.task_weights[k][task] > 0 for k in members])
    return found if found.any() else ~found
