"""Learning-rate schedules: one table with everything the code needs to know about each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pna.train.settings import Settings

#: What a schedule does at `Settings.min_lr`, with a sentence for the command-line help.
AT_LOWEST = {
    "ignores it": "`{}` ignores it.",
    "ends there": "`{}` ends there.",
    "stops": "With `{}`, a member that would go below it stops.",
}


class Rates(NamedTuple):
    """The learning rates after an epoch; tensors are (members,)."""

    base: Tensor  # the rate that later epochs start from
    waiting: Tensor  # int64, number of epochs without improvement
    factor: Tensor | float  # the base rate is multiplied by it in the next epoch


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule. No field has a default, so that none is forgotten.

    `rates(settings, epoch, base, waiting)` returns the `Rates` of the next epoch. `epoch` is an
    int64 tensor () with the number of epochs done; only tensor operations are allowed. Warmup is
    applied to every schedule elsewhere.
    """

    help: str  # one sentence for the command line
    rates: Callable[[Any, Tensor, Tensor, Tensor], Rates]
    needs_epochs: bool  # whether rates depend on the total number of epochs; such a run cannot
    # be resumed with another number
    at_lowest: str  # of `AT_LOWEST`; `rates` itself does not stop members

    def __post_init__(self) -> None:
        checks = {
            "help": isinstance(self.help, str) and bool(self.help.strip()),
            "rates": callable(self.rates),
            "needs_epochs": isinstance(self.needs_epochs, bool),
            "at_lowest": self.at_lowest in AT_LOWEST,
        }
        if wrong := [name for name, is_right in checks.items() if not is_right]:
            raise ValueError(
                f"got a schedule whose {', '.join(wrong)} cannot be used, expected a sentence of "
                "help, a function rates, needs_epochs True or False, and at_lowest one of "
                + ", ".join(map(repr, AT_LOWEST))
            )

    def after(self, settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
        """Its rates. A schedule with `needs_epochs=False` cannot read the number of epochs."""
        seen = settings if self.needs_epochs else _WithoutEpochs(settings)
        return self.rates(seen, epoch, base, waiting)

    def stopped(self, settings: Settings, base: Tensor) -> Tensor:
        """Which members stop at the lowest learning rate, (members,) bool."""
        if self.at_lowest != "stops" or settings.min_lr <= 0:
            return torch.zeros_like(base, dtype=torch.bool)
        return base < settings.min_lr


class _WithoutEpochs:
    """Settings without the number of epochs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        if name == "epochs":
            raise ValueError(
                f"the schedule {self._settings.schedule!r} asked for the number of epochs, but is "
                "declared with needs_epochs=False; declare it with needs_epochs=True"
            )
        return getattr(self._settings, name)


SCHEDULES: dict[str, Schedule] = {}


def register(name: str, schedule: Schedule) -> None:
    """Add a schedule to the table, under its name in `Settings.schedule`."""
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"got {schedule!r} as the schedule {name!r}, expected a pna.train.schedules.Schedule"
        )
    if not name or name in SCHEDULES:
        raise ValueError(f"got a schedule called {name!r}, expected a new name")
    SCHEDULES[name] = schedule


def _constant(settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
    return Rates(base, waiting, 1.0)


def _plateau(settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
    """Multiply by `decay` after `plateau` epochs without improvement."""
    lower = waiting >= settings.plateau
    base = torch.where(lower, base * settings.decay, base)
    return Rates(base, torch.where(lower, 0, waiting), 1.0)


def _cosine(settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
    """Half a cosine from the base rate, after the warmup, to `min_lr` at the last epoch."""
    span = max(settings.epochs - settings.warmup, 1)
    done = ((epoch.to(base.dtype) - settings.warmup) / span).clamp(0, 1)
    least = settings.min_lr / base.clamp(min=1e-30)
    wave = (1 + torch.cos(math.pi * done)) / 2
    return Rates(base, waiting, least + (1 - least) * wave)


register("constant", Schedule("the same rate in all epochs", _constant, False, "ignores it"))
register(
    "plateau",
    Schedule("lower after some epochs without a better validation loss", _plateau, False, "stops"),
)
register(
    "cosine",
    Schedule("half a cosine over all epochs", _cosine, True, "ends there"),
)


def help_of_schedules() -> str:
    """The allowed values, for the command-line help."""
    named = "; ".join(f"{name}: {schedule.help}" for name, schedule in SCHEDULES.items())
    return f"Learning-rate schedule. Values: {named}. Default: constant."


def help_of_lowest() -> str:
    """What every schedule does at the lowest rate, for the command-line help."""
    sentences = [AT_LOWEST[s.at_lowest].format(name) for name, s in SCHEDULES.items()]
    return " ".join(["Lowest learning rate.", *sentences, "Default: 0."])
