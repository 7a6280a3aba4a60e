"""Errors against torch's own losses, and what is missing, padded, scaled or misnamed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.train.metrics import METRICS, measure
from pna.train.prediction import in_units
from pna.train.tasks import (
    LOSSES,
    Loss,
    Task,
    are_complete,
    count_graphs,
    count_targets,
    outputs_of,
    summed_errors,
    summed_losses,
    targets_of,
    tasks_of,
)
from tests.train.cases import random_graphs

TORCH = {
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2


def sums(tasks, prediction, batch):
    targets = targets_of(tasks, batch, torch.float64)
    return summed_errors(tasks, prediction, targets), count_targets(targets, len(tasks))


def cross_entropy(p: list[float], y: float) -> float:
    return math.log(sum(math.exp(score) for score in p)) - p[int(y)]


#: Every loss by its definition, for one prediction and target.
DEFINITIONS: dict[str, Callable[..., float]] = {
    "mse": lambda p, y: (p - y) ** 2,
    "mae": lambda p, y: abs(p - y),
    "mae_in_units": lambda p, y: abs(p - y),
    "huber": lambda p, y: (p - y) ** 2 / 2 if abs(p - y) < 1 else abs(p - y) - 0.5,
    "bce": lambda p, y: -y * math.log(s := 1 / (1 + math.exp(-p))) - (1 - y) * math.log(1 - s),
    "cross_entropy": cross_entropy,
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_what_its_definition_says(name):
    """One without a definition here fails; gradients are compared with finite differences."""
    loss, define = LOSSES[name], DEFINITIONS[name]
    given = numbers(50, 4) if loss.classes else numbers(50)
    target = torch.arange(50).double() % 4 if loss.classes else torch.rand(50, dtype=torch.float64)
    if loss.outputs == "number":
        target = target * 3
    got = loss.error(given, target)
    expected = [define(p, y) for p, y in zip(given.tolist(), target.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda p: loss.error(p, target), given.requires_grad_())


def test_definitions_of_losses_that_are_gone():
    assert DEFINITIONS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_of_every_loss_take_its_predictions(name):
    """As `pna.train.evaluate` calls them: each is a finite number, and best for a perfect model."""
    loss = LOSSES[name]
    target = torch.arange(40).double() % 2
    outputs = numbers(1, 40, 2 if loss.classes else 1)
    perfect = torch.stack([-target, target], -1) * 40 if loss.classes else target[:, None]
    if loss.outputs == "probability":
        perfect = perfect * 80 - 40
    task = Task("y", "graph", 0, name, 0, outputs.shape[-1])
    for metric in loss.metrics:
        found, best = (
            measure(metric, in_units(task, given.numpy())[0], target)
            for given in (outputs, perfect[None])
        )
        assert math.isfinite(found) and METRICS[metric].sign * best < METRICS[metric].sign * found


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"outputs": "logits"}, "outputs 'logits', expected one of number, probability, classes"),
        ({"metrics": ("mape",)}, "unknown metrics mape"),
        ({"metrics": ("mse", "f1")}, "outputs 'number' and the metrics f1, expected metrics"),
        ({"metrics": ()}, "a loss without metrics"),
        ({"error": lambda p, y: (p - y).cosh()}, "not 0 where the target is met.*scaled=False"),
    ],
)
def test_a_loss_that_is_declared_wrongly_is_refused(said, wrong):
    with pytest.raises(ValueError, match=wrong):
        replace(LOSSES["mse"], **said)


@pytest.mark.parametrize("left_out", [f.name for f in fields(Loss)])
def test_a_loss_that_does_not_say_everything_is_refused(left_out):
    said = {f.name: getattr(LOSSES["mse"], f.name) for f in fields(Loss) if f.name != left_out}
    with pytest.raises(TypeError, match=f"missing .* argument: '{left_out}'"):
        Loss(**said)


def test_bce_of_large_logits():
    """Neither overflow nor more than softplus leaves out above 20."""
    given = torch.tensor([-800.0, -30.0, 30.0, 800.0], dtype=torch.float64)
    for y in (torch.zeros(4).double(), torch.ones(4).double()):
        got = LOSSES["bce"].error(given, y)
        expected = F.binary_cross_entropy_with_logits(given, y, reduction="none")
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-8)


def test_cross_entropy_is_that_of_torch():
    logits, target = numbers(20, 1, 4), torch.arange(20)[:, None] % 4
    got = LOSSES["cross_entropy"].error(logits, target.double())
    expected = F.cross_entropy(logits[:, 0], target[:, 0], reduction="none")
    torch.testing.assert_close(got[:, 0], expected)


@pytest.mark.parametrize("loss", TORCH)
@pytest.mark.parametrize("missing", [False, True], ids=["all targets", "some missing"])
def test_sums_are_over_the_targets_there_are(loss, missing):
    """Of nodes and graphs together, each divided by its scale where the loss is scaled."""
    graphs = random_graphs(missing=missing)
    tasks, batch = tasks_of(graphs, loss), graphs.batch()
    prediction = Prediction(numbers(batch.num_nodes, 3), numbers(batch.num_graphs, 3))
    got, counts = sums(tasks, prediction, batch)
    for place, task in enumerate(tasks):
        y, given, scales = (
            (graphs.y_node, prediction.node, graphs.node_scale)
            if place < 3
            else (graphs.y_graph, prediction.graph, graphs.graph_scale)
        )
        scale = scales[place % 3] if loss != "bce" else 1.0
        assert task.scale == scale
        target = y[:, place % 3] / scale
        known = ~target.isnan()
        expected = TORCH[loss](given[known, place % 3], target[known], reduction="sum")
        torch.testing.assert_close(got[place], expected)
        assert int(counts[place]) == int(known.sum())
    assert bool((counts < torch.tensor([batch.num_nodes] * 3 + [15] * 3)).any()) is missing


@pytest.mark.parametrize("loss", [name for name, loss in LOSSES.items() if not loss.classes])
def test_padding_has_neither_errors_nor_gradients(loss):
    """Whatever is predicted there."""
    graphs = random_graphs()
    tasks, batch = tasks_of(graphs, loss), graphs.batch()
    batch = replace(batch, real=torch.arange(len(graphs)) % 3 != 0)
    targets = targets_of(tasks, batch, torch.float32)
    found = []
    for padding in (0.0, torch.inf):
        given = [numbers(batch.num_nodes, 3), numbers(batch.num_graphs, 3)]
        given[1][0] = padding
        leaves = [g.float().requires_grad_() for g in given]
        errors = summed_errors(tasks, Prediction(*leaves), targets)
        found.append([errors, *torch.autograd.grad(errors.sum(), leaves)])
        assert not found[-1][2][0].any()
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_padding_is_not_counted():
    graphs = random_graphs()
    tasks, batch = tasks_of(graphs), graphs.batch()
    real = torch.arange(len(graphs)) % 3 != 0
    prediction = Prediction(numbers(batch.num_nodes, 3), numbers(batch.num_graphs, 3))
    got, counts = sums(tasks, prediction, replace(batch, real=real))
    kept = graphs[real]
    nodes = real[batch.graph_of_node]
    expected, expected_counts = sums(
        tasks, Prediction(prediction.node[nodes], prediction.graph[real]), kept.batch()
    )
    torch.testing.assert_close(got, expected)
    assert torch.equal(counts, expected_counts)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "bce"])
def test_complete_targets_need_not_be_looked_through(loss):
    """Nor does padding then have any, whatever stands there and is predicted."""
    graphs = random_graphs()
    graphs = replace(
        graphs, y_node=torch.rand_like(graphs.y_node), y_graph=torch.rand_like(graphs.y_graph)
    )
    tasks, batch = tasks_of(graphs, loss), graphs.batch()
    assert are_complete(tasks, graphs)
    prediction = Prediction(numbers(batch.num_nodes, 3), numbers(batch.num_graphs, 3))
    for real in (None, torch.arange(len(graphs)) % 3 != 0):
        seen = replace(batch, real=real)
        prediction.graph[0] = 1 if real is None else torch.inf
        one, other = (targets_of(tasks, seen, torch.float64, known) for known in (False, True))
        for function in (
            lambda targets: summed_errors(tasks, prediction, targets),
            lambda targets: count_targets(targets, len(tasks)),
        ):
            torch.testing.assert_close(function(one), function(other))
    missing = graphs.y_graph.clone()
    missing[2, 1] = torch.nan
    assert not are_complete(tasks, replace(graphs, y_graph=missing))


def test_a_model_may_have_a_loss_of_its_own():
    """Summed over real graphs, after the errors, which it leaves alone."""
    graphs = random_graphs()
    tasks, batch = tasks_of(graphs), graphs.batch()
    real = torch.arange(len(graphs)) % 3 != 0
    own = numbers(len(graphs))
    own[0] = torch.inf  # of padding
    plain = Prediction(numbers(batch.num_nodes, 3), numbers(batch.num_graphs, 3))
    padded = replace(batch, real=real)
    targets = targets_of(tasks, padded, torch.float64)
    errors = summed_errors(tasks, plain, targets)
    torch.testing.assert_close(summed_losses(tasks, plain, targets, padded), errors)
    got = summed_losses(tasks, replace(plain, own_loss=own), targets, padded)
    torch.testing.assert_close(got, torch.cat([errors, own[real].sum()[None]]))
    assert int(count_graphs(padded)) == int(real.sum()) and int(count_graphs(batch)) == 15


def test_losses_of_several_kinds_find_their_own_outputs():
    """Classes between others take more outputs; the columns after them move on."""
    graphs = GraphSet.from_arrays(
        [1, 1, 1, 1], np.zeros((2, 0), int), [0] * 4,
        x=np.ones((4, 1)), graph_targets=["size", "kind", "toxic", "colour"],
        y_graph=np.array([[2.0, 1, 1, 0], [4.0, 2, 0, 1], [1.0, np.nan, 1, 1], [3.0, 0, 0, 0]]),
    )  # fmt: skip
    loss = {"kind": "cross_entropy", "toxic": "bce", "colour": "cross_entropy", "size": "mae"}
    tasks = tasks_of(graphs, loss, weights={"toxic": 0.5})
    assert [(t.first, t.end) for t in tasks] == [(0, 1), (1, 4), (4, 5), (5, 7)]
    assert [t.scale for t in tasks] == [4.0, 1.0, 1.0, 1.0]
    assert [t.weight for t in tasks] == [1.0, 1.0, 0.5, 1.0]
    assert (outputs_of(tasks, "node"), outputs_of(tasks, "graph")) == (0, 7)
    given = numbers(4, 7)
    got, counts = sums(tasks, Prediction(None, given), graphs.batch())
    y = graphs.y_graph
    known = torch.tensor([0, 1, 3])
    expected = [
        F.l1_loss(given[:, 0], y[:, 0] / 4, reduction="sum"),
        F.cross_entropy(given[known, 1:4], y[known, 1].long(), reduction="sum"),
        F.binary_cross_entropy_with_logits(given[:, 4], y[:, 2], reduction="sum"),
        F.cross_entropy(given[:, 5:7], y[:, 3].long(), reduction="sum"),
    ]
    torch.testing.assert_close(got, torch.stack(expected).double())
    assert counts.tolist() == [4, 3, 4, 4]


def test_columns_apart_from_each_other():
    """Of the same loss, with one of another between them."""
    graphs = random_graphs()
    tasks = tasks_of(graphs, {"a": "mae", "b": "mse", "c": "mae"}, chosen=["a", "b", "c"])
    batch = graphs.batch()
    given = numbers(batch.num_nodes, 3)
    got, _ = sums(tasks, Prediction(given, None), batch)
    y = graphs.y_node / torch.tensor(graphs.node_scale)
    expected = [(given - y)[:, 0].abs(), (given - y)[:, 1].square(), (given - y)[:, 2].abs()]
    torch.testing.assert_close(got, torch.stack([e.sum() for e in expected]))


def test_chosen_tasks_have_outputs_from_the_first():
    tasks = tasks_of(random_graphs(), chosen=["c", "q"])
    assert [(t.name, t.level, t.column, t.first) for t in tasks] == [
        ("c", "node", 2, 0),
        ("q", "graph", 1, 0),
    ]
    assert tuple(Task(**asdict(task)) for task in tasks) == tasks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "msee"}, "unknown loss 'msee'; did you mean 'mse'?"),
        ({"loss": {"z": "mse"}}, "unknown target 'z'"),
        ({"weights": {"aa": 2.0}}, "unknown target 'aa'; did you mean 'a'?"),
        ({"chosen": ["aa"]}, "Known: a, b, c, p, q, r"),
        ({"chosen": []}, "without targets"),
        ({"weights": {"a": -1.0}}, "got -1.0 as the weight of the target 'a', expected a finite"),
        ({"weights": {"a": float("nan")}}, "got nan as the weight of the target 'a'"),
        ({"weights": {"q": float("inf")}}, "got inf as the weight of the target 'q'"),
        ({"loss": "cross_entropy"}, "got target 'a' for cross_entropy, expected classes 0, 1, 2"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, message):
    with pytest.raises(ValueError) as error:
        tasks_of(random_graphs(), **arguments)
    assert message in str(error.value)


@pytest.mark.parametrize("values", [[-1.0, 2.0], [0.5, 1.0], [np.nan, np.nan]], ids=str)
def test_what_are_no_classes_is_refused(values):
    graphs = GraphSet.from_arrays(
        [1, 1], np.zeros((2, 0), int), [0, 0], y_graph=np.array(values)[:, None]
    )
    with pytest.raises(ValueError, match="expected classes"):
        tasks_of(graphs, "cross_entropy")


@pytest.mark.parametrize("far", [float("inf"), float("nan"), 1e30])
def test_a_prediction_without_a_target_may_be_anything(far):
    """Padding, of which nothing is asked, adds neither to the loss nor to its gradient."""
    graphs = random_graphs()
    tasks = tasks_of(graphs, {"a": "mae"})
    batch = graphs.batch()
    batch = replace(batch, real=torch.arange(batch.num_graphs) > 0)
    node, graph = torch.randn(batch.num_nodes, 3), torch.randn(batch.num_graphs, 3)
    node[: int(batch.sizes[0])] = far
    graph[0] = far
    given = [t.requires_grad_() for t in (node, graph)]
    loss = summed_errors(tasks, Prediction(*given), targets_of(tasks, batch, torch.float32)).sum()
    gradients = torch.autograd.grad(loss, given)
    assert loss.isfinite() and all(g.isfinite().all() for g in gradients)
    assert (gradients[1][0] == 0).all() and (gradients[1][1:] != 0).all()


def test_names_that_would_still_collide_are_refused():
    graphs = random_graphs()
    names = {"node_targets": ("a", "node.a", "c"), "graph_targets": ("a", "q", "r")}
    with pytest.raises(ValueError, match=r"got two targets called 'node\.a'"):
        tasks_of(replace(graphs, **names))
