"""The learning rate of every model, chosen alike: the one with the least validation error."""

from pna.paper.experiment import Experiment
from pna.paper.models import variants

#: Learning rates that every model is tried with, and for how long.
TRIED, EPOCHS = (0.002, 0.004, 0.006, 0.009, 0.0135), 400

TUNING = Experiment(
    "tuning",
    "Which learning rate suits each model, by validation error",
    variants(changes={"rate": 1.0, "spread": TRIED, "epochs": EPOCHS}),
    protocols=("published", "paper"),
    figure="rates",
)
