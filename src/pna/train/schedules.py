"""Learning-rate schedules: one table that says all there is to know of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pna.train.settings import Settings

#: What a schedule does at `Settings.min_lr`, and how the command line's help says it.
AT_LOWEST = {
    "ignores it": "`{}` ignores it.",
    "ends there": "`{}` ends there.",
    "stops": "With `{}`, a member that would go below it stops.",
}


class Rates(NamedTuple):
    """What a schedule makes of the learning rates after an epoch; tensors are (members,)."""

    base: Tensor  # the rate that later epochs start from
    waiting: Tensor  # int64, epochs without improvement, counted on from here
    factor: Tensor | float  # the base rate is multiplied by it in the next epoch


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule. No field has a default: what is not said cannot be known.

    `rates(settings, epoch, base, waiting)` gives the `Rates` of the epoch after `epoch`, an int64
    tensor () of the epochs done, by tensor operations alone. Warmup is not its concern: it is
    multiplied in for every schedule.
    """

    help: str  # one sentence for the command line
    rates: Callable[[Any, Tensor, Tensor, Tensor], Rates]
    needs_epochs: bool  # whether rates depend on the number of epochs of the whole training: a
    # run with such a schedule cannot be resumed with another number
    at_lowest: str  # of `AT_LOWEST`; members are stopped here, not by `rates`

    def __post_init__(self) -> None:
        said = {
            "help": isinstance(self.help, str) and bool(self.help.strip()),
            "rates": callable(self.rates),
            "needs_epochs": isinstance(self.needs_epochs, bool),
            "at_lowest": self.at_lowest in AT_LOWEST,
        }
        if wrong := [name for name, is_right in said.items() if not is_right]:
            raise ValueError(
                f"got a schedule whose {', '.join(wrong)} cannot be used, expected a sentence of "
                "help, a function rates, needs_epochs True or False, and at_lowest one of "
                + ", ".join(map(repr, AT_LOWEST))
            )

    def after(self, settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
        """Its rates; one that does not need the number of epochs is not told it."""
        seen = settings if self.needs_epochs else _WithoutEpochs(settings)
        return self.rates(seen, epoch, base, waiting)

    def stopped(self, settings: Settings, base: Tensor) -> Tensor:
        """Which members its lowest rate stops, (members,)."""
        if self.at_lowest != "stops" or settings.min_lr <= 0:
            return torch.zeros_like(base, dtype=torch.bool)
        return base < settings.min_lr


class _WithoutEpochs:
    """Settings as a schedule sees them that declared that it does not need the epochs."""

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
    """Add a schedule to the table, by the name that `Settings.schedule` has."""
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
    """Times `decay` after every `plateau` epochs that were no better."""
    dull = waiting >= settings.plateau
    return Rates(torch.where(dull, base * settings.decay, base), torch.where(dull, 0, waiting), 1.0)


def _cosine(settings: Settings, epoch: Tensor, base: Tensor, waiting: Tensor) -> Rates:
    """Half a wave from the base rate, after the warmup, to `min_lr` at the last epoch."""
    span = max(settings.epochs - settings.warmup, 1)
    done = ((epoch.to(base.dtype) - settings.warmup) / span).clamp(0, 1)
    least = settings.min_lr / base.clamp(min=1e-30)
    wave = (1 + torch.cos(math.pi * done)) / 2
    return Rates(base, waiting, least + (1 - least) * wave)


register("constant", Schedule("the same rate all the time", _constant, False, "ignores it"))
register(
    "plateau",
    Schedule("lower after epochs without a better validation loss", _plateau, False, "stops"),
)
register(
    "cosine",
    Schedule("half a cosine wave over the number of epochs", _cosine, True, "ends there"),
)


def help_of_schedules() -> str:
    """The allowed values, for the command line."""
    named = "; ".join(f"{name}: {schedule.help}" for name, schedule in SCHEDULES.items())
    return f"Schedule of the learning rate. {named}. Default: constant."


def help_of_lowest() -> str:
    """What every schedule does at the lowest rate, for the command line."""
    said = [AT_LOWEST[s.at_lowest].format(name) for name, s in SCHEDULES.items()]
    return " ".join(["Lowest learning rate.", *said, "Default: 0."])
