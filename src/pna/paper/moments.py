"""Moments as aggregators: from the mean alone to five of them, against the four of PNA."""

from pna.paper.claims import Claim, best, on_average
from pna.paper.experiment import Experiment, Variant
from pna.paper.models import variants

AGGREGATORS = ("mean", "std", "moment_3", "moment_4", "moment_5")

_MOMENTS = tuple(
    Variant(
        f"moments-{count}",
        "1 moment" if count == 1 else f"{count} moments",
        "pna",
        arguments={"aggregators": AGGREGATORS[:count]},
    )
    for count in range(1, len(AGGREGATORS) + 1)
)
_NAMES = [variant.name for variant in _MOMENTS]

MOMENTS = Experiment(
    "moments",
    "How many moments of a neighbourhood are worth having",
    (*_MOMENTS, *variants("pna")),
    ordered=True,
    claims=(
        Claim("Three moments are better than one",
              best("moments-3", ["moments-1"], on_average())),
        Claim("PNA's mean, std, maximum and minimum are better than any number of moments",
              best("pna", _NAMES, on_average())),
    ),
)  # fmt: skip
