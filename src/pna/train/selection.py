"""Metrics that select the best epoch instead of the validation loss; lower is better."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.population.all_reduce import all_reduce_sum
from pna.train.tasks import LOSSES, Task, column_of


class RocAuc:
    """1 minus the area under the ROC curve, mean over the tasks, (members,).

    Outputs of the whole split stay on the device, and areas are computed there by sorting, so that
    a captured epoch does not synchronise. They equal those of `pna.train.metrics.roc_auc`.
    """

    def __init__(
        self, tasks: Sequence[Task], graphs: GraphSet, members: int, dtype: torch.dtype
    ) -> None:
        fits = ("graph", "probability")
        odd = [task.name for task in tasks if (task.level, LOSSES[task.loss].outputs) != fits]
        if odd:
            raise ValueError(
                f"got select='roc_auc' with {', '.join(odd)}, expected targets of graphs trained "
                "with bce; use select='loss'"
            )
        self._columns = [task.first for task in tasks]
        self._classes = []
        for task in tasks:
            y = column_of(graphs, "graph", task.column)
            classes = (y > 0.5).nonzero()[:, 0], (y <= 0.5).nonzero()[:, 0]
            if min(len(graphs_of_class) for graphs_of_class in classes) == 0:
                raise ValueError(
                    f"got a validation split where {task.name!r} has only one class, which has no "
                    "ROC curve; use select='loss'"
                )
            self._classes.append(classes)
        # one more column for padding
        shape = (members, len(tasks), len(graphs) + 1)
        self._outputs = torch.zeros(shape, dtype=dtype, device=graphs.device)

    def columns(self, prediction: Prediction) -> Tensor:
        """The outputs of one model that are kept, (tasks × graphs,)."""
        assert prediction.graph is not None
        return torch.cat([prediction.graph[:, column] for column in self._columns])

    def keep(self, members: Tensor, batch: Batch, columns: Tensor) -> None:
        """Store the `columns` (members, tasks × graphs) of a batch."""
        assert batch.graph_ids is not None
        ids = batch.graph_ids
        if batch.real is not None:
            ids = torch.where(batch.real, ids, self._outputs.shape[2] - 1)
        values = columns.unflatten(1, (len(self._columns), -1)).to(self._outputs.dtype)
        for task in range(len(self._columns)):
            outputs = self._outputs[:, task]
            outputs.index_put_((members[:, None], ids[None]), values[:, task])

    def score(self) -> Tensor:
        """The score of all outputs stored since the last call."""
        outputs = all_reduce_sum(self._outputs)
        areas = []
        for task, (ones, zeros) in enumerate(self._classes):
            above = outputs[:, task, ones].contiguous()
            below = outputs[:, task, zeros].sort(1).values
            ranks = torch.searchsorted(below, above) + torch.searchsorted(below, above, right=True)
            # NaN would have the highest rank
            area = ranks.to(outputs.dtype).mean(1) / (2 * len(zeros))
            known = outputs[:, task, :-1].isfinite().all(1)
            areas.append(torch.where(known, area, torch.nan))
        self._outputs.zero_()
        return 1 - torch.stack(areas).mean(0)


#: What selects the best epoch by `Settings.select`; None for the validation loss.
SELECTORS: dict[str, type[RocAuc] | None] = {"loss": None, "roc_auc": RocAuc}
