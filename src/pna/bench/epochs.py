"""An epoch of our training, and of a model made of PyG's layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pna.data.graphset import GraphSet
from pna.train.models import build, fitted
from pna.train.population import Population
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import tasks_of
from pna.train.trainer import Trainer


def trainer_of(
    training: GraphSet,
    validation: GraphSet,
    model: ModelSettings,
    settings: Settings,
    loss: str,
    device: torch.device,
) -> Trainer:
    """A fresh population on a device, as these settings have it."""
    tasks = tasks_of(training, loss)
    model = fitted(model, training, tasks)
    population = Population([build(model, seed) for seed in settings.seeds]).to(device)
    return Trainer(population, tasks, settings, training.to(device), validation.to(device))


def without_validation(trainer: Trainer) -> Callable[[], None]:
    """An epoch of training alone at each call."""
    numbers = itertools.count()

    def epoch() -> None:
        trainer.population.train()
        trainer.training.run(next(numbers))

    return epoch


def pyg_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: Callable[[], Iterable[Any]],
    loss: Callable[[Any], Tensor],
    device: torch.device,
) -> Callable[[], None]:
    """A step at each of the batches of PyG's, as its users write it."""

    def epoch() -> None:
        model.train()
        for batch in batches():
            step(optimiser, loss(batch.to(device)))

    return epoch


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
