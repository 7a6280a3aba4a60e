from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pna.data.graphset import GraphSet
from pna.data.multitask.labels import SIX
from pna.paper.experiment import QUICK_COUNTS, Graphs
from pna.paper.fresh import CANDIDATES, FRESH_CHOICE, FRESH_TEST, choose
from pna.paper.models import LABELS, MODELS
from pna.paper.recipes import RECIPES
from pna.paper.registry import EXPERIMENTS
from pna.paper.reproduce import Options, folder_of, plan, reproduce
from pna.paper.results import load
from pna.paper.scores import Member, ScoredPopulation, Scores
from tests.paper.little import make_little
from tests.report.made import save_scores


def scores(errors: dict[str, list[float]]) -> Scores:
    """Scores of `FRESH_CHOICE`, from the error of each member in every task."""
    populations = {}
    for name, values in errors.items():
        members = tuple(Member(k, k, 0.01, 0.0, loss, 1) for k, loss in enumerate(values))
        table = np.repeat(np.array(values)[:, None], len(SIX), 1)
        populations[name] = ScoredPopulation(members, {"validation": table})
    return Scores(SIX, ("validation",), populations, {"validation": np.ones(len(SIX))})


def of(model: str, *errors: list[float]) -> dict[str, list[float]]:
    return {f"{model} {recipe}": e for recipe, e in zip(CANDIDATES, errors, strict=True)}


@pytest.mark.parametrize(
    "redrawn, tuned, steady, expected",
    [
        # the mean of logs: −2.5 against −2 and −1.5
        ([1e-2, 1e-2], [1e-1, 1e-4], [1e-1, 1e-2], "tuned"),
        # not the log of the mean, which would choose the first: −2 against −1.3
        ([1e-2, 1e-2], [1e-1, 1e-4], [1.0, 1.0], "tuned"),
        ([1e-2, 1e-2], [1e-2, 1e-2], [1e-2, 1e-2], "redrawn"),  # the first of equals
        ([1.0, 1.0], [1e-2, 1e-2], [1e-2, 1e-2], "tuned"),
    ],
)
def test_the_recipe_with_the_least_mean_of_logs_is_chosen(redrawn, tuned, steady, expected) -> None:
    assert choose(scores(of("gat", redrawn, tuned, steady))) == {"gat": expected}


def test_a_recipe_with_a_member_that_broke_is_not_chosen() -> None:
    found = scores(of("gat", [0.3], [0.1], [0.2]))
    assert choose(found, {"gat tuned"}) == {"gat": "steady"}
    del found.populations["gat tuned"]  # type: ignore[attr-defined]  # all of its members broke
    assert choose(found, {"gat tuned"}) == {"gat": "steady"} and choose(found) == {}


def test_a_model_is_chosen_for_among_all_candidates_or_not_at_all() -> None:
    gat, gin = of("gat", [0.1], [0.2], [0.3]), of("gin", [0.3], [0.2], [0.1])
    del gin["gin redrawn"]
    assert choose(scores(gat | gin)) == {"gat": "redrawn"}


def test_candidates_are_our_recipes_on_graphs_and_seeds_of_their_own() -> None:
    trials = FRESH_CHOICE.trials()
    assert len(trials) == len(LABELS) * len(CANDIDATES)
    usual = {
        (recipe, trial.variant.name): trial
        for recipe in CANDIDATES
        for trial in EXPERIMENTS["multitask"].trials(recipe=recipe, members=5)
    }
    for trial in trials:
        other = usual[trial.variant.group, trial.variant.row]
        assert trial.settings.seeds == [1000, 1001, 1002, 1003, 1004]
        assert replace(trial.settings, seed=0) == other.settings
        assert trial.model == other.model
        assert trial.graphs == replace(other.graphs, seed=2718)
        assert folder_of(trial) != folder_of(other)
    assert FRESH_CHOICE.tests("paper") == Graphs("paper", seed=2718)
    assert [split for split, _ in FRESH_CHOICE.measured.values()] == ["validation"]


