"""Rows improved within the parameters of their plain row, and ablations of every ingredient. All
choices were made on validation sets, never on test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pna.paper.experiment import Variant
from pna.paper.real_world import COMMON

IMPROVED = "improved"  # in the names of rows

# On ZINC the last layer is narrower than the others, so it has no residual connection. With a
# readout of the sum of all layers, training starts at a loss many times as large.

#: Training of the rows: a fixed number of epochs, and an average of the weights.
TRAINING: dict[str, Any] = {"schedule": "cosine", "warmup": 5, "average": 0.999}


@dataclass(frozen=True)
class Change:
    """An ablation of the improved row: an ingredient left out, or one more added."""

    name: str  # such as "without walks"
    label: str
    hidden: int | None = None  # None: that of the improved row; likewise `walks` and `laplacian`
    walks: tuple[int, int] | None = None
    laplacian: tuple[int, int] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


#: Ablations for experiments whose plain rows have the usual learning rate and schedule.
NO_COSINE = Change(
    "without cosine",
    "rate and schedule of the plain row",
    changes={name: COMMON[name] for name in ("schedule", "lr", "epochs")} | {"warmup": 0},
)
NO_AVERAGE = Change("without average", "without averaged weights", changes={"average": None})


def no_decay(plain: float) -> Change:
    """Adam and the weight decay of the plain row instead of AdamW and its weight decay."""
    changes = {"optimiser": "adam", "weight_decay": plain}
    return Change("without decay", "weight decay of the plain row", changes=changes)


def improved(
    plain: Variant,
    hidden: int,
    ingredients: str,
    *,
    walks: tuple[int, int] = (0, 0),
    arguments: Mapping[str, Any],
    **changes: Any,
) -> Variant:
    """The improved row: the plain one with another width, with random walks as features, with other
    arguments of the model, and with `TRAINING` and further `changes` to its training. Its label
    names the `ingredients` beside `TRAINING` and AdamW."""
    return replace(
        plain,
        row=f"{plain.row} {IMPROVED}",
        label=f"{plain.label} + {ingredients}, AdamW, cosine, averaging",
        hidden=hidden,
        walks=walks,
        arguments=plain.arguments | dict(arguments),
        changes=plain.changes | TRAINING | changes,
    )


def changed(variant: Variant, change: Change) -> Variant:
    """The improved row with one change."""
    return replace(
        variant,
        row=f"{variant.row} {change.name}",
        label=f"… {change.label}",
        hidden=variant.hidden if change.hidden is None else change.hidden,
        walks=variant.walks if change.walks is None else change.walks,
        laplacian=variant.laplacian if change.laplacian is None else change.laplacian,
        arguments=variant.arguments | dict(change.arguments),
        changes=variant.changes | dict(change.changes),
    )
