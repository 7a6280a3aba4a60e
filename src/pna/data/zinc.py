"""ZINC-12k: the benchmark's own molecules, targets and split, as a graph set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pna.data.graphset import GraphSet
from pna.data.sources import SOURCES, Arrays, facts, read, unpack

#: Kinds of atoms and bonds in the benchmark's dictionaries, of which 21 and 3 occur.
ATOMS, BONDS = 28, 4

SPLITS = ("train", "validation", "test")

_ARRAYS = (
    *("num_nodes", "num_bonds", "atom_type", "bond_src", "bond_dst", "bond_type"),
    *("target", "split"),
)


def zinc(where: str | Path | None = None) -> GraphSet:
    """The 12,000 molecules of the benchmark, 10,000 of them to train on.

    Nodes have the type of their atom and edges, both directions of every bond, the type of the
    bond (1 single, 2 double, 3 triple) as whole numbers; graphs have penalised logP to predict.
    `where` is the data folder or its address, PNA_DATA if not given.
    """
    (file,) = SOURCES["zinc"].files
    return from_arrays(unpack(file.name, read(file, where), _ARRAYS))


def from_arrays(arrays: Arrays) -> GraphSet:
    """Molecules laid end to end, every bond once, its ends numbered within the molecule."""
    one, other = arrays["bond_src"], arrays["bond_dst"]
    return GraphSet.from_arrays(
        arrays["num_nodes"],
        np.stack([np.stack([one, other], 1).ravel(), np.stack([other, one], 1).ravel()]),
        2 * arrays["num_bonds"].astype(np.int64),
        x=arrays["atom_type"],
        edge_attr=np.repeat(arrays["bond_type"], 2),
        y_graph=arrays["target"],
        split=arrays["split"],
        splits=SPLITS,
        node_features=["atom type"],
        edge_features=["bond type"],
        graph_targets=["penalised logP"],
        metadata=facts("zinc") | {"node_values": [ATOMS], "edge_values": [BONDS]},
    )
