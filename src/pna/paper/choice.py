"""Which training every model gets: the one with the least validation error on their average."""

from typing import Any

from pna.paper.experiment import Experiment
from pna.paper.models import variants
from pna.paper.recipes import RECIPES

#: How long every alternative is tried, and with how many runs of each model.
EPOCHS, MEMBERS = 300, 4

_STEADY = dict(RECIPES["steady"].others)

#: Alternatives to the steady recipe: what each is called, and what it changes.
_TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("steady", {}),
    "one-size": ("batches of one size", {"others": _STEADY | {"shuffle": False}}),
    "default-init": ("torch's usual weights", {"init": "default"}),
    "even": ("losses weighed by their inverse", {"others": _STEADY | {"even": True}}),
    "even-default-init": ("both", {"others": _STEADY | {"even": True}, "init": "default"}),
}

CHOICE = Experiment(
    "choice",
    "Which training suits all models, by validation error",
    tuple(
        variant
        for group, (_, changes) in _TRIED.items()
        for variant in variants(group=group, changes={"epochs": EPOCHS} | changes)
    ),
    splits=("validation",),
    protocols=("published", "paper"),
    recipes=("steady",),
    members=MEMBERS,
    figure="pairs",
    groups={group: label for group, (label, _) in _TRIED.items()},
)
