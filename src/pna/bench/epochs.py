"""An epoch of our training, and of a model made of PyG's layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pna.bench.epoch_times import OURS, Contender
from pna.data.graphset import GraphSet
from pna.train.models import build, count_parameters, fitted
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


def with_validation(trainer: Trainer) -> Callable[[], Any]:
    """An epoch of training and validation at each call."""
    numbers = itertools.count()
    return lambda: trainer.run_epoch(next(numbers))


def without_validation(trainer: Trainer) -> Callable[[], None]:
    """An epoch of training alone at each call."""
    numbers = itertools.count()

    def epoch() -> None:
        trainer.population.train()
        trainer.training.run(next(numbers))

    return epoch


def our_contender(trainer: Trainer, epoch: Callable[[], Any], name: str = "") -> Contender:
    """Our training; its name says how many members there are, unless another is given."""
    members = trainer.settings.members
    name = name or f"{OURS}, {members} member{'s' if members > 1 else ''}"
    return Contender(name, epoch, count_parameters(trainer.population.model), members)


def pyg_contender(
    name: str,
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    batches: Callable[[], Iterable[Any]],
    settings: Settings,
    **more: Any,
) -> Contender:
    """A step at each of the batches of PyG's, as its users write it; `more` are other fields."""
    decay, lr = settings.weight_decay[0], settings.lr[0]
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay)

    def epoch() -> None:
        model.train()
        for batch in batches():
            optimiser.zero_grad()
            loss(batch).backward()
            optimiser.step()

    return Contender(name, epoch, count_parameters(model), **more)
