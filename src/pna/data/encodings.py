"""Encodings that graphs have of their own: columns that are computed from the edges alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pna.data.graphset import GraphSet
from pna.data.laplacian import HEAT, VECTOR, with_laplacian
from pna.data.pairs import count_columns
from pna.data.walks import ARRIVAL, RETURN, with_walks


class Encoding(NamedTuple):
    """Columns of nodes or edges whose names are a word and a number from 1."""

    level: str  # "node" or "edge"
    word: str
    added: Callable[[GraphSet, int], GraphSet]  # graphs with so many of them


ENCODINGS = {
    # probabilities that a random walk returns to a node after 1, 2, … steps
    "walks": Encoding("node", RETURN, lambda graphs, size: with_walks(graphs, size)),
    # probabilities that a random walk leads along an edge in 1, 2, … steps
    "edge-walks": Encoding("edge", ARRIVAL, lambda graphs, size: with_walks(graphs, 0, size)),
    "laplacian": Encoding("node", VECTOR, lambda graphs, size: with_laplacian(graphs, size)),
    # the heat kernel between the ends of an edge
    "edge-heat": Encoding("edge", HEAT, lambda graphs, size: with_laplacian(graphs, 0, size)),
}


def encodings_in(names: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """The `ENCODINGS` among columns, by level, and how many columns each has, in their order."""
    found = []
    for name, (level, word, _) in ENCODINGS.items():
        own = [column.startswith(f"{word} ") for column in names.get(level, ())]
        if any(own):
            found.append((own.index(True), name, sum(own)))
    return [(name, size) for _, name, size in sorted(found)]


def completed(graphs: GraphSet, names: Mapping[str, Sequence[str]]) -> GraphSet:
    """Graphs with the encodings that are among these columns, by level; those that they have
    already are not computed again."""
    for name, size in encodings_in(names):
        graphs = encoded(graphs, name, size)
    return graphs


def encoded(graphs: GraphSet, name: str, size: int) -> GraphSet:
    """Graphs with one of the `ENCODINGS`; the same if they have it already, of any size."""
    level, word, added = ENCODINGS[name]
    present = graphs.node_features if level == "node" else graphs.edge_features
    return graphs if count_columns(present, word) else added(graphs, size)
