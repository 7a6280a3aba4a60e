"""On a GPU: recorded steps against steps that are called, and both against a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pna.train.settings import Settings
from tests.train.cases import SMALL, random_graphs, trainer_of, with_arguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

BASE = Settings(members=3, batch_size=5, lr=(1e-2,), epochs=50, patience=None, clip=1.0)

SETTINGS = {
    "batches that never change": replace(BASE, shuffle=False),
    "padded shapes": BASE,
    "an average of weights": replace(BASE, average=0.9),
    "one member": replace(BASE, members=1),
    "plateau": replace(BASE, schedule="plateau", plateau=2),
}


@pytest.mark.parametrize("model", ["pna recurrent", "gin recurrent", "pna stacked"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_recorded_steps_are_the_steps(settings, model):
    graphs = random_graphs(train=23, validation=7)
    model = with_arguments(SMALL[model], dropout=0.2)
    options = {"device": "cuda", "dtype": torch.float32}
    captured = trainer_of(graphs, model, settings, **options)
    called = trainer_of(graphs, model, settings, capture=False, pad=settings.shuffle, **options)
    plain = trainer_of(graphs, model, settings, device="cpu", dtype=torch.float64)
    for epoch in range(6):
        losses = [t.run_epoch(epoch)[1] for t in (captured, called, plain)]
        assert torch.equal(losses[0], losses[1])
        if epoch == 0:  # later on, rounding has grown
            torch.testing.assert_close(losses[0].cpu().double(), losses[2], rtol=1e-2, atol=1e-3)
    assert torch.equal(captured.population.flat, called.population.flat)


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
