"""Graphs that no choice has seen: each model's recipe is chosen on validation, then tested once.

`FRESH_CHOICE` trains every model by each of our recipes and measures validation graphs alone.
`FRESH_TEST` trains every model anew, by the recipe that `choose` finds in those results.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pna.data.multitask.labels import SIX
from pna.paper.claims import Claim, best, best_everywhere, less, on_average, on_task, overall
from pna.paper.experiment import Experiment, PlannedRun, Variant, variants
from pna.paper.models import LABELS
from pna.paper.results import SCORES, load_for_choice
from pna.paper.scores import Scores
from pna.paper.synthetic import MULTITASK
from pna.paper.thresholds import learns_every_task

#: Of the graphs, of the members that choose, and of those that are tested. Others use seeds near 0.
GRAPH_SEED, CHOICE_SEED, TEST_SEED = 2718, 1000, 2000

#: Recipes of which each model gets the best in validation. Of equals it gets the first.
CANDIDATES = ("redrawn", "tuned", "steady")

FRESH_CHOICE = Experiment(
    "fresh-choice",
    "Which of our recipes suits each model, on validation graphs that were not used before",
    tuple(v for name in CANDIDATES for v in variants(group=name, recipe=name)),
    splits=("validation",),
    protocols=MULTITASK.protocols,
    recipes=("candidates",),
    members=5,
    seed=CHOICE_SEED,
    graph_seed=GRAPH_SEED,
    figure="pairs",
    groups={name: name for name in CANDIDATES},
)


def choose(scores: Scores, broken: Collection[str] = ()) -> dict[str, str]:
    """The recipe of each model, from scores of `FRESH_CHOICE`.

    It has the least mean of log10 errors over the tasks and all members, on validation graphs. A
    recipe with a member that broke has an infinite error: its population is among the `broken`.
    Models without scores of every candidate are left out.
    """
    chosen = {}
    for model in LABELS:
        names = {recipe: f"{model} {recipe}" for recipe in CANDIDATES}
        if {*names.values()} <= {*scores.populations, *broken}:
            errors = {
                recipe: math.inf
                if name in broken
                else scores.average(name, "validation", top=None).mean
                for recipe, name in names.items()
            }
            chosen[model] = min(errors, key=errors.__getitem__)
    return chosen


@dataclass(frozen=True)
class Chosen(Experiment):
    """An experiment whose models are trained by the recipes that another has chosen. Until it is
    `prepared`, the first candidate stands for the choice."""

    choice: Mapping[str, str] | None = field(default=None, compare=False)

    def prepared(self, results: Path, protocol: str) -> Chosen:
        if self.choice is not None:
            return self
        folder = results / FRESH_CHOICE.name / f"{protocol}-{FRESH_CHOICE.recipes[0]}"
        is_there = (folder / SCORES).is_file()
        return replace(self, choice=choose(*load_for_choice(folder)) if is_there else {})

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        model = variant.trained_as or variant.convolution
        if self.choice is None:
            how = CANDIDATES[0]
        elif model in self.choice:
            how = self.choice[model]
        else:
            raise ValueError(
                f"got no results of {FRESH_CHOICE.name} for {model} by all of "
                f"{', '.join(CANDIDATES)}, expected them to choose its recipe; run pna reproduce "
                f"{FRESH_CHOICE.name} first, with the same options"
            )
        trial = super()._trial(replace(variant, recipe=how), protocol, recipe, members, quick)
        return replace(trial, variant=variant)


_ALL = list(LABELS)
_EQUAL = "equal"  # the group of models that have the settings of another

FRESH_TEST = Chosen(
    "fresh-test",
    "Graphs that were not used before, each model by the recipe that validation chose for it",
    (
        *variants(),
        *variants("pna", group=_EQUAL, trained_as="pna-no-scalers"),
        *variants("pna-no-scalers", group=_EQUAL, trained_as="pna"),
    ),
    protocols=MULTITASK.protocols,
    recipes=("chosen",),
    members=30,
    seed=TEST_SEED,
    graph_seed=GRAPH_SEED,
    groups={"": "its own settings", _EQUAL: "the other's settings"},
    claims=(
        Claim("PNA has the lowest error on the average of the tasks",
              best("pna", _ALL, on_average(top=None))),
        Claim("PNA has the least mean error, as the paper's box plots show it",
              best("pna", _ALL, overall(top=None))),
        Claim("PNA has the lowest error on every task",
              best_everywhere("pna", _ALL, {task: on_task(task, top=None) for task in SIX})),
        Claim("Scalers help: PNA is ahead of PNA without scalers, both with PNA's settings",
              less("pna", f"pna-no-scalers {_EQUAL}", on_average(top=None))),
        Claim("Scalers help: the same, both with the settings of PNA without scalers",
              less(f"pna {_EQUAL}", "pna-no-scalers", on_average(top=None))),
        Claim("Several aggregators help: PNA without scalers is ahead of every model with one",
              best("pna-no-scalers", _ALL[1:], on_average(top=None))),
        Claim("Ours, not the paper's: no run of PNA is stuck on a task",
              learns_every_task("pna")),
    ),
)  # fmt: skip

#: In the order in which they are run.
EXPERIMENTS = (FRESH_CHOICE, FRESH_TEST)
