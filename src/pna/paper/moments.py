"""Moments as aggregators: from the mean alone to five of them, against the four of PNA."""

from pna.paper.claims import Claim, best, least_among, on_average, steadier
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
        Claim("Errors are least near three moments: one and five are worse than some in between",
              least_among(_NAMES[1:-1], [_NAMES[0], _NAMES[-1]], on_average())),
        Claim("PNA's mean, std, maximum and minimum are better than any number of moments",
              best("pna", _NAMES, on_average())),
        Claim("Runs of PNA, all of them, differ less than those with any number of moments",
              steadier("pna", _NAMES, on_average(top=None))),
    ),
)  # fmt: skip
