"""Whether PNA wins by its parameters: the others with 20 features, PNA with 16."""

from dataclasses import replace

from pna.paper.claims import Claim, best, on_average
from pna.paper.experiment import Experiment
from pna.paper.models import SINGLE, variants

PARAMETERS = Experiment(
    "parameters",
    "More parameters for the others: 20 features against PNA's 16",
    (*variants("pna", *SINGLE), *(replace(v, group="20", hidden=20) for v in variants(*SINGLE))),
    figure="sizes",
    groups={"": "16 features", "20": "20 features"},
    claims=(
        Claim("PNA with 16 features is ahead of every other model with 20",
              best("pna", [f"{name} 20" for name in SINGLE], on_average())),
    ),
)  # fmt: skip
