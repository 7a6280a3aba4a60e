"""PNA at its best: which ingredients of later models pay on ZINC, and what they give elsewhere.

`INGREDIENTS` trains a block with each ingredient left out or added. The `Best` experiments
train the recipe that `choose` finds in those results, for longer and on other sets. On MolHIV,
validation also chooses among the rows of `MOLHIV_CHOICE`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pna.paper.claims import Claim, measured_as, on_average
from pna.paper.experiment import Experiment, PlannedRun, Variant, variants
from pna.paper.improved import Change, changed
from pna.paper.real_world import RealWorld
from pna.paper.recipes import RECIPES
from pna.paper.results import SCORES, load_for_choice
from pna.paper.scores import Estimate, Scores
from pna.paper.superpixels import DIGITS, PHOTOGRAPHS
from pna.paper.thresholds import within

_STEP, _ROUNDING = 5, 1e-9  # of widths

#: Decides which changes are taken.
JUDGED = measured_as("mae", "validation, last epoch")


def _narrowing(variant: Variant) -> Variant:
    """With a last layer that is narrower by a feature for each tower. It then has no residual
    connection, by which the sum of all nodes would begin with large errors."""
    out = variant.hidden - variant.arguments["towers"]
    return replace(variant, arguments={**variant.arguments, "out_channels": out})


#: The block before anything is chosen, with at most 100,000 parameters.
BLOCK = _narrowing(Variant(
    "pna block",
    "PNA, five layers with edge states",
    "pna",
    "",
    "stacked",
    60,
    {
        "layers": 5, "towers": 5, "divide_input": True, "norm_before_mixing": True,
        "graph_norm": True, "encode_edges": False, "edge_width": 14, "edge_updates": True,
    },
    {
        "epochs": 400, "lr": 2e-3, "schedule": "cosine", "warmup": 10, "optimiser": "adamw",
        "weight_decay": 0.03, "average": 0.999, "batch_size": 64,
    },
    walks=(20, 8),
))  # fmt: skip

#: Each leaves one ingredient out, or adds one; at most 100,000 parameters.
CHANGES = (
    Change("without edge-states", "edge states are not updated, wider", hidden=65,
           arguments={"edge_updates": False}),
    Change("without walks", "without random walks", walks=(0, 0)),
    Change("without edge-walks", "without random walks of edges", walks=(20, 0)),
    Change("with laplacian", "with eigenvectors and heat kernels of the Laplacian",
           laplacian=(8, 4)),
    Change("with depth", "eight layers, narrower", hidden=45, arguments={"layers": 8}),
    Change("with feed-forward", "with feed-forward blocks, narrower", hidden=50,
           arguments={"feed_forward": 1.0}),
    Change("with early mixing", "towers are mixed before the norm",
           arguments={"norm_before_mixing": False}),
    Change("without graph-norm", "without the norm by the size of a graph",
           arguments={"graph_norm": False}),
    Change("with layer-norm", "layer norm instead of batch norm", arguments={"norm": "layer"}),
    Change("with virtual-node", "with a virtual node, narrower", hidden=55,
           arguments={"virtual_node": True}),
    Change("with dropout", "with dropout of 0.05", arguments={"dropout": 0.05}),
    Change("with stochastic-depth", "with stochastic depth of 0.1",
           arguments={"stochastic_depth": 0.1}),
    Change("with small-batches", "batches of 32 graphs", changes={"batch_size": 32}),
    Change("with clipping", "gradients clipped at 1", changes={"clip": 1.0}),
    Change("without average", "without averaged weights", changes={"average": None}),
    Change("without scalers", "without scalers, wider", hidden=70,
           arguments={"scalers": ("identity",)}),
    Change("with sum", "with the sum as a fifth aggregator, narrower", hidden=55,
           arguments={"aggregators": ("mean", "std", "max", "min", "sum")}),
)  # fmt: skip

INGREDIENTS = RealWorld(
    "zinc-ingredients",
    "ZINC: what each ingredient of a block is worth, mean absolute error",
    (BLOCK, *(_narrowing(changed(BLOCK, change)) for change in CHANGES)),
    benchmark="zinc",
    metric="mae",
    loss="mae_in_units",
    seed=100,
)


def choose(scores: Scores, broken: Collection[str] = ()) -> tuple[Change, ...]:
    """The changes to `BLOCK` that its best recipe has, from scores of `INGREDIENTS`.

    A change is taken if its mean validation error at the last epoch is lower than that of the
    block by more than the standard error of the difference, and no member broke: it is not among
    the `broken` populations. Raises if a population is missing, or the block broke.
    """
    names = {variant.name for variant in INGREDIENTS.variants} - {*broken}
    missing = sorted(names - scores.populations.keys())
    if missing:
        raise ValueError(
            f"got no results of {', '.join(missing)}, expected all of {INGREDIENTS.name}; run "
            f"pna reproduce {INGREDIENTS.name} first, with the same options"
        )
    if BLOCK.name not in names:
        raise ValueError(
            f"got runs of {BLOCK.name!r} that broke, expected numbers to compare others with; "
            "give it a lower learning rate, and run all of them again"
        )
    block = JUDGED(scores, BLOCK.name)

    def is_lower(change: Estimate) -> bool:
        return change.mean < block.mean - math.hypot(change.error, block.error)

    rows = ((change, changed(BLOCK, change).name) for change in CHANGES)
    return tuple(c for c, name in rows if name in names and is_lower(JUDGED(scores, name)))


def together(variant: Variant, changes: Sequence[Change]) -> Variant:
    """A variant with several changes. Each multiplies the width by as much as alone, and the result
    is rounded down to a multiple of five. Every encoding is as the changes to it ask for it."""
    ratios = [change.hidden / variant.hidden for change in changes if change.hidden is not None]
    width = math.floor(variant.hidden * math.prod(ratios) / _STEP + _ROUNDING) * _STEP
    made = variant
    for change in changes:
        now = changed(made, change)
        made = replace(
            now,
            walks=_where_changed(made.walks, variant.walks, now.walks),
            laplacian=_where_changed(made.laplacian, variant.laplacian, now.laplacian),
        )
    return _narrowing(replace(made, hidden=width))


def _where_changed(
    made: tuple[int, int], before: tuple[int, int], asked: tuple[int, int]
) -> tuple[int, int]:
    """Sizes of nodes and edges as asked for where they differ from those before."""
    nodes, edges = (
        size if size != old else now for now, old, size in zip(made, before, asked, strict=True)
    )
    return nodes, edges


@dataclass(frozen=True)
class Best(RealWorld):
    """Rows with the changes to `BLOCK` that another experiment has chosen. Until it is `prepared`,
    they have none. Their own arguments and changes come on top.

    With `candidates`, the only row is that of them which is best in validation.
    """

    choice: tuple[Change, ...] | None = field(default=None, compare=False)
    encoded: bool = True  # whether graphs get the walks and the Laplacian of the block
    candidates: Best | None = field(default=None, compare=False)

    def prepared(self, results: Path, protocol: str) -> Best:
        if self.choice is not None:
            return self
        made = replace(self, choice=choose(*_scores_of(INGREDIENTS, results, protocol)))
        if self.candidates is None:
            return made
        scores, broken = _scores_of(self.candidates, results, protocol)
        best = best_candidate(self.candidates, scores, broken)
        (own,) = self.variants
        return replace(made, variants=(replace(best, row=own.row, label=own.label),))

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        block = together(BLOCK, self.choice or ())
        twice = variant.group == _LARGE
        best = replace(
            variant,
            hidden=block.hidden * (2 if twice else 1),
            walks=block.walks if self.encoded else variant.walks,
            laplacian=block.laplacian if self.encoded else variant.laplacian,
            arguments=block.arguments | variant.arguments,
            changes=block.changes | variant.changes,
        )
        return replace(
            super()._trial(_narrowing(best), protocol, recipe, members, quick), variant=variant
        )


def _scores_of(
    experiment: Experiment, results: Path, protocol: str
) -> tuple[Scores, Collection[str]]:
    """Scores of an experiment that decides something, and its populations of which a run broke."""
    folder = results / experiment.name / f"{protocol}-{experiment.recipes[0]}"
    if not (folder / SCORES).is_file():
        raise ValueError(
            f"got no results of {experiment.name} in {results}, expected them to choose the "
            f"recipe; run pna reproduce {experiment.name} first, with the same options"
        )
    return load_for_choice(folder)


def best_candidate(candidates: Best, scores: Scores, broken: Collection[str] = ()) -> Variant:
    """The row with the best mean validation metric at the epoch that is scored; the first of
    equals. A row of which a run broke is not taken. Raises if a row is missing, or all broke."""
    names = [variant.name for variant in candidates.variants]
    missing = sorted({*names} - {*scores.populations, *broken})
    if missing:
        raise ValueError(
            f"got no results of {', '.join(missing)}, expected all of {candidates.name}; run "
            f"pna reproduce {candidates.name} first, with the same options"
        )
    judged = measured_as(candidates.metric, f"validation, {candidates.scored} epoch")
    able = [variant for variant in candidates.variants if variant.name not in broken]
    if not able:
        raise ValueError(
            f"got runs of all rows of {candidates.name} that broke, expected one to take; give "
            "them lower learning rates, and run all of them again"
        )
    return min(able, key=lambda variant: judged(scores, variant.name).mean)


_LARGE = "large"  # twice as wide


def _row(group: str = "", arguments: Mapping[str, Any] | None = None, **changes: Any) -> Variant:
    return Variant(
        "pna best", "PNA at its best", "pna", group, "stacked",
        arguments=dict(arguments or {}), changes=changes,
    )  # fmt: skip


ZINC_BEST = Best(
    "zinc-best",
    "ZINC: PNA at its best, mean absolute error",
    (
        _row(epochs=700, warmup=20),
        _row(_LARGE, {"layers": 6, "edge_width": 24}, epochs=700, warmup=20),
    ),
    groups={"": "100,000 parameters", _LARGE: "500,000 parameters"},
    benchmark="zinc",
    metric="mae",
    loss="mae_in_units",
    seed=200,
)


def _of_molhiv(
    row: str, label: str, dropout: float, walks: tuple[int, int] = (0, 0), **changes: Any
) -> Variant:
    """Four layers of twice the block's width."""
    usual = {"epochs": 100, "batch_size": 128, "select": "roc_auc"}
    made = _row(_LARGE, {"layers": 4, "dropout": dropout, "readout": "mean"}, **usual | changes)
    return replace(made, row=row, label=label, walks=walks)


