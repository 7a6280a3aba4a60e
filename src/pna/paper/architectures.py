"""The recurrent architecture against eight convolutions of their own weights, and its parts."""

from dataclasses import replace

from pna.paper.claims import Claim, best, gains_most, on_average, order_kept
from pna.paper.experiment import Experiment, Variant
from pna.paper.models import LABELS, variants

_ALL = (
    *variants(),
    Variant("mpnn-mean-max-min", "MPNN (mean, max, min)", "mpnn-mean-max-min"),
)
_NAMES = [variant.row for variant in _ALL]
_UNSCALED = tuple(name for name in LABELS if name != "pna")
_SIMPLE = ("gat", "gin", "gcn")
_OTHERS = tuple(name for name in LABELS if name not in _SIMPLE)

ARCHITECTURES = Experiment(
    "architectures",
    "Recurrent against standard: what the architecture and its parts do for each model",
    (
        *_ALL,
        *(replace(v, group="standard", architecture="standard") for v in _ALL),
        *variants(group="no-gru", arguments={"gru": False}),
        *variants(group="mean-readout", arguments={"readout": "mean"}),
    ),
    figure="pairs",
    groups={
        "": "recurrent",
        "standard": "standard",
        "no-gru": "without the GRU",
        "mean-readout": "with a mean for Set2Set",
    },
    claims=(
        Claim("PNA is first in the recurrent architecture", best("pna", _NAMES, on_average())),
        Claim("PNA is first in the standard architecture",
              best("pna standard", [f"{name} standard" for name in _NAMES], on_average())),
        Claim("The ranking of the models is the same in both",
              order_kept(_NAMES, ("", "standard"), on_average())),
        Claim("The GRU helps GAT, GIN and GCN most",
              gains_most(_SIMPLE, _OTHERS, ("", "no-gru"), on_average())),
        Claim("Set2Set helps the models without scalers most",
              gains_most(_UNSCALED, ("pna",), ("", "mean-readout"), on_average())),
    ),
)  # fmt: skip
