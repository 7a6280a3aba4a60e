"""ZINC: the constrained solubility of 12,000 molecules."""

from typing import Any

from pna.paper.claims import Claim, best, less, measured_as
from pna.paper.real_world import BASELINES, GROUPS, LABELS, RealWorld, with_towers

_LAST = "test, last epoch"
#: Trained with edge features, plateaus are waited for longer.
_EDGES: dict[str, Any] = {"plateau": 21, "weight_decay": 3e-6}
_NONE: dict[str, Any] = {"weight_decay": 3e-6}

ZINC = RealWorld(
    "zinc",
    "ZINC: solubility of molecules, mean absolute error",
    (
        *BASELINES,
        *(with_towers(row, 110, 80, weight_decay=1e-5) for row in ("mpnn-sum", "mpnn-max")),
        *(with_towers(row, 100, 70, 50, **_EDGES) for row in ("mpnn-sum", "mpnn-max")),
        with_towers("pna-no-scalers", 95, 90, **_NONE),
        with_towers("pna-no-scalers", 90, 80, 50, **_EDGES),
        with_towers("pna", 75, 70, **_NONE),
        with_towers("pna", 70, 60, 50, **_EDGES),
        with_towers("mpnn-sum", 110, 110, 40, layers=16, group="deep", **_EDGES),
        with_towers("pna", 70, 70, 40, layers=16, group="deep", **_EDGES),
    ),
    groups=GROUPS | {"deep": "edge features, 16 layers"},
    metric="mae",
    loss="mae_in_units",
    claims=(
        Claim("PNA has the least error without edge features",
              best("pna", list(LABELS), measured_as("mae", _LAST))),
        Claim("PNA has the least error with edge features",
              best("pna edges", [f"{row} edges" for row in LABELS], measured_as("mae", _LAST))),
        Claim("Scalers help, with edge features",
              less("pna edges", "pna-no-scalers edges", measured_as("mae", _LAST))),
        Claim("PNA of 16 layers is ahead of MPNN-sum of 16 layers",
              less("pna deep", "mpnn-sum deep", measured_as("mae", _LAST))),
    ),
)  # fmt: skip
