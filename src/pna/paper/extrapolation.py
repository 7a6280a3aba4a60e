"""Larger graphs than those trained on: trained on 15 to 24 nodes, tested on up to 99."""

from pna.data.multitask.generate import BEYOND
from pna.paper.claims import Claim, best, best_everywhere, on_average
from pna.paper.experiment import Experiment, Variant
from pna.paper.models import LABELS, SINGLE, variants

SPLITS = tuple(f"test {first}-{first + 4}" for first in BEYOND)

EXTRAPOLATION = Experiment(
    "extrapolation",
    "Graphs larger than those trained on",
    (
        *variants(),
        Variant("pna-diameter", "PNA, as deep as the diameter", "pna",
                arguments={"depth": "diameter"}),
        Variant("pna-adaptive", "PNA, until states converge", "pna",
                arguments={"depth": "adaptive"}),
        Variant("pna-linear", "PNA with linear scalers", "pna",
                arguments={"scalers": ("identity", "linear", "inverse_linear")}),
    ),
    splits=SPLITS,
    extrapolation=True,
    figure="curves",
    claims=(
        Claim("PNA is the best model at every size",
              best_everywhere("pna", list(LABELS),
                              {split.removeprefix("test "): on_average(split)
                               for split in SPLITS})),
        Claim("Of the models with one aggregator, the maximum extrapolates best",
              best_everywhere("mpnn-max", list(SINGLE),
                              {split.removeprefix("test "): on_average(split)
                               for split in SPLITS[1:]})),
        Claim("Linear scaling explodes with size where logarithmic does not",
              best("pna", ["pna", "pna-linear"], on_average(SPLITS[-1]))),
    ),
)  # fmt: skip
