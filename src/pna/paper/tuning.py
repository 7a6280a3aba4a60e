"""Learning rate, gates and weight decay: those with the least validation error, of each model."""

from typing import Any

from pna.paper.experiment import Experiment
from pna.paper.models import variants
from pna.paper.recipes import DECAYED

#: Learning rates that every model is tried with, and for how long.
TRIED, EPOCHS = (0.002, 0.004, 0.006, 0.009, 0.0135), 400

TUNING = Experiment(
    "tuning",
    "Which learning rate suits each model, by validation error",
    variants(changes={"rate": 1.0, "spread": TRIED, "epochs": EPOCHS}),
    protocols=("published", "paper"),
    recipes=("steady", "plain"),
    figure="rates",
)

#: Rates that are tried with gates that begin by remembering, with torch's usual ones, and with
#: weight decay, two runs each. A rate is judged by itself and its two neighbours, as members of a
#: population have rates of 0.8 to 1.2 times it, and so it is none of the outermost. Each model
#: takes the rate and the way with the least validation loss (log10, the mean of these six runs) on
#: the graphs of "paper"; the recipe "tuned" has them.
SEARCHED = (0.004, 0.006, 0.009, 0.0135, 0.02)
_WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "usual-gates": {"init": "default"},
    "decay": {**DECAYED},
}

SEARCH = Experiment(
    "search",
    "Which learning rate, gates and weight decay suit each model, by validation error",
    tuple(
        variant
        for group, changes in _WAYS.items()
        for variant in variants(group=group, changes={"rate": 1.0, "spread": SEARCHED, **changes})
    ),
    recipes=("redrawn",),
    figure="rates",
    groups={
        "": "gates that begin by remembering",
        "usual-gates": "torch's usual gates",
        "decay": "gates that begin by remembering, weight decay 0.01",
    },
)

#: Weight decays, the first being as good as none. Overfitting takes longer to be seen. Each model
#: was to take the one with the least mean of logs on validation graphs; docs/recipes.md tells what
#: came of it.
DECAYS, DECAY_EPOCHS = (1e-6, 0.01, 0.03, 0.1, 0.3), 600

DECAY = Experiment(
    "decay",
    "Which weight decay suits each model, by validation error",
    variants(
        changes={
            "spread": (1.0,),
            "decays": DECAYS,
            "epochs": DECAY_EPOCHS,
            "optimiser": "adamw",
        }
    ),
    splits=("validation",),
    protocols=("paper", "published"),
    recipes=("steady",),
    figure="decays",
)
