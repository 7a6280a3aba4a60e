"""The learning rate of every model, chosen alike: the one with the least validation error."""

from pna.paper.experiment import Experiment
from pna.paper.models import variants

#: Learning rates that every model is tried with, in units of 0.004.
TRIED = (1 / 4, 1 / 2, 1, 2, 4)

TUNING = Experiment(
    "tuning",
    "Which learning rate suits each model, by validation error",
    variants(changes={"rate": 0.004, "spread": TRIED, "epochs": 1000}),
    recipes=("steady", "plain"),
)
