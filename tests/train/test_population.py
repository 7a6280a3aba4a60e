"""A population against each of its members trained alone, by torch's own means."""

from __future__ import annotations

import pytest
import torch

from pna.train import population as population_module
from pna.train.models import build, fitted
from pna.train.population import Population, changing_buffers
from pna.train.settings import Settings
from pna.train.tasks import tasks_of
from tests.train.cases import (
    SMALL,
    Alone,
    assert_near,
    random_graphs,
    trainer_of,
    whole_batch,
    with_arguments,
)

OWN = Settings(
    members=4,
    seed=3,
    batch_size=5,
    lr=(1e-2, 3e-3, 1e-3, 2e-2),
    weight_decay=(0.0, 1e-2, 1e-1, 1e-3),
    clip=0.3,
    average=0.9,
    task_weights=tuple(tuple(float(1 + (k + t) % 3) for t in range(6)) for k in range(4)),
)


def models_of(graphs, model, seeds):
    training = graphs.split("train")
    full = fitted(model, training, tasks_of(training))
    return [build(full, seed).double() for seed in seeds]


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("least", [10**9, 0], ids=["in one pass", "apart"])
@pytest.mark.parametrize(
    ("name", "optimiser", "arguments"),
    [
        ("pna recurrent", "adam", {}),
        # batch normalisation of nodes, called again and again
        pytest.param("gin recurrent", "adamw", {}, marks=pytest.mark.slow),
        ("pna stacked", "adamw", {}),  # and of every layer
        ("diffpool stacked", "adam", {}),  # a loss of the model's own
        ("deep stacked", "adamw", {}),  # layers that are left out
        ("pna stacked", "adam", {"norm": "layer", "feed_forward": 2}),
        # stops at some graphs before others, and for a member alone sees that it does
        pytest.param(
            *("gin recurrent", "adam", {"depth": "adaptive", "tolerance": 0.05}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_members_are_what_they_are_alone(name, optimiser, arguments, least, monkeypatch):
    """Over 10 steps, with dropout, and with rates, decay, weights and averages of their own."""
    monkeypatch.setattr(population_module, "_APART", least)
    graphs = random_graphs(sizes=(3, 6))
    model = with_arguments(SMALL[name], dropout=0.2, **arguments)
    settings = Settings(**{**vars(OWN), "optimiser": optimiser})
    trainer = trainer_of(graphs, model, settings)
    some = {k: Alone(graphs, model, settings, k) for k in (1, 3)}
    for epoch in range(5):
        training, validation = trainer.run_epoch(epoch)
        for k, alone in some.items():
            expected = alone.run_epoch(epoch)
            assert_near(training[k], expected[0], 1e-8, f"training loss {k} of epoch {epoch}")
            assert_near(validation[k], expected[1], 1e-8, f"validation loss {k} of {epoch}")
    for k, alone in some.items():
        state = trainer.population.member(k)
        assert state.keys() <= alone.model.state_dict().keys()
        for key, value in state.items():
            # Adam divides by the gradient's size, rounding in small ones and all
            assert_near(value, alone.model.state_dict()[key], 1e-7, f"{key} of {k}")
        held = trainer.average
        own = [held.weights[k], *(buffer[k].flatten() for buffer in held.buffers.values())]
        average = torch.cat([t.flatten() for t in alone.average])
        assert_near(torch.cat(own), average, 1e-7, f"average of {k}")
        assert int(trainer.adam.steps[k]) == alone.steps == 10


@pytest.mark.parametrize("least", [0, 10**9], ids=["apart", "in one pass"])
@pytest.mark.parametrize("name", SMALL)
def test_predictions_are_those_of_each_model(name, least, monkeypatch):
    monkeypatch.setattr(population_module, "_APART", least)
    graphs = random_graphs()
    models = models_of(graphs, SMALL[name], range(3))
    population = Population(models)
    population.train(False)
    batch = whole_batch(graphs.split("train"))
    for level in ("node", "graph"):
        got = population.apply(batch, lambda p, level=level: getattr(p, level))
        for k, model in enumerate(models_of(graphs, SMALL[name], range(3))):
            assert_near(got[k], getattr(model.eval()(batch), level), 1e-12, f"{level} {k}")


def test_a_population_of_one_is_its_model():
    graphs = random_graphs()
    (model,) = models_of(graphs, SMALL["gin recurrent"], [5])
    population = Population(models_of(graphs, SMALL["gin recurrent"], [5]))
    batch = whole_batch(graphs.split("train"))
    got = population.apply(batch, lambda p: p.graph)
    assert_near(got[0], model(batch).graph, 1e-12)
    for name in changing_buffers(model):
        assert_near(population.buffers[name][0], dict(model.named_buffers())[name], 1e-12, name)


def test_parameters_lie_in_rows_in_the_order_of_the_model():
    graphs = random_graphs()
    models = models_of(graphs, SMALL["pna recurrent"], range(3))
    population = Population(models)
    held = population.parameters_from(population.flat)
    assert list(held) == [name for name, _ in models[0].named_parameters()]
    for name, tensor in held.items():
        for k, model in enumerate(models):
            assert torch.equal(tensor[k], model.get_parameter(name)), name


def test_parameters_from_rows_of_more_members_than_are_left():
    """What is kept of all members is still read once some have left, as a checkpoint does."""
    graphs = random_graphs()
    models = models_of(graphs, SMALL["pna recurrent"], range(4))
    population = Population(models)
    every = population.flat.detach().clone()
    expected = {n: t.clone() for n, t in population.parameters_from(every).items()}
    for left in ([0, 3], [1]):  # the second of the two that are left: member 3
        population.keep(torch.tensor(left))
        assert len(population) == len(left)
        for name, tensor in population.parameters_from(every).items():
            assert torch.equal(tensor, expected[name]), name
    for name, tensor in population.member(0).items():
        if name in expected:
            assert torch.equal(tensor, expected[name][3]), name


def test_gradients_go_to_the_rows_of_their_members():
    """The gradient of member k's loss is that of its model, and 0 for all others."""
    graphs = random_graphs()
    model = SMALL["pna stacked"]
    population = Population(models_of(graphs, model, range(3)))
    batch = whole_batch(graphs.split("train"))
    losses = population.apply(batch, lambda p: p.graph.square().sum() + p.node.square().sum())
    (grad,) = torch.autograd.grad(losses[1], population.flat)
    assert not grad[[0, 2]].any()
    alone = models_of(graphs, model, range(3))[1]
    prediction = alone(batch)
    loss = prediction.graph.square().sum() + prediction.node.square().sum()
    expected = torch.autograd.grad(loss, list(alone.parameters()), materialize_grads=True)
    assert_near(grad[1], torch.cat([g.flatten() for g in expected]), 1e-10)


def test_no_models_are_refused():
    with pytest.raises(ValueError, match="expected at least one member"):
        Population([])
