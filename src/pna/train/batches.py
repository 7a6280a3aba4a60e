"""The batches of an epoch: which graphs, in which order, and how a step runs on them.

On a CPU the step is called with every batch. On a GPU it is captured and replayed. Batches that
never change are captured one by one. Shuffled batches have padded shapes and are assembled from
indices inside the captured step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.neighbours import NeighbourBatches
from pna.data.order import order as order
from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.train.capture import Captured, Memory
from pna.train.distributed import gathered
from pna.waiting import waiting_for

#: At most this many batches that never change are captured one by one.
_MOST_CAPTURED = 64

Step = Callable[[Batch], None]


@dataclass(frozen=True)
class Execution:
    """How the step runs on batches."""

    capture: Memory | None = None  # pool of captured graphs; None: steps are not captured
    pad: bool = False  # pad batches even if steps are not captured
    levels: Callable[[int, int], Sequence[int]] | None = None  # from the smallest and largest size
    # to the sizes above which a recurrent model takes more steps, if fronts of padded batches help
    rank: int = 0  # of this process, which takes this share of every batch
    processes: int = 1  # number of processes


#: No capture, no padding, one process.
PLAIN = Execution()


class Batches:
    """A graph set on a device in batches, and the step that runs on each of them.

    Args:
        graphs: the graph set, on the device.
        step: function of a batch.
        batch_size: number of graphs per batch, over all processes.
        shuffle: draw a new order every epoch.
        seed: random seed of the order.
        diameters: diameter of every graph, if the model needs it.
        execution: capture, padding and the share of this process.
        like: batches of the same graph with other targets, which share its Adjacency.
    """

    def __init__(
        self,
        graphs: GraphSet,
        step: Step,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        diameters: Tensor | None = None,
        execution: Execution = PLAIN,
        like: Batches | None = None,
    ) -> None:
        self.graphs, self._step, self._batch_size = graphs, step, batch_size
        self._like = like
        self._shuffle, self._seed, self._execution = shuffle, seed, execution
        self._diameters = None if diameters is None else diameters.to(graphs.device)
        # one graph has one order
        self._fixed = (not shuffle or len(graphs) == 1) and (
            len(graphs) <= batch_size * _MOST_CAPTURED
        )
        self._padded = None
        if graphs.label_ends is not None:  # labelled edges cannot be padded
            if not self._fixed:
                self._execution = replace(execution, capture=None)
        elif execution.pad or (execution.capture and not self._fixed):
            self._padded = PaddedBatches(graphs, self._diameters)
            sizes, edges = graphs.sizes.cpu(), graphs.edge_counts.cpu()
            levels, cuts = execution.levels, list[int]()
            if levels is not None and len(sizes):
                cuts = list(levels(int(sizes.min()), int(sizes.max())))
            self._counts = sizes.numpy(), edges.numpy()
            self._shapes = self._padded.shapes(batch_size, cuts)
            most = max(shape.num_ids for shape in self._shapes)
            self._ids = torch.full((most,), -1, dtype=torch.int64, device=graphs.device)
        self._batches: dict[int, Batch] = {}
        self._captured: dict[int | Shape, Captured] = {}

    def __len__(self) -> int:
        return -(-len(self.graphs) // self._batch_size)

    def forget(self) -> None:
        """Capture again, because the tensors of the step were replaced."""
        self._captured.clear()

    def run(self, epoch: int) -> None:
        """Run the step on every batch of an epoch."""
        self.graphs.check_unchanged()
        chosen = order(len(self.graphs), self._shuffle, self._seed, epoch)
        size, execution = self._batch_size, self._execution
        batches = [chosen[number * size : (number + 1) * size] for number in range(len(self))]
        own = [np.array_split(ids, execution.processes)[execution.rank] for ids in batches]
        if self._padded is not None:
            self._run_padded(self._padded, own)
            return
        for number, ids in enumerate(own):
            self._run(number, ids)

    def _run(self, number: int, ids: np.ndarray) -> None:
        if self._fixed:
            if number not in self._batches:
                known = None if self._like is None else self._like._batches.get(number)
                self._batches[number] = self._batch(ids) if known is None else self._as(known)
            self._call(number, lambda: self._step(self._batches[number]))
        else:
            self._step(self._batch(ids))

    def _as(self, known: Batch) -> Batch:
        """A batch of the one graph, with the targets of this set."""
        graphs = self.graphs
        return replace(known, y_node=graphs.y_node, y_graph=graphs.y_graph, y_edge=graphs.y_edge)

    def _batch(self, ids: np.ndarray) -> Batch:
        batch, is_shared = self.graphs.batch(ids), self._execution.processes > 1
        if is_shared:  # all processes must take the same number of steps, for their all-reduces
            sizes = self.graphs.sizes
            batch = replace(batch, size_range=(int(sizes.min()), int(sizes.max())))
        if self._diameters is None:
            return batch
        diameter = self._diameters[batch.graph_ids]
        seen = self._diameters if is_shared else diameter
        most = int(seen.max()) if len(seen) else 0
        return replace(batch, diameter=diameter, max_diameter=most)

    def _run_padded(self, padded: PaddedBatches, batches: Sequence[np.ndarray]) -> None:
        """Run each batch in the first padded shape that has space; without padding if none has.

        The ids of all batches are moved to the device at once. A transfer before every step would
        wait for the end of the step before, and the device for the next one.
        """
        arranged = [self._arranged(ids) for ids in batches]
        rows = np.full((len(batches), len(self._ids)), -1)
        for row, (_, ids) in zip(rows, arranged, strict=True):
            row[: len(ids)] = ids
        moved = torch.from_numpy(rows).to(self._ids.device)
        for row, (shape, ids) in zip(moved, arranged, strict=True):
            if shape is None:
                self._step(self._batch(ids))
                continue
            own = self._ids[: shape.num_ids]
            own.copy_(row[: shape.num_ids])
            self._call(shape, partial(self._run_on, padded, own, shape))

    def _arranged(self, ids: np.ndarray) -> tuple[Shape | None, np.ndarray]:
        """The shape of a batch and its ids as arranged for it; no shape if none has space."""
        sizes, edges = self._counts
        for shape in self._shapes:
            arranged = shape.arrange(ids, sizes[ids], edges[ids])
            if arranged is not None:
                return shape, arranged
        return None, ids

    def _run_on(self, padded: PaddedBatches, ids: Tensor, shape: Shape) -> None:
        self._step(padded.batch(ids, shape))

    def _call(self, key: int | Shape, work: Callable[[], None]) -> None:
        if self._execution.capture is None:
            work()
            return
        if key not in self._captured:
            self._captured[key] = Captured(work, self._execution.capture)
        self._captured[key]()


class OneBatch:
    """A batch that is the same in every epoch, and the step that runs on it, not captured."""

    def __init__(self, batch: Batch, step: Step) -> None:
        self._batch, self._step = batch, step

    def forget(self) -> None:
        """Do nothing: no step is captured."""

    def run(self, epoch: int) -> None:
        """Run the step on the batch."""
        self._step(self._batch)


class SampledBatches:
    """Seed nodes of one graph in batches of sampled neighbours, and the step that runs on each."""

    def __init__(self, batches: NeighbourBatches, step: Step, execution: Execution = PLAIN) -> None:
        self._batches, self._step, self._execution = batches, step, execution

    def __len__(self) -> int:
        return len(self._batches)

    def forget(self) -> None:
        """Do nothing: no step is captured, because all batches have different sizes."""

    def run(self, epoch: int) -> None:
        """Run the step on every batch of an epoch."""
        rank, processes = self._execution.rank, self._execution.processes
        for number, batch in enumerate(self._batches.epoch(epoch, rank, processes)):
            waiting_for(f"epoch {epoch + 1}: sampled neighbours, batch {number + 1} of {len(self)}")
            self._step(batch if processes == 1 else _counted_once(batch, rank))


def _counted_once(batch: Batch, rank: int) -> Batch:
    """The batch with the nodes marked that no process before this one computes in the same layer.

    Batch normalisation counts only these, and so has the statistics of one process.
    """
    counts = [layer.adjacency.num_receivers for layer in batch.layers]
    assert batch.nodes is not None
    nodes = gathered(batch.nodes[: counts[0]])
    of_processes = gathered(torch.tensor(counts, device=batch.device))
    layers = []
    for index, layer in enumerate(batch.layers):
        before = [nodes[r][: of_processes[r][index]] for r in range(rank)]
        own = batch.nodes[: counts[index]]
        counted = ~torch.isin(own, torch.cat(before)) if before else None
        layers.append(replace(layer, counted=counted))
    return replace(batch, layers=tuple(layers))
