"""The recurrent architecture against eight convolutions of their own weights."""

from dataclasses import replace

from pna.paper.claims import Claim, best, gains_most, on_average
from pna.paper.experiment import Experiment, Variant
from pna.paper.models import LABELS, variants

_ALL = (
    *variants(),
    Variant("mpnn-mean-max-min", "MPNN (mean, max, min)", "mpnn-mean-max-min"),
)
_NAMES = [variant.row for variant in _ALL]

ARCHITECTURES = Experiment(
    "architectures",
    "Recurrent against standard: what the architecture does for each model",
    (
        *_ALL,
        *(replace(v, group="standard", architecture="standard") for v in _ALL),
    ),
    figure="pairs",
    groups={"": "recurrent", "standard": "standard"},
    claims=(
        Claim("PNA is first in the recurrent architecture", best("pna", _NAMES, on_average())),
        Claim("PNA is first in the standard architecture",
              best("pna standard", [f"{name} standard" for name in _NAMES], on_average())),
        Claim("Recurrence helps GAT, GIN and GCN most",
              gains_most(("gat", "gin", "gcn"),
                         tuple(n for n in LABELS if n not in ("gat", "gin", "gcn")),
                         ("", "standard"), on_average())),
    ),
)  # fmt: skip
