"""Larger graphs than those trained on: trained on 15 to 24 nodes, tested on up to 99."""

from collections.abc import Sequence

from pna.data.multitask.generate import BEYOND
from pna.paper.claims import Claim, Measured, best_everywhere, on_average
from pna.paper.experiment import Experiment, Variant
from pna.paper.models import LABELS, SINGLE, variants
from pna.paper.published import published
from pna.paper.thresholds import explodes, within

SPLITS = tuple(f"test {first}-{first + 4}" for first in BEYOND)


def _at(splits: Sequence[str]) -> dict[str, Measured]:
    """By the sizes of the graphs."""
    return {split.removeprefix("test "): on_average(split) for split in splits}


#: PNA's curve in the paper, up to 49 nodes.
_CURVE = {
    split.removeprefix("test "): (value, on_average(split, ratio=True))
    for split in SPLITS
    if (value := published("extrapolation").get("pna", split)) is not None
}

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
              best_everywhere("pna", list(LABELS), _at(SPLITS))),
        Claim("Of the models with one aggregator, the maximum extrapolates best",
              best_everywhere("mpnn-max", list(SINGLE), _at(SPLITS[1:]))),
        Claim("Linear scaling explodes with size, and so with depth, where logarithmic does not: "
              "ten times the error of predicting the mean, at the largest",
              explodes("pna-linear", "pna", on_average(SPLITS[-1], ratio=True))),
        Claim("PNA is at or below its published curve up to 49 nodes", within("pna", _CURVE)),
        Claim("Ours, not the paper's: as deep as the diameter, PNA extrapolates better",
              best_everywhere("pna-diameter", ["pna"], _at(SPLITS[1:]))),
        Claim("Ours, not the paper's: until its states converge, PNA extrapolates better",
              best_everywhere("pna-adaptive", ["pna"], _at(SPLITS[1:]))),
    ),
)  # fmt: skip

DIAMETER = Experiment(
    "diameter",
    "Larger graphs, every model as deep as their diameter",
    variants(arguments={"depth": "diameter"}),
    splits=SPLITS,
    extrapolation=True,
    figure="curves",
    claims=(
        Claim("Ours, not the paper's: as deep as the diameter, PNA is the best model at every size",
              best_everywhere("pna", list(LABELS), _at(SPLITS))),
        Claim("Ours, not the paper's: so PNA is at or below its published curve, of N/2 steps, up "
              "to 49 nodes", within("pna", _CURVE)),
    ),
)  # fmt: skip
