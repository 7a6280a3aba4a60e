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


def test_a_member_that_stopped_keeps_its_average() -> None:
    """Also if what it has is not finite any more. The others go on, also after it is dropped."""
    population = SimpleNamespace(
        flat=torch.ones(3, 2), buffers={"mean": torch.ones(3, 4), "passes": torch.ones(3).long()}
    )
    average = MovingAverage(population, 0.9)
    population.flat = torch.tensor([[2.0], [float("inf")], [2.0]]).expand(3, 2)
    population.buffers = {
        "mean": torch.tensor([[2.0], [float("nan")], [2.0]]).expand(3, 4),
        "passes": torch.tensor([2, 3, 2]),
    }
    average.update(population, torch.full((3,), 81.0), torch.tensor([True, False, True]))
    assert torch.equal(average.weights, torch.tensor([[1.1], [1.0], [1.1]]).expand(3, 2))
    assert torch.equal(average.buffers["mean"], torch.tensor([[1.1], [1.0], [1.1]]).expand(3, 4))
    assert average.buffers["passes"].tolist() == [2, 1, 2]
    left = torch.tensor([0, 2])
    average.keep(left)
    population.flat = population.flat[left]
    population.buffers = {name: b[left] for name, b in population.buffers.items()}
    average.update(population, torch.full((2,), 82.0), torch.tensor([True, True]))
    for found in (
        average.weights,
        average.buffers["mean"],
        average.state_dict("a")["a.buffer.mean"],
    ):
        torch.testing.assert_close(found, torch.full_like(found, 1.19))