_MOLHIV: dict[str, Any] = {
    "benchmark": "molhiv",
    "encoded": False,
    "groups": {_LARGE: "twice as wide"},
    "metric": "roc_auc",
    "loss": "bce",
    "scored": "best",
}

#: The first three have the dropout of the plain row; the last has the training of GCN+ on MolHIV.
MOLHIV_CHOICE = Best(
    "molhiv-choice",
    "MolHIV: trainings of PNA at its best, area under the ROC curve",
    (
        _of_molhiv("fast", "rate 0.001, dropout 0.3", 0.3, lr=1e-3),
        _of_molhiv("slow", "rate 0.0003, dropout 0.3", 0.3, lr=3e-4),
        _of_molhiv("slow walks", "rate 0.0003, dropout 0.3, random walks", 0.3, (20, 0), lr=3e-4),
        _of_molhiv(
            "slowest walks", "rate 0.0001, dropout 0.1, random walks, batches of 32, little decay",
            0.1, (20, 0), lr=1e-4, batch_size=32, weight_decay=1e-5, warmup=5,
        ),
    ),
    seed=100,
    **_MOLHIV,
)  # fmt: skip

MOLHIV_BEST = Best(
    "molhiv-best",
    "MolHIV: PNA at its best, area under the ROC curve",
    (_of_molhiv("pna best", "PNA at its best", 0.3, lr=1e-3),),
    members=10,
    candidates=MOLHIV_CHOICE,
    seed=200,
    **_MOLHIV,
)


