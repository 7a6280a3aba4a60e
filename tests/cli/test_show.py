"""Tables of results show the metrics of every loss, and fit into a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from pna.cli.show import table
from pna.train.evaluation import Evaluation, TaskScores
from pna.train.metrics import METRICS
from pna.train.tasks import LOSSES


def printed(losses: tuple[str, ...], members: int) -> list[str]:
    """Lines of the table of made-up scores, with a task for each loss."""
    tasks = []
    for loss in losses:
        names = LOSSES[loss].metrics + ("mae_in_units",) * LOSSES[loss].scaled
        metrics = {name: [0.98765] * members for name in names}
        tasks.append(TaskScores(f"y{len(tasks)}", "graph", loss, [0.1234] * members, metrics))
    who = list(range(members))
    found = Evaluation("runs/a", "test", 9, who, 0, tasks, tasks[0].loss, {})
    out = StringIO()
    Console(width=200, file=out).print(table(found))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss, members):
    """One member has all metrics of its loss; errors are shown as log10 MSE, and MAE in units."""
    head, *rest = printed((loss,), members)
    assert all(len(line) <= 80 for line in (head, *rest)) and "0.98" in rest[-1]
    if members == 1:
        titles = {METRICS[name].title for name in LOSSES[loss].metrics} - {"MSE", "MAE"}
        assert all(f"  {title}" in head for title in titles)


def test_several_losses():
    head, *rest = printed(("bce", "cross_entropy", "mse"), 1)
    assert all(len(line) <= 80 for line in (head, *rest))
    assert head.split() == ["task", "loss", "log10", "MSE", "MAE", "ROC", "AUC", "accuracy"]
