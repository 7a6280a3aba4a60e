"""Which training every model gets: the one with the least validation error on their average."""

from typing import Any

from pna.paper.experiment import Experiment
from pna.paper.models import variants
from pna.paper.recipes import RECIPES

#: How long every alternative is tried, at which rate, and with how many runs of each model.
EPOCHS, RATE, MEMBERS = 300, 0.009, 4

_STEADY = dict(RECIPES["steady"].others)
_ONE_SIZE, _EVEN = _STEADY | {"shuffle": False}, _STEADY | {"even": True}

#: Alternatives: what each is called, its initial weights, and its other settings.
_TRIED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "": ("the authors' weights", "published", _STEADY),
    "one-size": ("batches of one size", "published", _ONE_SIZE),
    "default-init": ("torch's usual weights", "default", _STEADY),
    "even": ("losses weighed by their inverse", "published", _EVEN),
    "even-default-init": ("both of these", "default", _EVEN),
}


def _changes(init: str, others: dict[str, Any]) -> dict[str, Any]:
    return {"epochs": EPOCHS, "rate": RATE, "init": init, "others": others}


CHOICE = Experiment(
    "choice",
    "Which training suits all models, by validation error",
    tuple(
        variant
        for group, (_, init, others) in _TRIED.items()
        for variant in variants(group=group, changes=_changes(init, others))
    ),
    splits=("validation",),
    protocols=("published", "paper"),
    recipes=("steady",),
    members=MEMBERS,
    figure="pairs",
    groups={group: label for group, (label, _, _) in _TRIED.items()},
)
