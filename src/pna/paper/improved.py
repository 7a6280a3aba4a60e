"""PNA made better than in the paper, within the parameters of its plain row, and what each
ingredient does. Whatever is chosen here is chosen on validation, never on the test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pna.paper.experiment import Variant

ROW, LABEL = "pna improved", "PNA, improved"

#: How the rows are trained: for a known number of epochs, and an average of the weights is kept.
TRAINING: dict[str, Any] = {"schedule": "cosine", "warmup": 5, "average": 0.999}


@dataclass(frozen=True)
class Ingredient:
    """Something that improves PNA, by what a row has where it is left out."""

    name: str
    label: str
    hidden: int | None = None  # if not that of the improved row, as the next
    walks: tuple[int, int] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


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


def without(whole: Variant, ingredient: Ingredient) -> Variant:
    """The improved row with one ingredient left out."""
    return replace(
        whole,
        row=f"{whole.row} without {ingredient.name}",
        label=f"{whole.label}, without {ingredient.label}",
        hidden=whole.hidden if ingredient.hidden is None else ingredient.hidden,
        walks=whole.walks if ingredient.walks is None else ingredient.walks,
        arguments=whole.arguments | dict(ingredient.arguments),
        changes=whole.changes | dict(ingredient.changes),
    )
