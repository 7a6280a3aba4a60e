"""On a GPU: recorded steps against steps that are called, and against those of a CPU."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from pna.ops.aggregators import NAMES
from pna.ops.streams import SideStream
from pna.train.settings import ModelSettings, Settings
from tests.train.cases import SMALL, assert_near, random_graphs, trainer_of, with_arguments

pytestmark = pytest.mark.gpu

BASE = Settings(members=3, batch_size=5, lr=(1e-2,), epochs=50, patience=None, clip=1.0)

SETTINGS = {
    "batches that never change": replace(BASE, shuffle=False),
    "padded shapes": BASE,
    "an average of weights": replace(BASE, average=0.9),
    "one member": replace(BASE, members=1),
    "plateau": replace(BASE, schedule="plateau", plateau=2, even=True),
}


@pytest.mark.parametrize(
    "model",
    [
        "pna recurrent",
        "gin recurrent",
        "pna stacked",
        "virtual stacked",
        "deep stacked",
        "diffpool stacked",
    ],
)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_recorded_steps_are_the_steps(settings, model):
    graphs = random_graphs(train=23, validation=7)
    model = with_arguments(SMALL[model], dropout=0.2)
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, model, settings, **options)
    called = trainer_of(graphs, model, settings, capture=False, pad=settings.shuffle, **options)
    for epoch in range(6):
        (training, validation), expected = (t.run_epoch(epoch) for t in (captured, called))
        assert torch.equal(training, expected[0])
        if settings.shuffle:  # then the one called is padded: other shapes are added up otherwise
            torch.testing.assert_close(validation, expected[1], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(validation, expected[1])
    assert torch.equal(captured.population.flat, called.population.flat)


@pytest.mark.parametrize("settings", [BASE, replace(BASE, shuffle=False)], ids=["padded", "fixed"])
def test_recorded_steps_with_weights_of_graphs(settings):
    weights = torch.arange(30) % 4 / 3
    graphs = replace(random_graphs(train=23, validation=7), sample_weight=weights)
    model, settings = SMALL["pna stacked"], replace(settings, lr=(0.0,))
    captured = trainer_of(graphs, model, settings, device="cuda", dtype=torch.float32)
    plain = trainer_of(graphs, model, settings)
    for epoch in range(5):  # called twice, recorded, replayed
        for got, expected in zip(captured.run_epoch(epoch), plain.run_epoch(epoch), strict=True):
            assert_near(got.cpu(), expected, 5e-5)
        for name, sums in captured.adam.state_dict().items():
            assert_near(sums.cpu(), plain.adam.state_dict()[name], 5e-4, name)


@pytest.mark.parametrize("aggregator", [*NAMES, "moment_3"])
def test_steps_with_every_aggregator_are_recorded(aggregator):
    """A recorded step cannot copy a number from the CPU."""
    graphs = random_graphs(train=23, validation=7)
    model = with_arguments(SMALL["pna recurrent"], aggregators=("mean", aggregator))
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, model, BASE, **options)
    called = trainer_of(graphs, model, BASE, capture=False, pad=True, **options)
    for epoch in range(4):
        assert torch.equal(captured.run_epoch(epoch)[0], called.run_epoch(epoch)[0])


#: Towers that all see all features, a table of edges, an encoder of it, and a layer that mixes.
BESIDE = ModelSettings(
    "pna", "stacked", 8, arguments={"layers": 3, "towers": 2, "edge_width": 5, "dropout": 0.2}
)


@pytest.mark.parametrize("slow", ["none", "beside", "in line"])
def test_works_beside_wait_for_one_another(slow, monkeypatch):
    """Whatever takes long, what is beside the line of a recorded step or the line itself: nothing
    is read before it is there, nor let go of before it is read."""
    entered, left = SideStream.__enter__, SideStream.__exit__

    def enter(self):
        entered(self)
        if self._stream is not None and slow == "beside":
            torch.cuda._sleep(200_000)

    def leave(self, *problem):
        left(self, *problem)
        if self._stream is not None and slow == "in line":
            torch.cuda._sleep(200_000)

    monkeypatch.setattr(SideStream, "__enter__", enter)
    monkeypatch.setattr(SideStream, "__exit__", leave)
    graphs = random_graphs(train=23, validation=7, edges=1, whole=True)
    settings, options = replace(BASE, members=1), {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, BESIDE, settings, **options)
    called = trainer_of(graphs, BESIDE, settings, capture=False, pad=True, **options)
    for epoch in range(6):
        assert torch.equal(*(t.run_epoch(epoch)[0] for t in (captured, called)))
    assert torch.equal(captured.population.flat, called.population.flat)


@pytest.mark.parametrize("model", ["pna recurrent", "gin recurrent", "pna stacked"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_recorded_steps_are_those_of_a_cpu(settings, model):
    """Losses, gradients (as Adam sums them up) and running statistics, where weights do not move.

    If they did, they would part: Adam makes a whole step of a gradient that is nothing but
    rounding, such as that of a shift which a normalisation takes away again. In float32 on a CPU
    one epoch is 2 % off that of float64 too; without steps it is 2e-5 of the gradients' norm.
    """
    graphs = random_graphs(train=23, validation=7)
    model = with_arguments(SMALL[model], dropout=0.2)
    settings = replace(settings, lr=(0.0,))
    captured = trainer_of(graphs, model, settings, device="cuda", dtype=torch.float32)
    plain = trainer_of(graphs, model, settings)
    for epoch in range(5):  # called twice, recorded, replayed
        for got, expected in zip(captured.run_epoch(epoch), plain.run_epoch(epoch), strict=True):
            assert_near(got.cpu(), expected, 5e-5)
        for name, sums in captured.adam.state_dict().items():
            assert_near(sums.cpu(), plain.adam.state_dict()[name], 5e-4, name)
        for name, buffer in captured.population.buffers.items():
            assert_near(buffer.cpu(), plain.population.buffers[name], 5e-5, name)


@pytest.mark.parametrize("model", ["pna recurrent", "pna stacked"])
def test_a_long_validation_is_recorded_in_padded_shapes(model):
    """Once for each shape: its batches are drawn, and its losses those of any other order."""
    graphs = random_graphs(train=23, validation=97)
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, SMALL[model], BASE, **options)
    called = trainer_of(graphs, SMALL[model], BASE, capture=False, pad=True, **options)
    for epoch in range(5):
        (training, validation), expected = (t.run_epoch(epoch) for t in (captured, called))
        assert torch.equal(training, expected[0])
        torch.testing.assert_close(validation, expected[1], rtol=1e-5, atol=1e-6)
    assert 0 < len(captured.validation._captured) <= 2


def test_one_training_after_another():
    """The second records once the recordings of the first are gone."""
    graphs, model = random_graphs(train=20), SMALL["gin recurrent"]
    found = []
    for _ in range(3):
        trainer = trainer_of(graphs, model, BASE, device="cuda", dtype=torch.float32)
        found.append([trainer.run_epoch(epoch)[1] for epoch in range(4)][-1])
        del trainer
        gc.collect()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_smaller_population_is_recorded_anew():
    graphs = random_graphs(train=20)
    settings = replace(BASE, members=4, patience=3, lr=(0.0, 0.0, 1e-2, 1e-2))
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, SMALL["pna recurrent"], settings, **options)
    called = trainer_of(
        graphs, SMALL["pna recurrent"], settings, capture=False, pad=True, **options
    )
    for epoch in range(8):
        for trainer in (captured, called):
            trainer.compact()
        losses = [trainer.run_epoch(epoch)[1] for trainer in (captured, called)]
        assert torch.equal(losses[0].isnan(), losses[1].isnan())
        assert torch.equal(losses[0].nan_to_num(), losses[1].nan_to_num())
    assert captured.ids.tolist() == [2, 3]
