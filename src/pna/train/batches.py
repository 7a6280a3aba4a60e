"""The batches of an epoch: which graphs, in which order, and how a step is run on them.

On a CPU a step is called with every batch. On a GPU it is captured and replayed: batches that
never change are captured one by one, those of a shuffled set in padded shapes, put together from
their indices inside the captured step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.train.capture import Captured, Memory

#: Batches that never change are captured each by itself, up to so many.
_MOST_CAPTURED = 64

Step = Callable[[Batch], None]


def order(num_graphs: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """The graphs of an epoch: a function of seed and epoch alone."""
    if not shuffle:
        return np.arange(num_graphs)
    return np.random.default_rng([seed, epoch]).permutation(num_graphs)


class Batches:
    """A graph set on a device in batches, and the step that is run on each of them.

    Args:
        graphs: the set, on the device.
        step: what is done with a batch.
        batch_size: graphs of a batch, over all processes.
        shuffle: draw another order each epoch.
        seed: of that order.
        capture: what steps are captured in, if they are; only on a GPU.
        pad: whether batches are padded as for capturing, on a CPU too.
        diameters: of every graph, where the model asks for them.
        levels: says of the smallest and the largest size above which others the model does more,
            if that may be done with the first nodes of a padded batch alone.
        rank, processes: which share of every batch is ours.
    """

    def __init__(
        self,
        graphs: GraphSet,
        step: Step,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        capture: Memory | None = None,
        pad: bool = False,
        diameters: Tensor | None = None,
        levels: Callable[[int, int], Sequence[int]] | None = None,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.graphs, self._step, self._batch_size = graphs, step, batch_size
        self._shuffle, self._seed, self._capture = shuffle, seed, capture
        self._rank, self._processes = rank, processes
        self._diameters = None if diameters is None else diameters.to(graphs.device)
        self._fixed = not shuffle and len(graphs) <= batch_size * _MOST_CAPTURED
        self._padded = None
        if pad or (capture and not self._fixed):
            self._padded = PaddedBatches(graphs, self._diameters)
            sizes, edges = graphs.sizes.cpu(), graphs.edge_counts.cpu()
            cuts = levels(int(sizes.min()), int(sizes.max())) if levels and len(sizes) else ()
            self._counts = sizes.numpy(), edges.numpy()
            self._shapes = self._padded.shapes(batch_size, cuts)
            most = max(shape.places for shape in self._shapes)
            self._ids = torch.full((most,), -1, dtype=torch.int64, device=graphs.device)
        self._batches: dict[int, Batch] = {}
        self._captured: dict[int | Shape, Captured] = {}

    def __len__(self) -> int:
        return -(-len(self.graphs) // self._batch_size)

    def forget(self) -> None:
        """Capture anew, since the tensors that steps work on have been replaced."""
        self._captured.clear()

    def run(self, epoch: int) -> None:
        """The step on every batch of an epoch."""
        self.graphs.check_unchanged()
        chosen = order(len(self.graphs), self._shuffle, self._seed, epoch)
        for number in range(len(self)):
            ids = chosen[number * self._batch_size : (number + 1) * self._batch_size]
            self._run(number, self._share(ids))

    def _share(self, ids: np.ndarray) -> np.ndarray:
        """Those of a batch that this process takes."""
        return np.array_split(ids, self._processes)[self._rank]

    def _run(self, number: int, ids: np.ndarray) -> None:
        if self._padded is not None:
            self._run_padded(ids)
        elif self._fixed:
            if number not in self._batches:
                self._batches[number] = self._batch(ids)
            self._call(number, lambda: self._step(self._batches[number]))
        else:
            self._step(self._batch(ids))

    def _batch(self, ids: np.ndarray) -> Batch:
        batch = self.graphs.batch(ids)
        if self._processes > 1:  # all must call the layers that they share sums in as often
            sizes = self.graphs.sizes
            batch = replace(batch, size_range=(int(sizes.min()), int(sizes.max())))
        if self._diameters is None:
            return batch
        diameter = self._diameters[batch.graph_ids]
        seen = diameter if self._processes == 1 else self._diameters  # as often, again
        most = int(seen.max()) if len(seen) else 0
        return replace(batch, diameter=diameter, max_diameter=most)

    def _run_padded(self, ids: np.ndarray) -> None:
        """In the first shape that holds them; in none, as they are."""
        assert self._padded is not None
        padded, (sizes, edges) = self._padded, self._counts
        for shape in self._shapes:
            arranged = shape.arrange(ids, sizes[ids], edges[ids])
            if arranged is None:
                continue
            own = self._ids[: shape.places]
            own.copy_(torch.from_numpy(arranged))
            self._call(shape, partial(self._run_on, padded, own, shape))
            return
        self._step(self._batch(ids))

    def _run_on(self, padded: PaddedBatches, ids: Tensor, shape: Shape) -> None:
        self._step(padded.batch(ids, shape))

    def _call(self, key: int | Shape, work: Callable[[], None]) -> None:
        if self._capture is None:
            work()
            return
        if key not in self._captured:
            self._captured[key] = Captured(work, self._capture)
        self._captured[key]()
