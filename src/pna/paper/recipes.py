"""How the models of the synthetic experiments are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pna.paper.models import MODELS
from pna.train.settings import Settings

#: Members of a population differ a little in their learning rate, as the paper's runs did.
NEARBY = (1.0, 0.9, 1.1, 0.8, 1.2)


@dataclass(frozen=True)
class Recipe:
    """Settings of training. All models share them, except for the settings in `own`."""

    what: str  # a short description
    epochs: int
    quick_epochs: int  # of quick runs
    patience: int | None
    rate: float = 0.003
    spread: tuple[float, ...] = NEARBY  # learning rates of the members, in units of `rate`
    decays: tuple[float, ...] = (1e-6,)  # weight decays of the members
    optimiser: str = "adam"
    init: str = "published"
    draws: int = 1  # of sources and features for each training graph; one in quick runs
    others: Mapping[str, Any] = field(default_factory=dict)  # of `Settings`
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields above, by model

    def of(self, model: str, changes: Mapping[str, Any]) -> Recipe:
        """The recipe of one model: with its own settings, then with an experiment's changes."""
        return replace(self, **{**self.own.get(model, {}), **changes})

    def settings(self, members: int, quick: bool = False, **given: Any) -> Settings:
        """Settings of one population."""
        decays = self.decays if len(self.decays) == 1 else _in_turn(self.decays, members)
        common = {
            "members": members,
            "epochs": self.quick_epochs if quick else self.epochs,
            "patience": self.patience,
            "lr": tuple(self.rate * share for share in _in_turn(self.spread, members)),
            "weight_decay": decays,
            "optimiser": self.optimiser,
            "shuffle": False,
        }
        short = {"warmup": 2} if quick and self.others.get("warmup") else {}
        return Settings(**{**common, **self.others, **short, **given})


def _in_turn(values: tuple[float, ...], members: int) -> tuple[float, ...]:
    """A value for each member; values repeat if there are more members."""
    return tuple(values[k % len(values)] for k in range(members))


_STEADY = Recipe(
    "batches of all sizes, losses divided by the variance of their targets, clipped gradients, a "
    "cosine schedule, averaged weights",
    epochs=1_200,
    quick_epochs=20,
    patience=None,
    rate=0.009,
    init="default",
    others={
        "shuffle": True,
        "balance": True,
        "clip": 1.0,
        "schedule": "cosine",
        "warmup": 20,
        "average": 0.998,
    },
)

_REDRAWN = replace(
    _STEADY,
    what="eight draws of sources and features for each graph, GRUs that begin by remembering, "
    f"{_STEADY.what}",
    epochs=75,  # each has as many steps as eight epochs of the other recipes
    draws=8,
    init="remembering",
    others={**_STEADY.others, "warmup": 2},
)

#: "plain" is the paper's training; docs/recipes.md says how the others were found.
RECIPES = {
    "redrawn": _REDRAWN,
    "tuned": replace(
        _REDRAWN,
        what="each model's own learning rate, gates and weight decay, eight draws of sources "
        f"and features for each graph, {_STEADY.what}",
        own={name: model.tuned for name, model in MODELS.items()},
    ),
    "steady": _STEADY,
    "plain": Recipe(
        "Adam at a constant rate, batches of graphs of one size, as in the paper",
        epochs=10_000,
        quick_epochs=20,
        patience=1_000,
    ),
}
