"""What makes every run learn every task: the steady recipe, and each of its parts left out."""

from typing import Any

from pna.paper.bars import learns_every_task
from pna.paper.claims import Claim, less, on_average, on_task
from pna.paper.experiment import Experiment, Variant
from pna.paper.recipes import RECIPES

_STEADY = dict(RECIPES["steady"].others)


def _pna(row: str, label: str, without: str = "", **changes: Any) -> Variant:
    """PNA trained by the steady recipe, without one of its parts, or with something changed."""
    others = {name: value for name, value in _STEADY.items() if name != without}
    return Variant(
        row, label, "pna", changes={"others": others | changes.pop("others", {})} | changes
    )


_PLAIN = RECIPES["plain"]

#: What the steady recipe has, by the row that does without it.
_PARTS = {
    "one-size": "batches of all sizes",
    "unbalanced": "losses divided by the variance of their targets",
    "unclipped": "clipped gradients",
    "constant": "learning rates that fall along a cosine",
    "unaveraged": "averaged weights",
    "published-init": "torch's usual initial weights",
}

TRAINING = Experiment(
    "training",
    "Why runs of the plain training fail, and what each part of the steady one does",
    (
        _pna("steady", "steady: all of it"),
        _pna("one-size", "batches of one size", without="shuffle"),
        _pna("unbalanced", "losses as they are", without="balance"),
        _pna("unclipped", "gradients as they are", without="clip"),
        _pna("constant", "a constant rate", without="schedule"),
        _pna("unaveraged", "weights as they are", without="average"),
        _pna("published-init", "the authors' initial weights", init="published"),
        Variant("plain", "plain, for as many epochs", "pna",
                changes={"others": dict(_PLAIN.others), "rate": _PLAIN.rate, "init": _PLAIN.init}),
    ),
    ordered=True,
    claims=(
        Claim("By the steady recipe every run learns every task", learns_every_task("steady")),
        Claim("Losses divided by the variance of their targets let the Laplacian be learned",
              less("steady", "unbalanced", on_task("laplacian", top=None))),
        *(Claim(f"{what[:1].upper()}{what[1:]} help",
                less("steady", without, on_average(top=None)))
          for without, what in _PARTS.items()),
        Claim("The steady recipe is better than the plain one, for as many epochs",
              less("steady", "plain", on_average(top=None))),
    ),
)  # fmt: skip
