"""PNA at its best: what is tried, and what the rule takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pna.data.graphset import GraphSet
from pna.data.laplacian import with_laplacian
from pna.data.walks import with_walks
from pna.paper.best import (
    BLOCK,
    CHANGES,
    INGREDIENTS,
    MOLHIV_BEST,
    MOLHIV_CHOICE,
    MULTITASK_BEST,
    SUPERPIXELS_BEST,
    ZINC_BEST,
    best_candidate,
    choose,
    together,
)
from pna.paper.experiment import PlannedRun, Variant
from pna.paper.improved import changed
from pna.paper.real_world import Benchmark
from pna.paper.registry import EXPERIMENTS
from pna.paper.results import FACTS, SCORES
from pna.paper.scores import Member, ScoredPopulation, Scores
from pna.train.models import build, count_parameters, fitted
from pna.train.tasks import tasks_of
from tests.paper.test_real_world import made
from tests.report.made import Errors, make, save_scores

NAMES = {change.name: changed(BLOCK, change).name for change in CHANGES}
SPLITS = tuple(INGREDIENTS.measured)


def scores(**validation: list[float]) -> Scores:
    """Scores of four members of every row: those given in validation at the last epoch, else 1.
    Everywhere else a row is the better the worse it is there."""
    populations = {}
    for name in (BLOCK.name, *NAMES.values()):
        values = validation.get(name, [0.9, 1.0, 1.0, 1.1])
        members = tuple(Member(k, k, 0.01, 0.0, v, 1) for k, v in enumerate(values))
        others = {split: 1 / np.array(values)[:, None] for split in SPLITS}
        own = {"validation, last epoch": np.array(values)[:, None]}
        populations[name] = ScoredPopulation(members, others | own)
    baseline = {split: np.ones(1) for split in SPLITS}
    return Scores(("y",), SPLITS, populations, baseline, "mae")


def parameters(trial: PlannedRun, graphs: GraphSet) -> int:
    if any(trial.graphs.walks):
        graphs = with_walks(graphs, *trial.graphs.walks)
    if any(trial.graphs.laplacian):
        graphs = with_laplacian(graphs, *trial.graphs.laplacian)
    return count_parameters(build(fitted(trial.model, graphs, tasks_of(graphs, trial.loss))))


def test_each_row_changes_one_ingredient_within_the_parameters():
    graphs, trials = made("zinc"), INGREDIENTS.trials()
    block = trials[0]
    assert block.settings.seeds == [100, 101, 102, 103] and block.settings.epochs == 400
    assert len({trial.variant.name for trial in trials}) == len(trials) == 1 + len(CHANGES)
    for trial in trials:
        assert trial.graphs.benchmark == "zinc"
        assert 80_000 < parameters(trial, graphs) <= 100_000, trial.variant.name
    for trial in trials[1:]:
        changes = [getattr(trial, w) != getattr(block, w) for w in ("graphs", "settings", "model")]
        assert sum(changes) == 1, trial.variant.name


def test_a_change_is_taken_if_it_is_better_by_more_than_the_standard_error():
    """The block has 1 ± 0.04; so have changes by chance."""
    better, worse = [0.8, 0.9, 0.9, 1.0], [1.0, 1.1, 1.1, 1.2]
    level = [0.85, 0.95, 0.95, 1.05]  # lower by 0.05, less than 0.058
    found = choose(
        scores(
            **{
                NAMES["with dropout"]: better,
                NAMES["without walks"]: worse,
                NAMES["with layer-norm"]: level,
                NAMES["with virtual-node"]: better,
                NAMES["with laplacian"]: better,
            }
        ),
        {NAMES["with laplacian"]},  # a member broke
    )
    assert [change.name for change in found] == ["with virtual-node", "with dropout"]
    assert choose(scores()) == ()


def test_a_change_that_broke_is_not_taken_from_files(tmp_path: Path) -> None:
    """The weights before a break have a score. If all members broke, the file has no scores."""
    gone, bad, good = (NAMES[name] for name in ("with dropout", "without walks", "without average"))

    def errors(variant: Variant, split: int, members: int) -> Errors:
        value = -1.0 if variant.name in (gone, bad, good) else 0.0
        return np.full((members, 1), np.inf if variant.name == gone else value)

    folder = make(tmp_path / INGREDIENTS.name / "benchmark-published", INGREDIENTS.name, 4,
                  errors=errors)  # fmt: skip
    facts = json.loads((folder / FACTS).read_text())
    facts["populations"][bad]["broken"] = [False, True, False, False]
    (folder / FACTS).write_text(json.dumps(facts))
    lines = (folder / SCORES).read_text().splitlines(keepends=True)
    (folder / SCORES).write_text("".join(x for x in lines if not x.startswith(f"{gone},")))
    prepared = ZINC_BEST.prepared(tmp_path, "benchmark")
    assert prepared.choice is not None
    assert [change.name for change in prepared.choice] == ["without average"]
    facts["populations"][BLOCK.name]["broken"] = [True] * 4
    (folder / FACTS).write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="got runs of 'pna block' that broke"):
        ZINC_BEST.prepared(tmp_path, "benchmark")


def test_a_missing_row_is_named():
    held = scores()
    del held.populations[NAMES["with dropout"]]
    with pytest.raises(ValueError, match=r"no results of pna block with dropout, .*first"):
        choose(held)


def test_the_best_rows_have_what_was_chosen(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no results of zinc-ingredients .* run pna reproduce"):
        ZINC_BEST.prepared(tmp_path, "benchmark")
    folder = tmp_path / "zinc-ingredients" / "benchmark-published"
    folder.mkdir(parents=True)
    held = scores(**{NAMES["with laplacian"]: [0.5] * 4, NAMES["with virtual-node"]: [0.5] * 4})
    save_scores(folder, held)
    small, large = ZINC_BEST.prepared(tmp_path, "benchmark").trials()
    for trial, hidden, layers in ((small, 55, 5), (large, 110, 6)):
        assert trial.graphs == Benchmark("zinc", walks=(20, 8), laplacian=(8, 4))
        assert trial.model.arguments["virtual_node"] and trial.model.arguments["layers"] == layers
        assert trial.model.hidden == hidden and trial.settings.epochs == 700
        assert trial.settings.seeds == [200, 201, 202, 203]


@pytest.mark.parametrize("names", [
    (), ("with feed-forward",), ("with virtual-node", "with laplacian"), ("with sum",),
    ("without scalers",), ("with sum", "with virtual-node", "with laplacian"),
    ("without scalers", "without edge-states", "with feed-forward", "with laplacian"),
])  # fmt: skip
def test_the_best_rows_keep_to_their_sizes(names: tuple[str, ...]) -> None:
    """With changes that add parameters."""
    most = {"zinc-best": (100_000, 500_000), "molhiv-best": (330_000,),
            "molhiv-choice": (330_000,) * 4}  # fmt: skip
    choice = tuple(change for change in CHANGES if change.name in names)
    assert len(choice) == len(names)
    for experiment in (ZINC_BEST, MOLHIV_CHOICE, MOLHIV_BEST, *SUPERPIXELS_BEST):
        graphs = made(experiment.benchmark)
        trials = replace(experiment, choice=choice).trials()
        for trial, limit in zip(trials, most.get(experiment.name, (110_000,)), strict=True):
            assert 0.5 * limit < parameters(trial, graphs) <= limit


def test_other_sets_get_the_block_without_its_encodings() -> None:
    choice = tuple(c for c in CHANGES if c.name in ("with laplacian", "with layer-norm"))
    for experiment in (MOLHIV_BEST, *SUPERPIXELS_BEST):
        (trial,) = replace(experiment, choice=choice).trials()
        assert trial.graphs == Benchmark(experiment.benchmark)
        assert trial.model.arguments["norm"] == "layer"
        assert trial.model.arguments["norm_before_mixing"]
        assert trial.settings.schedule == "cosine" and trial.settings.average == 0.999
        assert trial.settings.seed == 200
    photographs = SUPERPIXELS_BEST[1].trials()[0].model.arguments
    assert "mirror" in photographs and "vary" not in photographs


def test_the_six_tasks_are_trained_four_times_as_long() -> None:
    for trial in MULTITASK_BEST.trials():
        (usual,) = [t for t in EXPERIMENTS["multitask"].trials()
                    if t.variant.row == trial.variant.row]  # fmt: skip
        share = 1 / 3 if trial.variant.group == "large slow" else 1
        rates = pytest.approx([lr * share for lr in usual.settings.lr])
        longer = replace(usual.settings, epochs=300, seed=200, lr=trial.settings.lr)
        assert trial.settings.lr == rates
        assert trial.settings == longer and trial.graphs == usual.graphs
        assert trial.model == replace(usual.model, hidden=trial.model.hidden)
    assert [trial.model.hidden for trial in MULTITASK_BEST.trials()] == [16, 16, 32, 32]


def areas(values: dict[str, float]) -> Scores:
    """Areas of four members in validation at the best epoch; elsewhere the order is reversed."""
    populations = {}
    for name, value in values.items():
        members = tuple(Member(k, k, 0.01, 0.0, value, 1) for k in range(4))
        spread = value + 0.01 * np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
        errors = {s: spread if s == "validation, best epoch" else 1 - spread for s in SPLITS}
        populations[name] = ScoredPopulation(members, errors)
    return Scores(("y",), SPLITS, populations, {s: np.full(1, 0.5) for s in SPLITS}, "roc_auc")


def test_validation_chooses_the_training_on_molhiv(tmp_path: Path) -> None:
    names = [variant.name for variant in MOLHIV_CHOICE.variants]
    found = areas(dict(zip(names, (0.81, 0.84, 0.85, 0.83), strict=True)))
    assert best_candidate(MOLHIV_CHOICE, found).name == names[2]
    assert best_candidate(MOLHIV_CHOICE, found, {names[2]}).name == names[1]
    with pytest.raises(ValueError, match="got runs of all rows of molhiv-choice that broke"):
        best_candidate(MOLHIV_CHOICE, found, names)
    level = areas(dict.fromkeys(names, 0.8))
    assert best_candidate(MOLHIV_CHOICE, level).name == names[0]
    del level.populations[names[3]]
    with pytest.raises(ValueError, match=f"no results of {names[3]}, .*run pna reproduce molhiv-"):
        best_candidate(MOLHIV_CHOICE, level)
    for name, held in ((INGREDIENTS.name, scores()), (MOLHIV_CHOICE.name, found)):
        with pytest.raises(ValueError, match=f"no results of {name} .* run pna reproduce"):
            MOLHIV_BEST.prepared(tmp_path, "benchmark")
        folder = tmp_path / name / "benchmark-published"
        folder.mkdir(parents=True)
        save_scores(folder, held)
    (tested,) = MOLHIV_BEST.prepared(tmp_path, "benchmark").trials()
    chosen = MOLHIV_CHOICE.prepared(tmp_path, "benchmark").trials()[2]
    assert tested.model == chosen.model and tested.graphs == chosen.graphs
    assert tested.graphs == Benchmark("molhiv", walks=(20, 0))
    assert tested.settings == replace(chosen.settings, members=10, seed=200)
    assert (tested.variant.name, tested.variant.label) == ("pna best large", "PNA at its best")


def test_changes_together_multiply_the_width():
    """60 times 45, 50, 55, 55, 65 and 70 sixtieths is 39.8."""
    found = together(BLOCK, CHANGES)
    assert found.hidden == 35 and found.arguments["feed_forward"] == 1
    assert together(BLOCK, ()) == BLOCK
    assert found.arguments["aggregators"][-1] == "sum"
    assert found.walks == (0, 0) and found.laplacian == (8, 4)
    edges = [change for change in CHANGES if change.name == "without edge-walks"]
    assert together(BLOCK, edges).walks == (20, 0)
