"""PNA made better than in the paper, within the parameters of its plain row, and what each
ingredient does. Whatever is chosen here is chosen on validation, never on the test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pna.paper.experiment import Variant
from pna.paper.real_world import COMMON

ROW, LABEL = "pna improved", "PNA, improved"

# On ZINC the last layer is narrower than the others, and so has no residual: where graphs read the
# sum of all layers, training begins at a loss many times as large.

#: How the rows are trained: for a known number of epochs, and an average of the weights is kept.
TRAINING: dict[str, Any] = {"schedule": "cosine", "warmup": 5, "average": 0.999}


@dataclass(frozen=True)
class Change:
    """What a row has instead, where an ingredient is left out or one more is tried."""

    name: str  # such as "without walks"
    label: str
    hidden: int | None = None  # if not that of the improved row, as the next
    walks: tuple[int, int] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


#: What rows of any experiment do without, whose plain ones have the usual rate and schedule.
NO_COSINE = Change(
    "without cosine",
    "rate and schedule of the plain row",
    changes={name: COMMON[name] for name in ("schedule", "lr", "epochs")} | {"warmup": 0},
)
NO_AVERAGE = Change("without average", "without averaged weights", changes={"average": None})


def no_decay(plain: float) -> Change:
    """AdamW and its weight decay left out, for Adam and that of the plain row."""
    changes = {"optimiser": "adam", "weight_decay": plain}
    return Change("without decay", "weight decay of the plain row", changes=changes)


def improved(
    plain: Variant,
    hidden: int,
    *,
    walks: tuple[int, int] = (0, 0),
    arguments: Mapping[str, Any],
    **changes: Any,
) -> Variant:
    """A row beside the plain one: another width and features, other arguments of the model, and
    other `changes` to its training than `TRAINING`."""
    return replace(
        plain,
        row=ROW,
        label=LABEL,
        hidden=hidden,
        walks=walks,
        arguments=plain.arguments | dict(arguments),
        changes=plain.changes | TRAINING | changes,
    )


def changed(whole: Variant, change: Change) -> Variant:
    """The improved row with one thing changed."""
    return replace(
        whole,
        row=f"{whole.row} {change.name}",
        label=f"{whole.label}, {change.label}",
        hidden=whole.hidden if change.hidden is None else change.hidden,
        walks=whole.walks if change.walks is None else change.walks,
        arguments=whole.arguments | dict(change.arguments),
        changes=whole.changes | dict(change.changes),
    )
