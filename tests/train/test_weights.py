"""What losses are multiplied by."""

from dataclasses import replace

import pytest
import torch

from pna.train.settings import Settings
from pna.train.tasks import tasks_of
from pna.train.weights import LossWeights, _variance, task_weights
from tests.train.cases import SMALL, random_graphs, trainer_of

LEARNED = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [1.0] * 6], dtype=torch.float64)
LOSSES = torch.tensor([[1e-4, 1.0, 7.0, 1e-2, 1e-2, 1e-2], [0.5] * 6], dtype=torch.float64)


def test_balance_divides_by_the_variance_of_targets():
    graphs = random_graphs(missing=True).split("train")
    tasks = tasks_of(graphs, weights={"b": 3.0})
    weights = task_weights(tasks, Settings(members=2, balance=True), graphs)
    assert weights.shape == (2, 6)
    for place, task in enumerate(tasks):
        y = graphs.y_node if task.level == "node" else graphs.y_graph
        scaled = y[:, task.column] / task.scale
        known = scaled[~scaled.isnan()].double()
        variance = float(((known - known.mean()) ** 2).mean())
        assert _variance(task, graphs) == pytest.approx(variance)
        expected = (3.0 if task.name == "b" else 1.0) / variance
        assert weights[:, place].tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("values", [[0.1] * 4, [0.1, float("nan"), 0.1, 0.1]], ids=str)
def test_balance_leaves_constant_targets_alone(values):
    """0.1, of which a mean is not exactly one of them, is no reason to weigh it by 1e12."""
    graphs = random_graphs(train=4, validation=0)
    y = graphs.y_graph.clone()
    y[:, 1] = torch.tensor(values)
    graphs = replace(graphs, y_graph=y)
    tasks = tasks_of(graphs, weights={"q": 3.0})
    with pytest.warns(UserWarning, match="loss of 'q' as it is: its targets are all the same"):
        weights = task_weights(tasks, Settings(balance=True), graphs)
    assert weights[0, 4] == 3.0 and (weights[0, [0, 1, 2, 3, 5]] > 3).all()


def test_balance_leaves_classes_alone():
    graphs = random_graphs(train=4, validation=0)
    y = torch.arange(4.0).double()[:, None].expand(-1, 3)
    graphs = replace(graphs, y_graph=y)
    tasks = tasks_of(graphs, {"p": "cross_entropy"})
    with pytest.warns(UserWarning, match="loss of 'p' as it is: its targets are classes"):
        weights = task_weights(tasks, Settings(balance=True), graphs)
    assert weights[0, 3] == 1.0 and (weights[0, 4:] != 1).all()


def weights_of(even: bool) -> LossWeights:
    graphs = random_graphs().split("train")
    settings = Settings(members=2, even=even, task_weights=tuple(map(tuple, LEARNED.tolist())))
    return LossWeights(tasks_of(graphs), settings, graphs, torch.device("cpu"), torch.float64)


def test_as_given_they_stay_and_losses_are_judged_by_their_mean():
    weights = weights_of(even=False)
    weights.update(LOSSES)
    assert torch.equal(weights.shares, LEARNED / 6) and weights.state_dict() == {}
    expected = (LOSSES * LEARNED).sum(1) / 6
    torch.testing.assert_close(weights.total(LOSSES), expected)


def test_even_weights_are_inverse_to_losses():
    """As much of every loss is to fall; those that are not learned count for nothing."""
    weights, held = (w := weights_of(even=True)), w.shares
    weights.update(LOSSES)
    assert weights.shares is held  # steps that are recorded read it
    middle = LOSSES[0, [0, 1, 3, 4, 5]].log().mean().exp()
    assert weights.total(LOSSES).tolist() == pytest.approx([float(middle), 0.5])
    weighed = 6 * weights.shares * LOSSES
    assert weighed[0, [3, 4, 5]].tolist() == pytest.approx([float(middle)] * 3)
    assert float(weights.shares[0, 2]) == 0
    torch.testing.assert_close(weights.shares[1], LEARNED[1] / 6)


def test_even_weights_are_not_too_far_apart():
    weights = weights_of(even=True)
    losses = torch.full((2, 6), 1e-9, dtype=torch.float64)
    losses[:, 0] = 1.0
    losses[1, 3] = torch.nan  # of a member that broke
    weights.update(losses)
    assert weights.shares.isfinite().all()
    apart = weights.shares[0, [0, 1, 3, 4, 5]]
    assert float(apart.max() / apart.min()) <= 50**2


def test_even_training_moves_its_weights():
    settings = Settings(members=2, batch_size=4, lr=(1e-2,), epochs=9, patience=None, even=True)
    trainer = trainer_of(random_graphs(), SMALL["gin recurrent"], settings)
    before = trainer.weights.shares.clone()
    training, _ = trainer.run_epoch(0)
    assert not torch.equal(trainer.weights.shares, before)
    after = trainer.weights.shares.clone()
    order = (training * trainer.weights.given).argsort(1, descending=True)
    assert torch.equal(after.argsort(1), order)
    assert torch.equal(trainer.state_dict()["shares"], after)
