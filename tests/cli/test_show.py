"""Tables of results show the metrics of every loss, and fit into a terminal."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from pna.cli.show import caption, lines, table
from pna.train.evaluation import Evaluation, TaskScores
from pna.train.metrics import METRICS
from pna.train.tasks import LOSSES


def printed(losses: tuple[str, ...], members: int, **given) -> list[str]:
    """Lines of the table of made-up scores, with a task for each loss."""
    tasks = []
    for loss in losses:
        metrics = {name: [0.98765, 0.96543] * (members // 2) or [0.98765] for name in
                   LOSSES[loss].metrics}  # fmt: skip
        tasks.append(TaskScores(
            f"y{len(tasks)}", "graph", loss, [0.1234] * members, metrics,
            ensemble={name: 0.9912 for name in metrics},
        ))  # fmt: skip
    found = Evaluation("runs/a", "test", 9, [*range(members)], 0, tasks, tasks[0].loss, {}, **given)
    out = StringIO()
    Console(width=200, file=out).print(table(found))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss, members):
    """One member has a loss and up to five metrics. Several have two, of the mean prediction and of
    all members, and R² of the mean prediction."""
    head, *rest = printed((loss,), members)
    assert all(len(line) <= 80 for line in (head, *rest))
    shown = [name for name in LOSSES[loss].metrics if f" {METRICS[name].title} " in f"{head} "]
    if members == 1:
        assert rest[-1].split()[:3] == ["y0", "0.1234", "0.9912"] and len(shown) >= 4
    else:
        assert rest[-1].split()[:5] == ["y0", "0.9912", *["0.9765", "±", "0.013"]]
        numbers = LOSSES[loss].outputs == "number"
        assert shown[2:] == ["r2"] * numbers and head.count("members") == 2
        assert rest[-1].split()[-1] == ("0.9912" if numbers else "0.013")


@pytest.mark.parametrize("members", [1, 4])
def test_several_losses(members):
    head, *rest = printed(("bce", "cross_entropy", "mse"), members)
    assert all(len(line) <= 80 for line in (head, *rest))
    loss = ["loss"] if members == 1 else []
    assert head.split() == ["task", *loss, "ROC", "AUC", "accuracy", "RMSE"]


def test_a_benchmark_has_the_metric_of_the_paper():
    head, *_ = printed(("mse",), 1, benchmark="multitask")
    assert head.split() == ["task", "mse", "log10", "MSE", "MAE"]


def test_an_average_says_what_it_leaves_out():
    task = TaskScores("a", "graph", "bce", [0.1], {"roc_auc": [math.nan]}, rows=9,
                      undefined=("roc_auc", "average_precision", "f1"))  # fmt: skip
    found = Evaluation("runs/a", "test", 9, [0], 0, [task, replace(task, name="b")], [0.1], {})
    assert lines(found) == [
        "a, b: no ROC AUC and average precision and F1, because all known values are equal; "
        "averages leave it out"
    ]
    found = replace(found, tasks=[replace(task, undefined=(), ensemble_threshold=0.25)])
    assert lines(found) == ["a: class 1 is predicted from a probability of 0.25 on"]


def test_captions_say_who_predicts_and_in_which_units():
    numbers = TaskScores("a", "graph", "mse", [0.1, 0.2], {})
    found = Evaluation("runs/a", "test", 9, [0, 3], 1, [numbers], [0.1, 0.2], {})
    assert caption(found) == (
        "test, 9 graphs; mean prediction of 2 members, and the members' mean ± standard "
        "deviation; RMSE and MAE in the units of the targets:"
    )
    alone = replace(found, members=[3], best=0, tasks=[replace(numbers, kind="bce")], split=None)
    assert caption(alone) == "9 graphs; member 3:"
