"""How the models of the synthetic experiments are trained, every one alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pna.train.settings import Settings

#: Members of a population differ a little in their learning rate, as the paper's runs did.
NEARBY = (1.0, 0.9, 1.1, 0.8, 1.2)


@dataclass(frozen=True)
class Recipe:
    """Settings of training, the same for every model."""

    what: str  # in a few words
    epochs: int
    quick_epochs: int  # where minutes must do
    patience: int | None
    rate: float = 0.003
    spread: tuple[float, ...] = NEARBY  # of the members' rates, in units of it
    decays: tuple[float, ...] = (1e-6,)  # of the members' weights, one after another
    init: str = "published"
    draws: int = 1  # of sources and features, for each graph to train; one where minutes must do
    others: Mapping[str, Any] = field(default_factory=dict)  # of `Settings`

    def settings(self, members: int, quick: bool = False, **given: Any) -> Settings:
        """For one population."""
        decays = self.decays if len(self.decays) == 1 else _in_turn(self.decays, members)
        common = {
            "members": members,
            "epochs": self.quick_epochs if quick else self.epochs,
            "patience": self.patience,
            "lr": tuple(self.rate * share for share in _in_turn(self.spread, members)),
            "weight_decay": decays,
            "shuffle": False,
        }
        short = {"warmup": 2} if quick and self.others.get("warmup") else {}
        return Settings(**{**common, **self.others, **short, **given})


def _in_turn(values: tuple[float, ...], members: int) -> tuple[float, ...]:
    """One for each member, beginning anew where there are more of these."""
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
    epochs=75,  # each of as many steps as eight of the others
    draws=8,
    init="remembering",
    others={**_STEADY.others, "warmup": 2},
)

#: "plain" is the paper's training; how the others were found is told in docs/results.md.
RECIPES = {
    "redrawn": _REDRAWN,
    "longer": replace(_REDRAWN, epochs=150, what=f"{_REDRAWN.what}, 150 epochs"),
    "steady": _STEADY,
    "plain": Recipe(
        "Adam at a constant rate, batches of graphs of one size, as in the paper",
        epochs=10_000,
        quick_epochs=20,
        patience=1_000,
    ),
}