def _superpixels(name: str, title: str, epochs: int, seen: Mapping[str, Any]) -> Best:
    arguments = {"dropout": 0.1, "readout": "mean", **seen}
    return Best(
        f"{name}-best",
        title,
        (_row("", arguments, epochs=epochs, batch_size=128, lr=1e-3, weight_decay=0.1),),
        benchmark=name,
        encoded=False,
        metric="accuracy",
        loss="cross_entropy",
        seed=200,
    )


#: Augmented as the improved rows, but photographs are not stretched, shifted or lit otherwise.
SUPERPIXELS_BEST = (
    _superpixels("mnist", "MNIST superpixels: PNA at its best, accuracy", 60, DIGITS),
    _superpixels("cifar10", "CIFAR10 superpixels: PNA at its best, accuracy", 150,
                 {name: PHOTOGRAPHS[name] for name in ("mirror", "turn", "centre")}),
)  # fmt: skip

_LONGER: dict[str, Any] = {"epochs": 4 * RECIPES["tuned"].epochs}
_SLOW = "large slow"  # twice as wide, a third of the rate

#: The recurrent model of the paper, trained for four times as long. With twice the features, all
#: ten runs diverge within 75 epochs at the rate of `tuned`.
MULTITASK_BEST = Experiment(
    "multitask-best",
    "Six tasks at once: PNA trained for longer, and with twice the features",
    (
        *variants("pna", "mpnn-sum", changes=_LONGER),
        *variants("pna", group=_LARGE, hidden=32, changes=_LONGER),
        *variants("pna", group=_SLOW, hidden=32, changes=_LONGER | {"rate": 0.0045}),
    ),
    recipes=("tuned",),
    seed=200,
    groups={"": "16 features", _LARGE: "32 features", _SLOW: "32 features, a third of the rate"},
    claims=tuple(
        Claim(f"Ours, not the paper's: the error of PNA with {features}, divided by that of "
              "predicting the mean, is at most 10 to the power of −2.6",
              within(name, {"average of logs": (-2.6, on_average(ratio=True))}))
        for name, features in (
            ("pna", "16 features"), (f"pna {_LARGE}", "32 features"),
            (f"pna {_SLOW}", "32 features and a third of the rate"),
        )
    ),
)  # fmt: skip

#: In the order in which they are run.
EXPERIMENTS = (
    INGREDIENTS, ZINC_BEST, MOLHIV_CHOICE, MOLHIV_BEST, *SUPERPIXELS_BEST, MULTITASK_BEST,
)  # fmt: skip
