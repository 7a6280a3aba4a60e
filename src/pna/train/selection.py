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
    """1 minus the area under the ROC curve, mean over the tasks of each member, (members,).

    Outputs of the whole split stay on the device, and areas are computed there by sorting, so that
    a captured epoch does not synchronise. They equal those of `pna.train.metrics.roc_auc`.
    """

    def __init__(
        self, tasks: Sequence[Task], graphs: GraphSet, is_learned: Tensor, dtype: torch.dtype
    ) -> None:
        levels = {task.level for task in tasks}
        self._level = tasks[0].level
        odd = [task.name for task in tasks if LOSSES[task.loss].outputs != "probability"]
        if odd:
            raise ValueError(
                f"got select='roc_auc' with {', '.join(odd)}, expected targets trained with bce; "
                "use select='loss'"
            )
        if len(levels) > 1 or (self._level != "graph" and len(graphs) > 1):
            raise ValueError(
                "got select='roc_auc' with targets of the nodes of several graphs, or of edges, or "
                "of several levels, expected those of graphs, or of the nodes or the edges of one "
                "graph; use select='loss'"
            )
        self._columns, self._is_learned = [task.first for task in tasks], is_learned
        self._classes = []
        for task in tasks:
            y = column_of(graphs, self._level, task.column)
            classes = (y > 0.5).nonzero()[:, 0], (y <= 0.5).nonzero()[:, 0]
            if min(len(graphs_of_class) for graphs_of_class in classes) == 0:
                raise ValueError(
                    f"got a validation split where {task.name!r} has only one class, which has no "
                    "ROC curve; use select='loss'"
                )
            self._classes.append(classes)
        # one more column for padding
        rows = len(column_of(graphs, self._level, tasks[0].column))
        shape = (*is_learned.shape, rows + 1)
        self._outputs = torch.zeros(shape, dtype=dtype, device=graphs.device)

    def columns(self, prediction: Prediction) -> Tensor:
        """The outputs of one model that are kept, (tasks × rows,)."""
        given = prediction.at(self._level)
        return torch.cat([given[:, column] for column in self._columns])

    def keep(self, members: Tensor, batch: Batch, columns: Tensor) -> None:
        """Store the `columns` (members, tasks × rows) of a batch."""
        assert batch.graph_ids is not None
        ids, real = batch.graph_ids, batch.real
        if self._level != "graph":
            ids = torch.arange(batch.rows(self._level), device=ids.device)
            real = batch.real_nodes if self._level == "node" else None
        if real is not None:
            ids = torch.where(real, ids, self._outputs.shape[2] - 1)
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
        means = torch.where(self._is_learned, torch.stack(areas, 1), 0).sum(1)
        return 1 - means / self._is_learned.sum(1).clamp(min=1)


#: What selects the best epoch by `Settings.select`; None for the validation loss.
SELECTORS: dict[str, type[RocAuc] | None] = {"loss": None, "roc_auc": RocAuc}
