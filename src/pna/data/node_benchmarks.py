"""Tolokers and minesweeper: graphs whose nodes have two classes, with ten given splits each."""

from __future__ import annotations

from pathlib import Path

from pna.data.graph_arrays import graph_of_npz
from pna.data.node_graph import NodeGraph
from pna.data.sources import FROM_PUBLIC, PUBLIC, SOURCES, chosen, read


def node_benchmark(name: str, where: str | Path | None = None) -> NodeGraph:
    """The graph of "tolokers" (which workers were banned?) or "minesweeper" (which squares have a
    mine?), of Platonov and others.

    `where` is the data folder or its address, or "public" to download the authors' file. Default:
    PNA_DATA.
    """
    (file,) = SOURCES[name].files
    if chosen(where) == FROM_PUBLIC:
        (file,), where = PUBLIC[name].files, PUBLIC[name].address
    return graph_of_npz(Path(file.name), read(file, where))
