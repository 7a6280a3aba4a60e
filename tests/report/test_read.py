import json
from pathlib import Path
from typing import Any

import pytest

from pna.paper.experiment import Variant
from pna.paper.registry import EXPERIMENTS
from pna.report.read import ExperimentResult, find, in_order
from pna.report.results import MEAN, tables
from tests.report.made import Errors, make, steadily


def test_the_best_is_first_unless_there_is_an_order(tmp_path: Path) -> None:
    def last_is_best(variant: Variant, split: int, members: int) -> Errors:
        names = [v.name for v in EXPERIMENTS["multitask"].variants]
        return steadily(variant, split, members) * 0 - float(names.index(variant.name))

    result = ExperimentResult.read(make(tmp_path / "a", "multitask", errors=last_is_best))
    assert result.names == list(reversed(result.scores.populations))
    moments = ExperimentResult.read(make(tmp_path / "b", "moments"))
    assert moments.names == [*(f"moments-{k}" for k in range(1, 6)), "pna"]


def test_evidence_has_labels_and_no_names_of_populations(tmp_path: Path) -> None:
    result = ExperimentResult.read(make(tmp_path, "zinc"))
    text = "pna edges against pna-no-scalers edges: 0.1; pna and mpnn-sum; sum, pna-like, mypna"
    assert result.in_words(text) == (
        "PNA (edge features) against PNA without scalers (edge features): 0.1; "
        "PNA and MPNN (sum); sum, pna-like, mypna"
    )


def test_results_are_found_below_and_put_in_order(tmp_path: Path) -> None:
    for name, folder in (("training", "a"), ("moments", "b/c"), ("multitask", "d")):
        make(tmp_path / folder, name)
    make(tmp_path / "e", "multitask", quick=True)
    found = find(tmp_path)
    assert found == [tmp_path / name for name in ("a", "b/c", "d", "e")]
    ordered = in_order([ExperimentResult.read(folder) for folder in found])
    assert [(r.experiment.name, r.is_quick) for r in ordered] == [
        ("multitask", False), ("moments", False), ("training", False), ("multitask", True)
    ]  # fmt: skip
    assert find(tmp_path / "d") == [tmp_path / "d"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no scores\.csv .* expected results of pna"):
        find(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        find(tmp_path / "nowhere")


def of_each(facts: dict[str, Any], values: dict[str, Any], with_others: bool = False) -> str:
    """The facts with these values of every population, with or without its others."""
    held = facts["populations"].items()
    of_all = {name: (own if with_others else {}) | values for name, own in held}
    return json.dumps(facts | {"populations": of_all})


def test_damaged_facts_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "moments")
    facts = json.loads((folder / "facts.json").read_text())
    for text, message in (
        ("{", "cannot be read"),
        ("{}", "it lacks experiment, .*, populations"),
        ("[]", "it holds .*expected facts that pna reproduce wrote; restore the file"),
        ("[" * 100_000, "nested too deeply"),
        ('{"experiment": "\\ud800"}', "not valid text"),
        (json.dumps(facts | {"experiment": "moment"}), "did you mean 'moments'"),
        (json.dumps(facts | {"populations": {}}), r"scores of moments-1, .* scores\.csv has"),
        (json.dumps(facts | {"populations": []}), r"populations of it is \[\], expected an object"),
        (json.dumps(facts | {"took": {"seconds": "1"}}), "took lacks at a time"),
        (of_each(facts, {}), "lacks label, row, group"),
        *(
            (
                of_each(facts, {name: value}, with_others=True),
                f"{name} of the population .* expected {message}",
            )
            for name, value, message in (
                ("seconds", "12", "a number"),
                ("epochs", 1.5, "a whole number"),
                ("parameters", "many", "a whole number"),
                ("broken", [0, 1], "a list, each true or false"),
                ("environment", "a laptop", "an object"),
                ("label", 3, "text"),
            )
        ),
    ):
        (folder / "facts.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            ExperimentResult.read(folder)


def test_scores_without_a_row_are_refused_unless_all_of_it_broke(tmp_path: Path) -> None:
    folder = make(tmp_path, "moments")
    facts = json.loads((folder / "facts.json").read_text())
    head, *rows = (folder / "scores.csv").read_text().splitlines(keepends=True)
    for gone in (["pna"], list(facts["populations"])):
        held = [row for row in rows if row.split(",")[0] not in gone]
        (folder / "scores.csv").write_text("".join([head, *held]))
        with pytest.raises(ValueError, match=rf"scores\.csv without rows of .*{gone[-1]}.*restore"):
            ExperimentResult.read(folder)
    held = [row for row in rows if not row.startswith("pna,")]
    (folder / "scores.csv").write_text("".join([head, *held]))
    facts["populations"]["pna"]["broken"] = [True] * 2
    (folder / "facts.json").write_text(json.dumps(facts))
    assert "pna" not in ExperimentResult.read(folder).names


def test_curves(tmp_path: Path) -> None:
    folder = make(tmp_path, "zinc", members=2)
    assert ExperimentResult.read(folder).curves["pna deep"] == [
        {"epoch": epoch, "members": 2, "training": 1 / epoch, "validation": 2 / epoch}
        for epoch in (1, 2, 3)
    ]
    (folder / "curves.csv").unlink()
    assert ExperimentResult.read(folder).curves == {}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_can_be_of_one_population(name: str, tmp_path: Path) -> None:
    whole = ExperimentResult.read(make(tmp_path, name))
    variants = EXPERIMENTS[name].variants
    for variant in {v.name: v for v in (variants[0], variants[-1])}.values():
        alone = whole.only([variant])
        assert alone.names == [variant.name]
        others = [v for v in EXPERIMENTS[name].variants if v.label != variant.label]
        shown = tables(alone)
        assert shown
        for table in shown:
            assert {row[0] for row in table.rows} - {"", MEAN}, "it has the population"
            assert not any(other.label == row[0] for row in table.rows for other in others)
