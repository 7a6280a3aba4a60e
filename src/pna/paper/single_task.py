"""Each task learned alone, against all of them together."""

from dataclasses import replace

from pna.paper.claims import Claim, gains_most, on_average
from pna.paper.experiment import Experiment
from pna.paper.models import LABELS, variants

#: Runs of each task alone: six times as many as a model has.
ALONE = 4

SINGLE_TASK = Experiment(
    "single-task",
    "Each task alone against all six together",
    (*variants(), *(replace(v, group="alone", alone=ALONE) for v in variants())),
    figure="pairs",
    groups={"": "together", "alone": "alone"},
    claims=(
        # of all members, as there are not enough alone to choose among
        Claim("Learning all tasks together helps the models without scalers most",
              gains_most(tuple(n for n in LABELS if n != "pna"), ("pna",), ("", "alone"),
                         on_average(top=None))),
    ),
)  # fmt: skip
