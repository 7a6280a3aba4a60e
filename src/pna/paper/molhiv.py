"""MolHIV: does a molecule inhibit the replication of HIV?

Rows have about as many parameters as the published PNA, whose layer is the simple one, without M,
towers or edge features.
"""

from dataclasses import replace
from typing import Any

from pna.paper.claims import Claim, best, less, measured_as
from pna.paper.experiment import Variant
from pna.paper.improved import improved
from pna.paper.real_world import RealWorld, from_benchmark, with_towers

#: Values of the nine features of an atom in OGB's encoder, as it was then.
ATOMS = (119, 4, 12, 12, 10, 6, 6, 2, 2)

_PLAIN: dict[str, Any] = {"graph_norm": False, "dropout": 0.3}
_MEASURED = measured_as("roc_auc", "test, best epoch")


def _simple(row: str, hidden: int, **arguments: Any) -> Variant:
    return replace(from_benchmark(row, hidden, **_PLAIN, **arguments), convolution="pna-simple")


def _mpnn(row: str) -> Variant:
    made = with_towers(row, 190, 190, **_PLAIN)
    return replace(made, arguments=made.arguments | {"readout": "mean"})


def _of_atoms(variant: Variant) -> Variant:
    """Kinds of atoms, and as many columns of numbers as there are steps of walks."""
    values = (*ATOMS, *[0] * variant.walks[0])
    return replace(variant, arguments=variant.arguments | {"node_values": values})


_PNA = _simple("pna", 80)
_IMPROVED = improved(
    _PNA, 77, walks=(16, 0), epochs=100, lr=2e-3, min_lr=1e-5, optimiser="adamw",
    weight_decay=1e-2, arguments={"virtual_node": True, "dropout": 0.4},
)  # fmt: skip

_OTHERS = (
    from_benchmark("gcn", 248, **_PLAIN),
    from_benchmark("gin", 184, **_PLAIN),
    from_benchmark("gat", 248, heads=8, **_PLAIN),
    _mpnn("mpnn-sum"),
    _mpnn("mpnn-max"),
    _simple("pna-no-scalers", 134, scalers=("identity",)),
)

MOLHIV = RealWorld(
    "molhiv",
    "MolHIV: activity of molecules, area under the ROC curve",
    tuple(map(_of_atoms, (*_OTHERS, _PNA, _IMPROVED))),
    metric="roc_auc",
    loss="bce",
    members=10,
    settings={"epochs": 200, "lr": 1e-2, "min_lr": 1e-4, "plateau": 21, "weight_decay": 3e-6,
              "select": "roc_auc"},
    claims=(
        Claim("PNA has the largest area",
              best("pna", [v.name for v in _OTHERS], _MEASURED)),
        Claim("Ours, not the paper's: improved, PNA has a larger area",
              less("pna improved", "pna", _MEASURED)),
    ),
)  # fmt: skip
