"""The average of weights over steps; by a loop of its own in tests/train/cases.py."""

from types import SimpleNamespace

import pytest
import torch

from pna.train.average import MovingAverage


@pytest.mark.parametrize("steps", [40, 400, 4000])
def test_the_beginning_is_forgotten_by_the_middle(steps: int) -> None:
    """Of a model that changes once, half-way, hardly anything of before is left at the end."""
    population = SimpleNamespace(flat=torch.zeros(1, 2), buffers={"seen": torch.zeros(1)})
    average = MovingAverage(population, 0.999)
    alive = torch.tensor([True])
    for step in range(1, steps + 1):
        if step == steps // 2:
            population.flat.fill_(1.0)
            population.buffers["seen"].fill_(1.0)
        average.update(population, torch.tensor([float(step)]), alive)
    at_least = 0.99 if steps < 1000 else 1 - 0.999 ** (steps // 2)
    assert float(average.weights.min()) > at_least - 1e-3
    assert float(average.buffers["seen"]) == pytest.approx(float(average.weights[0, 0]))
