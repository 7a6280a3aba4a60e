"""Fingerprints that models have learned: the vector of a graph from which a model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.molecule_table import smiles_column
from pna.data.molecules import Molecules
from pna.data.progress import Progress
from pna.data.table import Table, is_table
from pna.files import replacing
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.train.prediction import Ensemble
from pna.train.run import Run
from pna.train.table_prediction import BLOCK, TableModels


def fingerprint(
    run: Run | str | Path,
    data: GraphSet | Table | str | Path,
    member: int | None = None,
    *,
    smiles: str = "",
    workers: int = 1,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
) -> NDArray[np.float32]:
    """The vector of each graph from which the models of a run predict.

    It is the input of the head for graphs: the readout and, if the models use features of whole
    graphs, those features as the model encodes them. If several members predict, their vectors are
    side by side: with a width w, member k has the columns from k w to (k + 1) w.

    Args:
        run: a run or its folder. Its models must have targets of graphs.
        data: a table of molecules or its file, which needs ``pna[chem]``; or a graph set or its
            file.
        member: this member only. Default: all that had a finite validation loss.
        smiles: column of a table with the SMILES. Default: found by its name.
        workers: processes that read the molecules of a table.
        progress: called with the number of molecules done and in all.
        device: a device of torch. Default: a GPU if there is one.
        aggregators: the classes of your own aggregators, if the models have any.

    Returns:
        (rows, columns), a row for each row of the table or graph. It is NaN if a molecule cannot be
        parsed; a warning then names its line.
    """
    if not isinstance(data, GraphSet | Table):
        data = Table.read(data) if is_table(Path(data)) else GraphSet.load(data)
    if isinstance(data, GraphSet):
        return _side_by_side(Ensemble.of(run, member, device, aggregators=aggregators), data)
    models = TableFingerprint(run, member, smiles, workers, device, aggregators)
    parts = []
    for block, found in models.read(data, data.blocks(BLOCK)):
        rows = np.full((len(block.rows), len(models.columns)), np.nan, np.float32)
        if len(found.sizes):
            rows[found.indices] = _side_by_side(models.models, models.graphs(found))
        parts.append(rows)
        if progress is not None:
            progress(models.count, len(data.rows))
    models.finish(data.name)
    return np.concatenate(parts)


class TableFingerprint(TableModels):
    """Adds columns fp_0, … to a table of molecules; of several members member0_fp_0, …"""

    def check(self, table: Table) -> str:
        table.check_without(self.columns)
        return smiles_column(table, self.smiles)

    def columns_of(self, found: Molecules) -> dict[str, np.ndarray]:
        vectors, members = _side_by_side(self.models, self.graphs(found)), self.models.members
        width, several = vectors.shape[1] // len(members), len(members) > 1
        begin = [f"member{k}_" if several else "" for k in members]
        names = [f"{word}fp_{i}" for word in begin for i in range(width)]
        return dict(zip(names, vectors.T, strict=True))

    def origin(self) -> dict[str, Any]:
        return super().origin() | {"columns": "fingerprint"}


def _side_by_side(models: Ensemble, graphs: GraphSet) -> NDArray[np.float32]:
    """(graphs, members × features)"""
    if models.config.model.graph_targets == 0:
        raise ValueError(
            "got models of nodes or edges, which have no vector of a graph, expected models with "
            "targets of graphs"
        )
    vectors = models.vectors(graphs)
    return vectors.transpose(1, 0, 2).reshape(vectors.shape[1], -1)


def _save_npz(path: Path, vectors: np.ndarray) -> None:
    with replacing(path, binary=True) as file:
        np.savez(file, vectors=vectors)


def _save_safetensors(path: Path, vectors: np.ndarray) -> None:
    from safetensors.numpy import save

    with replacing(path, binary=True) as file:
        file.write(save({"vectors": np.ascontiguousarray(vectors)}))


#: How an array is written, by the ending of the file's name.
ARRAYS = {".npz": _save_npz, ".safetensors": _save_safetensors}


def save_vectors(path: Path, vectors: np.ndarray) -> None:
    """Write the array "vectors", completely or not at all."""
    lookup("format of vectors", path.suffix.lower(), ARRAYS)(path, vectors)