def test_models_are_tested_by_the_recipe_chosen(tmp_path: Path) -> None:
    picked = dict(zip(LABELS, ("tuned", "redrawn", "steady", "tuned", "steady", "redrawn", "tuned"),
                      strict=True))  # fmt: skip
    errors = {}
    for model, recipe in picked.items():
        errors |= of(model, *([0.1 if name == recipe else 0.2] for name in CANDIDATES))
    folder = tmp_path / "fresh-choice" / "published-candidates"
    folder.mkdir(parents=True)
    save_scores(folder, scores(errors))
    out = tmp_path / "fresh-test" / "published-chosen"
    trials = plan(FRESH_TEST, out, Options(protocol="published"))[2]
    found = {trial.variant.name: trial for trial in trials}
    assert list(found) == [*LABELS, "pna equal", "pna-no-scalers equal"]
    for model, recipe in picked.items():
        (usual,) = EXPERIMENTS["multitask"].trials("published", recipe, members=30, chosen=[model])
        assert replace(found[model].settings, seed=0) == usual.settings
        assert found[model].settings.seeds == list(range(2000, 2030))
        assert found[model].model == usual.model
        assert found[model].graphs == replace(usual.graphs, seed=2718)
    for model, other in (("pna", "pna-no-scalers"), ("pna-no-scalers", "pna")):
        swapped = found[f"{model} equal"]
        assert swapped.model.convolution == model
        assert swapped.settings == found[other].settings
        assert swapped.model.init == found[other].model.init
        assert swapped.graphs == found[other].graphs


def test_without_a_choice_nothing_is_trained(tmp_path: Path) -> None:
    out = tmp_path / "fresh-test" / "paper-chosen"
    with pytest.raises(
        ValueError, match=r"no results of fresh-choice for pna by all of .* run pna"
    ):
        plan(FRESH_TEST, out, Options())


def test_another_seed_makes_other_graphs(tmp_path: Path, monkeypatch) -> None:
    make_little(monkeypatch)
    one, other = (Graphs("paper", quick=True, seed=seed) for seed in (0, 2718))
    assert (one.name, other.name) == ("paper-quick", "paper-seed-2718-quick")
    drawn = [GraphSet.load(graphs.made(tmp_path)) for graphs in (one, other)]
    assert len(drawn[0]) == len(drawn[1])
    assert not np.array_equal(drawn[0].x[:50], drawn[1].x[:50])


def test_from_choice_to_test(tmp_path: Path, monkeypatch) -> None:
    make_little(monkeypatch)
    for split in QUICK_COUNTS:  # so many that some graphs are not connected
        monkeypatch.setitem(QUICK_COUNTS, split, 16)
    options = Options(members=2, quick=True, device="cpu", models=["gcn"])
    choice = tmp_path / "fresh-choice" / "paper-candidates"
    found = reproduce(FRESH_CHOICE, choice, tmp_path / "runs", options)
    assert list(found.populations) == [f"gcn {recipe}" for recipe in CANDIDATES]
    out = tmp_path / "fresh-test" / "paper-chosen"
    reproduce(FRESH_TEST, out, tmp_path / "runs", options)
    settings = load(out)[1]["populations"]["gcn"]["settings"]
    recipe = choose(found)["gcn"]
    assert settings["seed"] == 2000
    assert settings["lr"][0] == RECIPES[recipe].of("gcn", {}).rate
    assert MODELS["gcn"].tuned["rate"] != RECIPES["redrawn"].rate  # so that this can fail


def test_the_choice_that_was_made_is_that_of_the_documents() -> None:
    folder = Path(__file__).parents[2] / "results" / "fresh-choice" / "paper-candidates"
    assert choose(Scores.load(folder / "scores.csv")) == {
        "pna": "tuned", "pna-no-scalers": "redrawn", "mpnn-max": "tuned", "mpnn-sum": "tuned",
        "gat": "tuned", "gcn": "tuned", "gin": "steady",
    }  # fmt: skip
