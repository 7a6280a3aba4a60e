"""MNIST and CIFAR10 as graphs of superpixels: which of ten classes is it?"""

from typing import Any

from pna.paper.claims import Claim, best, measured_as
from pna.paper.real_world import BASELINES, GROUPS, LABELS, RealWorld, with_towers

_LAST = "test, last epoch"
_SETTINGS: dict[str, Any] = {"weight_decay": 3e-6}
_MEASURED = measured_as("accuracy", _LAST)

_ROWS = (
    *BASELINES,
    *(with_towers(row, 110, 90, dropout=0.2, **_SETTINGS) for row in ("mpnn-sum", "mpnn-max")),
    *(with_towers(row, 110, 90, 20, dropout=0.2, **_SETTINGS) for row in ("mpnn-sum", "mpnn-max")),
    with_towers("pna-no-scalers", 95, 90, dropout=0.1, **_SETTINGS),
    with_towers("pna-no-scalers", 95, 90, 50, dropout=0.3, **_SETTINGS),
    with_towers("pna", 75, 70, dropout=0.1, **_SETTINGS),
    with_towers("pna", 75, 70, 50, dropout=0.3, **_SETTINGS),
)


def _experiment(name: str, title: str) -> RealWorld:
    others = [row for row in LABELS if not row.startswith("pna")]
    return RealWorld(
        name,
        title,
        _ROWS,
        groups=GROUPS,
        metric="accuracy",
        loss="cross_entropy",
        claims=(
            Claim("PNA without scalers is ahead of every other model but PNA",
                  best("pna-no-scalers", others, _MEASURED)),
            Claim("The same with edge features",
                  best("pna-no-scalers edges", [f"{row} edges" for row in others], _MEASURED)),
        ),
    )  # fmt: skip


MNIST = _experiment("mnist", "MNIST superpixels: accuracy of ten digits")
CIFAR10 = _experiment("cifar10", "CIFAR10 superpixels: accuracy of ten classes")
