"""PNA at its best on ZINC: which ingredients of deep models pay, chosen on validation.

`INGREDIENTS` trains a deep block with each ingredient left out or added. `ZINC_BEST` trains the
recipe that `choose` finds in those results, for longer and in two sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pna.paper.claims import measured_as
from pna.paper.experiment import PlannedRun, Variant
from pna.paper.improved import Change, changed
from pna.paper.real_world import RealWorld
from pna.paper.results import SCORES
from pna.paper.scores import Estimate, Scores

_JUDGED = measured_as("mae", "validation, last epoch")

#: The block before anything is chosen, with at most 100,000 parameters.
BLOCK = Variant(
    "pna block",
    "PNA, eight layers with feed-forward blocks and edge states",
    "pna",
    "",
    "stacked",
    40,
    {
        "layers": 8, "towers": 5, "divide_input": True, "encode_edges": False, "edge_width": 14,
        "edge_updates": True, "feed_forward": 1.0, "dropout_first": True,
    },
    {
        "epochs": 400, "lr": 2e-3, "schedule": "cosine", "warmup": 10, "optimiser": "adamw",
        "weight_decay": 0.03, "average": 0.999, "batch_size": 64, "clip": 1.0,
    },
    walks=(20, 8),
)  # fmt: skip

#: Each leaves one ingredient out, or adds one; at most 100,000 parameters.
CHANGES = (
    Change("without feed-forward", "without feed-forward blocks, wider", hidden=45,
           arguments={"feed_forward": 0.0, "edge_width": 16}),
    Change("without edge-states", "edge states are not updated",
           arguments={"edge_updates": False}),
    Change("without walks", "without random walks", walks=(0, 0)),
    Change("without edge-walks", "without random walks of edges", walks=(20, 0)),
    Change("with laplacian", "with eigenvectors and heat kernels of the Laplacian",
           laplacian=(8, 4)),
    Change("with layer-norm", "layer norm instead of batch norm", arguments={"norm": "layer"}),
    Change("with virtual-node", "with a virtual node, narrower", hidden=35,
           arguments={"virtual_node": True}),
    Change("with dropout", "with dropout of 0.05", arguments={"dropout": 0.05}),
    Change("with stochastic-depth", "with stochastic depth of 0.1",
           arguments={"stochastic_depth": 0.1}),
    Change("with small-batches", "batches of 32 graphs", changes={"batch_size": 32}),
    Change("without average", "without averaged weights", changes={"average": None}),
)  # fmt: skip

INGREDIENTS = RealWorld(
    "zinc-ingredients",
    "ZINC: what each ingredient of a deep block is worth, mean absolute error",
    (BLOCK, *(changed(BLOCK, change) for change in CHANGES)),
    benchmark="zinc",
    metric="mae",
    loss="mae_in_units",
    seed=100,
)


def choose(scores: Scores) -> tuple[Change, ...]:
    """The changes to `BLOCK` that its best recipe has, from scores of `INGREDIENTS`.

    A change is taken if its mean validation error at the last epoch is lower than that of the
    block by more than the standard error of the difference, and no member broke. Raises if a
    population is missing.
    """
    found = {}
    for variant in INGREDIENTS.variants:
        if variant.name not in scores.populations:
            raise ValueError(
                f"got no results of {variant.name!r}, expected all of {INGREDIENTS.name}; run "
                f"pna reproduce {INGREDIENTS.name} first, with the same options"
            )
        judged = _JUDGED(scores, variant.name)
        is_whole = len(judged.values) == len(scores.populations[variant.name].members)
        found[variant.name] = judged if is_whole else Estimate.of([math.inf])
    block = found[BLOCK.name]
    return tuple(c for c in CHANGES if _is_lower(found[changed(BLOCK, c).name], block))


def _is_lower(change: Estimate, block: Estimate) -> bool:
    return change.mean < block.mean - math.hypot(change.error, block.error)


def together(variant: Variant, changes: Sequence[Change]) -> Variant:
    """A variant with several changes. It has the least width of those that they ask for."""
    widths = [change.hidden for change in changes if change.hidden is not None]
    for change in changes:
        variant = changed(variant, change)
    return replace(variant, hidden=min(widths, default=variant.hidden))


@dataclass(frozen=True)
class Best(RealWorld):
    """Rows with the changes to `BLOCK` that another experiment has chosen. Until it is `prepared`,
    they have none."""

    choice: tuple[Change, ...] | None = field(default=None, compare=False)

    def prepared(self, results: Path, protocol: str) -> Best:
        if self.choice is not None:
            return self
        path = results / INGREDIENTS.name / f"{protocol}-{INGREDIENTS.recipes[0]}" / SCORES
        if not path.is_file():
            raise ValueError(
                f"got no results of {INGREDIENTS.name} in {results}, expected them to choose the "
                f"recipe; run pna reproduce {INGREDIENTS.name} first, with the same options"
            )
        return replace(self, choice=choose(Scores.load(path)))

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        block = together(BLOCK, self.choice or ())
        twice = variant.group == _LARGE
        best = replace(
            variant,
            hidden=block.hidden * (2 if twice else 1),
            walks=block.walks,
            laplacian=block.laplacian,
            arguments=block.arguments | variant.arguments,
            changes=block.changes | variant.changes,
        )
        return replace(super()._trial(best, protocol, recipe, members, quick), variant=variant)


_LARGE = "large"
_LONG: dict[str, Any] = {"epochs": 1000, "warmup": 20}

ZINC_BEST = Best(
    "zinc-best",
    "ZINC: PNA at its best, mean absolute error",
    (
        Variant("pna best", "PNA at its best", "pna", "", "stacked", changes=_LONG),
        Variant("pna best", "PNA at its best", "pna", _LARGE, "stacked",
                arguments={"layers": 10, "edge_width": 24}, changes=_LONG),
    ),
    groups={"": "100,000 parameters", _LARGE: "500,000 parameters"},
    benchmark="zinc",
    metric="mae",
    loss="mae_in_units",
    seed=200,
)  # fmt: skip

#: In the order in which they are run.
EXPERIMENTS = (INGREDIENTS, ZINC_BEST)
