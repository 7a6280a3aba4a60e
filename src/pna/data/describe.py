"""A summary of a graph set: sizes, degrees, types, targets, and the error of the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.data.graphset import GraphSet

#: Largest number of classes whose graphs or nodes are counted.
_CLASSES = 10


@dataclass(frozen=True)
class Split:
    """A summary of the graphs of a split, or of all graphs of a set without splits."""

    name: str
    graphs: int
    sizes: tuple[int, int]  # fewest and most nodes
    nodes: int
    edges: int
    mean_degree: float
    mean_log_degree: float  # δ
    types: Mapping[str, int]  # graphs of each type


@dataclass(frozen=True)
class Target:
    """A summary of a target over all graphs, unscaled."""

    name: str
    level: str
    least: float
    mean: float
    greatest: float
    missing: int
    scale: float
    #: log10 of the mean squared error of predicting the training mean, of scaled values, by split
    baseline: Mapping[str, float]
    #: the counts of 0, 1, 2, … by split, if the values are few integers, as of classes
    counts: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Description:
    """A summary of the splits and targets of a graph set, and its metadata."""

    splits: tuple[Split, ...]
    targets: tuple[Target, ...]
    metadata: Mapping[str, Any]


def describe(graphs: GraphSet) -> Description:
    """Summarise a graph set, as `pna data describe` prints it."""
    parts = {name: graphs.split(name) for name in graphs.splits} or {"all": graphs}
    parts = {name: part for name, part in parts.items() if len(part) > 0}
    if not parts:
        return Description((), (), graphs.metadata)
    targets = []
    for level, names, scales in (
        ("node", graphs.node_targets, graphs.node_scale),
        ("graph", graphs.graph_targets, graphs.graph_scale),
        ("edge", graphs.edge_targets, graphs.edge_scale),
    ):
        values = {name: getattr(part, f"y_{level}") for name, part in parts.items()}
        for i, name in enumerate(names):
            columns = {split: tensor[:, i].double() for split, tensor in values.items()}
            targets.append(_target(name, level, columns, scales[i]))
    splits = tuple(_split(name, part) for name, part in parts.items())
    return Description(splits, tuple(targets), graphs.metadata)


def _split(name: str, part: GraphSet) -> Split:
    stats = part.degree_stats()
    known = stats.num_nodes > 0
    types: dict[str, int] = {}
    if part.type_of_graph is not None:
        counts = torch.bincount(part.type_of_graph.long(), minlength=len(part.types)).tolist()
        types = {kind: n for kind, n in zip(part.types, counts, strict=True) if n > 0}
    return Split(
        name=name,
        graphs=len(part),
        sizes=(int(part.sizes.min()), int(part.sizes.max())),
        nodes=part.num_nodes,
        edges=part.num_edges,
        mean_degree=stats.mean if known else 0.0,
        mean_log_degree=stats.mean_log if known else 0.0,
        types=types,
    )


def _target(name: str, level: str, columns: dict[str, Tensor], scale: float) -> Target:
    everything = torch.cat(list(columns.values()))
    known = everything[~everything.isnan()].numpy()
    train = columns.get("train", next(iter(columns.values())))
    guess = train.nanmean() / scale
    baseline = {}
    for split, values in columns.items():
        error = float(((values / scale - guess) ** 2).nanmean())
        baseline[split] = float(np.log10(error)) if error > 0 else -np.inf
    least, mean, greatest = (
        (known.min(), known.mean(), known.max()) if len(known) else (np.nan,) * 3
    )
    missing = len(everything) - len(known)
    span = float(least), float(mean), float(greatest)
    return Target(name, level, *span, missing, scale, baseline, _counts(columns))


def _counts(columns: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    known = {split: values[~values.isnan()] for split, values in columns.items()}
    everything = torch.cat(list(known.values()))
    few = everything.numel() > 0 and 0 <= everything.min() and 0 < everything.max() < _CLASSES
    if not few or bool((everything != everything.round()).any()):
        return {}
    classes = int(everything.max()) + 1
    return {
        split: tuple(torch.bincount(values.long(), minlength=classes).tolist())
        for split, values in known.items()
    }
