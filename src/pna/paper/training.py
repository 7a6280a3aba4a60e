"""What makes every run learn every task: our recipe, and each of its parts left out."""

from typing import Any

from pna.paper.claims import Claim, less, on_average, on_task
from pna.paper.experiment import Experiment, Variant
from pna.paper.recipes import RECIPES
from pna.paper.thresholds import learns_every_task

_REDRAWN, _STEADY, _PLAIN = (RECIPES[name] for name in ("redrawn", "steady", "plain"))
#: With as many steps.
_ONCE: dict[str, Any] = {"draws": 1, "epochs": _REDRAWN.draws * _REDRAWN.epochs}


def _pna(row: str, label: str, without: str = "", **changes: Any) -> Variant:
    """PNA trained by our recipe, without one of its parts, or with something changed."""
    others = {name: value for name, value in _REDRAWN.others.items() if name != without}
    return Variant(row, label, "pna", changes={"others": others, **changes})


#: What our recipe has, by the row that does without it.
_PARTS = {
    "drawn-once": "several draws of sources and features",
    "one-size": "batches of all sizes",
    "unbalanced": "losses divided by the variance of their targets",
    "unclipped": "clipped gradients",
    "constant": "learning rates that fall along a cosine",
    "unaveraged": "averaged weights",
    "default-init": "GRUs that begin by remembering",
}

TRAINING = Experiment(
    "training",
    "Why runs of the plain training fail, and what each part of ours does",
    (
        _pna("redrawn", "ours: all of it"),
        _pna("drawn-once", "inputs drawn once, as many steps", others=_STEADY.others, **_ONCE),
        _pna("one-size", "batches of one size", without="shuffle"),
        _pna("unbalanced", "losses as they are", without="balance"),
        _pna("unclipped", "gradients as they are", without="clip"),
        _pna("constant", "a constant rate", without="schedule"),
        _pna("unaveraged", "weights as they are", without="average"),
        _pna("default-init", "torch's usual initial weights", init="default"),
        _pna("published-init", "the authors' initial weights", init="published"),
        _pna("plain", "plain, as many steps",
             others=_PLAIN.others, rate=_PLAIN.rate, init=_PLAIN.init, **_ONCE),
    ),
    recipes=("redrawn",),
    ordered=True,
    claims=(
        Claim("By our recipe every run learns every task", learns_every_task("redrawn")),
        Claim("Losses divided by the variance of their targets let the Laplacian be learned",
              less("redrawn", "unbalanced", on_task("laplacian", top=None))),
        *(Claim(f"{what[:1].upper()}{what[1:]} help",
                less("redrawn", without, on_average(top=None)))
          for without, what in _PARTS.items()),
        Claim("Our recipe is better than the plain one, for as many steps",
              less("redrawn", "plain", on_average(top=None))),
    ),
)  # fmt: skip
