"""MolHIV: does a molecule inhibit the replication of HIV?

Rows have about as many parameters as the published PNA, whose layer is the simple one, without M,
towers or edge features.
"""

from dataclasses import replace
from typing import Any

from pna.paper.claims import Claim, best, measured_as
from pna.paper.experiment import Variant
from pna.paper.real_world import LABELS, RealWorld, from_benchmark, with_towers

#: Values of the nine features of an atom in OGB's encoder, as it was then.
ATOMS = (119, 4, 12, 12, 10, 6, 6, 2, 2)

_PLAIN: dict[str, Any] = {"graph_norm": False, "dropout": 0.3}


def _simple(row: str, hidden: int, **arguments: Any) -> Variant:
    return replace(from_benchmark(row, hidden, **_PLAIN, **arguments), convolution="pna-simple")


def _mpnn(row: str) -> Variant:
    made = with_towers(row, 190, 190, **_PLAIN)
    return replace(made, arguments=made.arguments | {"readout": "mean"})


def _of_atoms(variant: Variant) -> Variant:
    return replace(variant, arguments=variant.arguments | {"node_values": ATOMS})


MOLHIV = RealWorld(
    "molhiv",
    "MolHIV: activity of molecules, area under the ROC curve",
    tuple(map(_of_atoms, (
        from_benchmark("gcn", 248, **_PLAIN),
        from_benchmark("gin", 184, **_PLAIN),
        from_benchmark("gat", 248, heads=8, **_PLAIN),
        _mpnn("mpnn-sum"),
        _mpnn("mpnn-max"),
        _simple("pna-no-scalers", 134, scalers=("identity",)),
        _simple("pna", 80),
    ))),
    metric="roc_auc",
    loss="bce",
    members=10,
    settings={"epochs": 200, "lr": 1e-2, "min_lr": 1e-4, "plateau": 21, "weight_decay": 3e-6,
              "select": "roc_auc"},
    claims=(
        Claim("PNA has the largest area",
              best("pna", list(LABELS), measured_as("roc_auc", "test, best epoch"))),
    ),
)  # fmt: skip
