"""Learning rate and weight decay, for every model alike: those with the least validation error."""

from pna.paper.experiment import Experiment
from pna.paper.models import variants
from pna.paper.recipes import RECIPES

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

#: Weight decays, the first being as good as none. Overfitting takes longer to be seen. Each model
#: takes the one with the least mean of logs on validation graphs, over its runs. As many epochs as
#: these then do for everything, unless `multitask` with twice as many, and no decay, had less
#: validation loss: log10, mean of all runs, average over the models.
DECAYS, DECAY_EPOCHS = (1e-6, 0.01, 0.03, 0.1, 0.3), 600

DECAY = Experiment(
    "decay",
    "Which weight decay suits each model, by validation error",
    variants(
        changes={
            "spread": (1.0,),
            "decays": DECAYS,
            "epochs": DECAY_EPOCHS,
            "others": {**RECIPES["steady"].others, "optimiser": "adamw"},
        }
    ),
    splits=("validation",),
    protocols=("paper", "published"),
    recipes=("steady",),
    figure="decays",
)
