"""MNIST and CIFAR10 as graphs of superpixels: which of ten classes is it?"""

from typing import Any

from pna.paper.claims import Claim, best, less, measured_as
from pna.paper.experiment import Variant
from pna.paper.improved import improved
from pna.paper.real_world import BASELINES, GROUPS, LABELS, SEE_EDGES, RealWorld, with_towers

_LAST = "test, last epoch"
_SETTINGS: dict[str, Any] = {"weight_decay": 3e-6}
_MEASURED = measured_as("accuracy", _LAST)

_PLAIN = with_towers("pna", 75, 70, 50, dropout=0.3, **_SETTINGS)

_ROWS = (
    *BASELINES,
    *(with_towers(row, 110, 90, dropout=0.2, **_SETTINGS) for row in ("mpnn-sum", "mpnn-max")),
    *(with_towers(row, 110, 90, 20, dropout=0.2, **_SETTINGS) for row in ("mpnn-sum", "mpnn-max")),
    with_towers("pna-no-scalers", 95, 90, dropout=0.1, **_SETTINGS),
    with_towers("pna-no-scalers", 95, 90, 50, dropout=0.3, **_SETTINGS),
    with_towers("pna", 75, 70, dropout=0.1, **_SETTINGS),
    _PLAIN,
)

#: Edges have but one number: what wide embeddings of it cost buys more layers.
_BETTER: dict[str, Any] = {
    "layers": 8, "out_channels": 45, "edge_width": 8, "virtual_node": True, "dropout": 0.1,
}  # fmt: skip
#: Digits are turned a little, photographs also seen in a mirror. Rows and columns of pixels are 0
#: to 27 divided by 28, and 0 to 31 divided by 32.
_DIGITS: dict[str, Any] = {"turn": 15.0, "centre": ((1, 27 / 56), (2, 27 / 56))}
_PHOTOGRAPHS: dict[str, Any] = {
    "mirror": ((4, 31 / 32),), "turn": 10.0, "centre": ((3, 31 / 64), (4, 31 / 64)),
}  # fmt: skip


def _improved(**arguments: Any) -> Variant:
    training: dict[str, Any] = {"optimiser": "adamw", "weight_decay": 1e-2}
    return improved(_PLAIN, 50, epochs=100, arguments=_BETTER | arguments, **training)


def _experiment(name: str, title: str, better: Variant) -> RealWorld:
    others, seeing = ([n for n in of if not n.startswith("pna")] for of in (LABELS, SEE_EDGES))
    return RealWorld(
        name,
        title,
        (*_ROWS, better),
        groups=GROUPS,
        metric="accuracy",
        loss="cross_entropy",
        claims=(
            Claim("PNA without scalers is ahead of every other model but PNA",
                  best("pna-no-scalers", others, _MEASURED)),
            Claim("The same with edge features",
                  best("pna-no-scalers edges", seeing, _MEASURED)),
            Claim("Ours, not the paper's: improved, PNA is more often right",
                  less("pna improved edges", "pna edges", _MEASURED)),
        ),
    )  # fmt: skip


MNIST = _experiment("mnist", "MNIST superpixels: accuracy of ten digits", _improved(**_DIGITS))
CIFAR10 = _experiment(
    "cifar10", "CIFAR10 superpixels: accuracy of ten classes", _improved(**_PHOTOGRAPHS)
)
