"""MolHIV: does a molecule inhibit the replication of HIV?

Rows have about as many parameters as the published PNA, whose layer is the simple one, without M,
towers or edge features.
"""

from dataclasses import replace
from typing import Any

from pna.paper.claims import Claim, best, less, measured_as
from pna.paper.experiment import Variant
from pna.paper.improved import NO_AVERAGE, Change, changed, improved, no_decay
from pna.paper.real_world import COMMON, RealWorld, from_benchmark, with_towers

#: Values of the nine features of an atom in OGB's encoder, as it was then.
ATOMS = (119, 4, 12, 12, 10, 6, 6, 2, 2)

_PLAIN: dict[str, Any] = {"graph_norm": False, "dropout": 0.3, "node_values": ATOMS}
_SETTINGS: dict[str, Any] = {
    "epochs": 200, "lr": 1e-2, "min_lr": 1e-4, "plateau": 21, "weight_decay": 3e-6,
    "select": "roc_auc",
}  # fmt: skip
_MEASURED = measured_as("roc_auc", "test, best epoch")


def _simple(row: str, hidden: int, **arguments: Any) -> Variant:
    return replace(from_benchmark(row, hidden, **_PLAIN, **arguments), convolution="pna-simple")


def _mpnn(row: str) -> Variant:
    made = with_towers(row, 190, 190)
    return replace(made, arguments=made.arguments | _PLAIN | {"readout": "mean"})


_PNA = _simple("pna", 80)
_IMPROVED = improved(
    _PNA, 76, "a virtual node", epochs=60, warmup=3, optimiser="adamw", weight_decay=0.05,
    arguments={"virtual_node": True},
)  # fmt: skip

_CHANGES = (
    Change("without virtual-node", "without the virtual node, wider", hidden=80,
           arguments={"virtual_node": False}),
    Change("without cosine", "schedule of the plain row",
           changes={"schedule": COMMON["schedule"], "warmup": 0}),
    NO_AVERAGE,
    no_decay(_SETTINGS["weight_decay"]),
)  # fmt: skip

_OTHERS = (
    from_benchmark("gcn", 248, **_PLAIN),
    from_benchmark("gin", 184, **_PLAIN),
    from_benchmark("gat", 248, heads=8, **_PLAIN),
    _mpnn("mpnn-sum"),
    _mpnn("mpnn-max"),
    _simple("pna-no-scalers", 134, scalers=("identity",)),
)

#: PNA has three times as many runs as the rest.
_ROWS = (*_OTHERS, replace(_PNA, members=30))

MOLHIV = RealWorld(
    "molhiv",
    "MolHIV: activity of molecules, area under the ROC curve",
    (*_ROWS, _IMPROVED, *(changed(_IMPROVED, change) for change in _CHANGES)),
    metric="roc_auc",
    loss="bce",
    members=10,
    scored="best",
    settings=_SETTINGS,
    claims=(
        Claim("PNA has the largest area",
              best("pna", [v.name for v in _OTHERS], _MEASURED)),
        Claim("Ours, not the paper's: improved, PNA has a larger area",
              less("pna improved", "pna", _MEASURED)),
    ),
)  # fmt: skip
