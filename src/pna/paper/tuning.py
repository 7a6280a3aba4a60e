"""How models are trained: what each part of our recipe does, and how settings were chosen."""

from collections.abc import Mapping
from typing import Any

from pna.paper.claims import Claim, less, on_average, on_task
from pna.paper.experiment import Experiment, Variant, variants
from pna.paper.models import DECAYED
from pna.paper.recipes import RECIPES
from pna.paper.thresholds import learns_every_task

# What makes every run learn every task: our recipe, and each of its parts left out

_REDRAWN, _STEADY, _PLAIN = (RECIPES[name] for name in ("redrawn", "steady", "plain"))
#: Inputs drawn once, for as many steps in all.
_ONCE: dict[str, Any] = {"draws": 1, "epochs": _REDRAWN.draws * _REDRAWN.epochs}


def _pna(row: str, label: str, without: str = "", **changes: Any) -> Variant:
    """PNA trained by our recipe, without one of its parts, or with something changed."""
    others = {name: value for name, value in _REDRAWN.others.items() if name != without}
    return Variant(row, label, "pna", changes={"others": others, **changes})


#: Parts of our recipe, by the row without them.
_PARTS = {
    "drawn-once": "several draws of sources and features",
    "one-size": "batches of all sizes",
    "unbalanced": "losses divided by the variance of their targets",
    "unclipped": "clipped gradients",
    "constant": "learning rates that fall along a cosine",
    "unaveraged": "averaged weights",
    "default-init": "GRUs that begin by remembering",
}

TRAINING = Experiment(
    "training",
    "Why runs of the plain training fail, and what each part of ours does",
    (
        _pna("redrawn", "ours: all of it"),
        _pna("drawn-once", "inputs drawn once, as many steps", others=_STEADY.others, **_ONCE),
        _pna("one-size", "batches of one size", without="shuffle"),
        _pna("unbalanced", "losses as they are", without="balance"),
        _pna("unclipped", "gradients as they are", without="clip"),
        _pna("constant", "a constant rate", without="schedule"),
        _pna("unaveraged", "weights as they are", without="average"),
        _pna("default-init", "torch's usual initial weights", init="default"),
        _pna("published-init", "the authors' initial weights", init="published"),
        _pna("plain", "plain, as many steps",
             others=_PLAIN.others, rate=_PLAIN.rate, init=_PLAIN.init, **_ONCE),
    ),
    recipes=("redrawn",),
    ordered=True,
    claims=(
        Claim("By our recipe every run learns every task", learns_every_task("redrawn")),
        Claim("Losses divided by the variance of their targets let the Laplacian be learned",
              less("redrawn", "unbalanced", on_task("laplacian", top=None))),
        *(Claim(f"{what[:1].upper()}{what[1:]} help",
                less("redrawn", without, on_average(top=None)))
          for without, what in _PARTS.items()),
        Claim("Our recipe is better than the plain one, for as many steps",
              less("redrawn", "plain", on_average(top=None))),
    ),
)  # fmt: skip

# Learning rate, gates and weight decay with the least validation error, of each model

#: Learning rates that every model is trained with.
TRIED = (0.002, 0.004, 0.006, 0.009, 0.0135)

TUNING = Experiment(
    "tuning",
    "Which learning rate suits each model, by validation error",
    variants(changes={"rate": 1.0, "spread": TRIED, "epochs": 400}),
    protocols=("published", "paper"),
    recipes=("steady", "plain"),
    figure="rates",
)

#: Learning rates of the search, two runs each. Every model is searched with GRUs that begin by
#: remembering, with torch's usual ones, and with weight decay. A rate is scored by itself and its
#: two neighbours, because members of a population have rates of 0.8 to 1.2 times it; the outermost
#: rates cannot be chosen. Each model takes the setting with the least validation loss (log10, mean
#: of these six runs) on the graphs of "paper". The recipe "tuned" holds the settings chosen.
SEARCHED = (0.004, 0.006, 0.009, 0.0135, 0.02)
_SETTINGS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "": ("gates that begin by remembering", {}),
    "usual-gates": ("torch's usual gates", {"init": "default"}),
    "decay": ("gates that begin by remembering, weight decay 0.01", DECAYED),
}

SEARCH = Experiment(
    "search",
    "Which learning rate, gates and weight decay suit each model, by validation error",
    tuple(
        variant
        for group, (_, changes) in _SETTINGS.items()
        for variant in variants(group=group, changes={"rate": 1.0, "spread": SEARCHED, **changes})
    ),
    recipes=("redrawn",),
    figure="rates",
    groups={group: label for group, (label, _) in _SETTINGS.items()},
)

# Which training all models get: the one with the least validation error on their average

_USUAL = dict(_STEADY.others)

#: Alternatives: their label, initial weights and other settings.
_ALTERNATIVES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "": ("the authors' weights", "published", _USUAL),
    "one-size": ("batches of one size", "published", _USUAL | {"shuffle": False}),
    "default-init": ("torch's usual weights", "default", _USUAL),
    "even": ("losses weighed by their inverse", "published", _USUAL | {"even": True}),
    "even-default-init": ("both of these", "default", _USUAL | {"even": True}),
}

CHOICE = Experiment(
    "choice",
    "Which training suits all models, by validation error",
    tuple(
        variant
        for group, (_, init, others) in _ALTERNATIVES.items()
        for variant in variants(
            group=group, changes={"epochs": 300, "rate": 0.009, "init": init, "others": others}
        )
    ),
    splits=("validation",),
    protocols=("published", "paper"),
    recipes=("steady",),
    members=4,
    figure="pairs",
    groups={group: label for group, (label, _, _) in _ALTERNATIVES.items()},
)

#: Weight decays; the first has no effect in practice. Training is longer, because overfitting
#: shows late. Each model was to take the one with the least mean of logs on validation graphs;
#: docs/recipes.md says what came of it.
DECAYS = (1e-6, 0.01, 0.03, 0.1, 0.3)

DECAY = Experiment(
    "decay",
    "Which weight decay suits each model, by validation error",
    variants(changes={"spread": (1.0,), "decays": DECAYS, "epochs": 600, "optimiser": "adamw"}),
    splits=("validation",),
    protocols=("paper", "published"),
    recipes=("steady",),
    figure="decays",
)

#: In the order in which they are shown.
EXPERIMENTS = (TRAINING, TUNING, SEARCH, CHOICE, DECAY)
