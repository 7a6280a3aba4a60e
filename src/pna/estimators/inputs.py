"""What users of scikit-learn have of molecules, as graphs, and the split that stops training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.attributes import as_weights
from pna.data.graphset import GraphSet
from pna.data.molecule_features import MoleculeFeatures
from pna.data.molecule_table import smiles_column
from pna.data.molecules import Note, Wanted, as_graphs, molecule_blocks
from pna.data.table import Table

#: The splits of the graphs that an estimator trains on.
SPLITS = ("train", "validation")


def has_graphs(X: Any) -> bool:
    """Whether X is a graph set, or a list of them: scikit-learn indexes a set graph by graph."""
    if isinstance(X, list) and X:
        return all(isinstance(item, GraphSet) for item in X)
    return isinstance(X, GraphSet)


def as_graph_set(X: Any, features: MoleculeFeatures, smiles: str = "") -> GraphSet:
    """Graphs of SMILES, of molecules of RDKit, or of a table with a column of SMILES.

    Graph sets are taken as they are. Nothing is skipped: the error for a text that is no molecule
    has its index.
    """
    if has_graphs(X):
        return X if isinstance(X, GraphSet) else GraphSet.concat(X)
    if hasattr(X, "columns") and hasattr(X, "__getitem__"):
        names = tuple(str(name) for name in X.columns)
        column = smiles_column(Table("the data frame", names, [], []), smiles)
        X = X[X.columns[names.index(column)]]
    if isinstance(X, str | bytes) or not hasattr(X, "__len__"):
        raise TypeError(
            f"got X of type {type(X).__name__}, expected a list of SMILES or of molecules, a table "
            "with a column of SMILES, or a GraphSet; put a single molecule in a list"
        )
    if getattr(X, "ndim", 1) == 2 and X.shape[1] == 1:  # a column that another step selected
        X = np.asarray(X)[:, 0]
    given = list(X)
    if not given:
        raise ValueError("got no molecules (0 samples), expected at least one")
    texts = [_smiles(item, index) for index, item in enumerate(given)]
    found = next(molecule_blocks([(texts, range(len(texts)))], "X", Wanted(features)))
    unreadable = np.flatnonzero(found.notes & Note.UNREADABLE)
    if len(unreadable):
        index = int(unreadable[0])
        more = f", and {len(unreadable) - 1:,} more such texts" if len(unreadable) > 1 else ""
        raise ValueError(
            f"got {texts[index]!r} at index {index} of X{more}, expected the SMILES of a molecule; "
            "correct it, or leave it out"
        )
    return as_graphs(found, features, metadata={})


def _smiles(item: Any, index: int) -> str:
    """The SMILES of an item of X. Molecules are read again, so that they get the same features."""
    if isinstance(item, str):
        return str(item)
    if hasattr(item, "GetNumAtoms"):
        from rdkit import Chem

        return str(Chem.MolToSmiles(item))
    raise TypeError(
        f"got {type(item).__name__} at index {index} of X, expected a SMILES or a molecule of "
        "RDKit; name the column if X is a table (smiles), or leave the row out if it is empty"
    )


def with_weights(graphs: GraphSet, sample_weight: Any) -> GraphSet:
    """Graphs with these weights (graphs,), or without weights, in place of their own."""
    if sample_weight is None:
        return replace(graphs, sample_weight=None)
    weights = as_weights(np.asarray(sample_weight, np.float64), len(graphs))
    assert weights is not None
    if not bool(weights.any()):
        raise ValueError(
            "got a sample_weight of zero for all molecules, expected a number above 0 for some; "
            "leave it out to weigh all alike"
        )
    return replace(graphs, sample_weight=weights)


def labelled(
    graphs: GraphSet, y: NDArray[np.float32], is_validation: NDArray[np.bool_]
) -> GraphSet:
    """Graphs with the targets y (graphs, targets) in place of their own, and with `SPLITS`."""
    names = ("y",) if y.shape[1] == 1 else tuple(f"y{i}" for i in range(y.shape[1]))
    own = {n: v for n, v in graphs.metadata.items() if n not in ("means", "losses", "classes")}
    return replace(
        graphs,
        y_graph=torch.from_numpy(y),
        graph_targets=names,
        graph_scale=(1.0,) * y.shape[1],
        split_of_graph=torch.from_numpy(is_validation.astype(np.uint8)),
        splits=SPLITS,
        y_node=None, node_targets=(), node_scale=(), split_of_node=None,
        label_offsets=None, label_ends=None, label_attr=None, y_edge=None, split_of_edge=None,
        split_of_message=None, edge_targets=(), edge_scale=(),
        metadata=own,
    )  # fmt: skip


def validation_rows(
    groups: NDArray[np.int64],
    known: NDArray[np.bool_],
    fraction: float,
    random: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Which rows are for validation: this fraction of each of the `groups` (rows,), and at least
    one row with each target that is `known` (rows, targets). The only row of a group is not.
    """
    rows = len(groups)
    if rows < 2:
        raise ValueError(
            f"got {rows} sample, expected at least 2: one to train with and one to validate"
        )
    if not 0 < fraction < 1:
        raise ValueError(f"got validation_fraction={fraction}, expected a number between 0 and 1")
    counts = known.sum(0)
    if (counts < 2).any():
        target = int((counts < 2).argmax())
        raise ValueError(
            f"got {counts[target]} known values of target {target}, expected at least 2: one to "
            "train with and one to validate; leave the target out of y"
        )
    order = random.permutation(rows)
    shared = np.bincount(groups)[groups[order]] > 1
    order = order[shared] if shared.any() else order
    order = order[np.argsort(groups[order], kind="stable")]
    count = min(max(round(rows * fraction), 1), len(order) - 1)
    chosen = np.zeros(rows, bool)
    chosen[order[((np.arange(count) + 0.5) * len(order) / count).astype(int)]] = True
    for part in (True, False):
        for target in known.T:
            if not target[chosen == part].any():
                left = known[chosen != part].sum(0)  # a spare row leaves one of each target there
                spare = target & (chosen != part) & ~(known & (left < 2)).any(1)
                chosen[random.choice(np.flatnonzero(spare if spare.any() else target))] = part
    return chosen
