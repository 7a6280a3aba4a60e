import json
from pathlib import Path

import numpy as np
import pytest

from pna.paper.registry import EXPERIMENTS
from pna.paper.results import (
    CURVES,
    FACTS,
    SCORES,
    ResultsFolder,
    ScoredRow,
    load,
    load_curves,
    recorded,
)
from pna.paper.scores import Member, ScoredPopulation

MULTITASK = EXPERIMENTS["multitask"]
ABOUT = {"experiment": "multitask", "protocol": "paper", "recipe": "tuned", "quick": False}
TASKS, BASELINE = ("a", "b"), {"test": np.array([0.1, 0.2])}


def row(run: str, error: float = 0.01) -> ScoredRow:
    members = tuple(Member(k, k, 0.003, 0, 0.1 + k, 5) for k in range(2))  # 0 is 0.0 when read
    population = ScoredPopulation(members, {"test": np.full((2, 2), error)})
    curve = [{"epoch": 1, "members": 2, "training": 0.5, "validation": 0.6}]
    return ScoredRow(population, {"label": run, "run": run}, curve)


def begun(folder: Path, **about: object) -> ResultsFolder:
    return ResultsFolder.open(folder, MULTITASK, ABOUT | about)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """ResultsFolder with two rows, the later one of the experiment first."""
    results = begun(tmp_path / "results")
    results.add("gin", row("two", 0.03))
    results.add("pna", row("one"))
    results.save(TASKS, BASELINE, {"seconds": 7.0})
    return results.folder


def test_what_is_saved_is_read(folder: Path) -> None:
    scores, facts = load(folder)
    assert list(scores.populations) == ["pna", "gin"]  # in the order of the experiment
    np.testing.assert_array_equal(scores.populations["gin"].errors["test"], np.full((2, 2), 0.03))
    np.testing.assert_array_equal(scores.baseline["test"], BASELINE["test"])
    assert facts == {
        **ABOUT, "populations": {"pna": {"label": "one", "run": "one",
                                         "scores": scores.digest("pna")},
                                 "gin": {"label": "two", "run": "two",
                                         "scores": scores.digest("gin")}},
        "took": {"seconds": 7.0},
    }  # fmt: skip
    assert load_curves(folder / CURVES)["pna"] == row("one").curve
    text = (folder / CURVES).read_text()
    begun(folder).save(TASKS, BASELINE)
    assert (folder / CURVES).read_text() == text, "numbers are written as they were read"


def test_an_older_row_is_known_by_its_settings(folder: Path) -> None:
    """It does not name its run. Settings may have been added or removed since."""
    results = begun(folder)
    facts = results.rows["pna"].facts
    del facts["run"]
    assert not results.has("pna", "one", {"epochs": 3}), "it does not say what its settings were"
    facts["settings"] = {"epochs": 3, "lr": [0.1], "gone": 1}
    assert results.has("pna", "one", {"epochs": 3, "lr": (0.1,), "new": 2})
    assert not results.has("pna", "one", {"epochs": 4, "lr": (0.1,), "new": 2})


def test_what_was_recorded_of_every_start() -> None:
    first = {"gpu": None, "cpu": "a chip", "commit": "abc", "command": "pna reproduce zinc"}
    resumed = {"gpu": "a card", "cpu": "a chip", "commit": "abc"}
    facts = [{"environment": {**first, "resumed": [resumed]}}, {}]
    assert recorded(facts, "gpu", "cpu") == "a card, a chip, not recorded"
    assert recorded(facts[:1], "commit") == "abc"
    assert recorded(facts[:1], "command") == "not recorded, pna reproduce zinc"


def test_rows_are_added_to_those_there(folder: Path) -> None:
    results = begun(folder)
    assert results.has("pna", "one") and not results.has("pna", "two")
    assert not results.has("gcn", "one")
    results.add("gcn", row("three"))
    assert list(results.save(TASKS, BASELINE).populations) == ["pna", "gcn", "gin"]
    facts = load(folder)[1]
    assert facts["populations"]["pna"]["run"] == "one" and "took" not in facts
    assert begun(folder).rows["gin"].curve == row("two").curve


def test_rows_that_another_process_writes_stay(folder: Path) -> None:
    ours, theirs = begun(folder), begun(folder)
    theirs.add("gcn", row("three"))
    theirs.add("gin", row("four"))
    theirs.save(TASKS, BASELINE)
    ours.add("gat", row("five"))
    assert list(ours.save(TASKS, BASELINE).populations) == ["pna", "gat", "gcn", "gin"]
    assert load(folder)[1]["populations"]["gin"]["run"] == "four"


@pytest.mark.parametrize(
    ("other", "message"),
    [({"protocol": "published"}, r"\(published, tuned\)"), ({"recipe": "plain"}, "plain"),
     ({"quick": True}, r"\(paper, tuned, quick\)")],
)  # fmt: skip
def test_results_about_something_else_are_left_alone(
    folder: Path, other: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"multitask \(paper, tuned\), expected .*{message}"):
        begun(folder, **other)
    with pytest.raises(ValueError, match="choose another folder"):
        ResultsFolder.open(folder, EXPERIMENTS["graph-types"], ABOUT)
    assert begun(folder).has("pna", "one")


def test_rows_of_other_graphs_are_not_put_beside_these(folder: Path) -> None:
    begun(folder).check({"test": BASELINE["test"] * (1 + 1e-9)})
    with pytest.raises(ValueError, match=r"results, whose rows are of other graphs.*move the"):
        begun(folder).check({"test": BASELINE["test"] * 1.01})
    begun(folder / "new").check(BASELINE)


def test_a_row_that_was_cut_off_between_two_files_is_not_there(folder: Path) -> None:
    facts = load(folder)[1]
    del facts["populations"]["gin"]
    (folder / FACTS).write_text(json.dumps(facts))
    results = begun(folder)
    assert list(results.rows) == ["pna"]
    results.add("gin", row("two", 0.05))
    assert list(results.save(TASKS, BASELINE).populations) == ["pna", "gin"]


def test_curves_that_cannot_be_read_are_named(folder: Path) -> None:
    with (folder / CURVES).open("a") as file:
        file.write("pna,2,2,0.4\n")
    with pytest.raises(ValueError, match=r"curves.csv, line 4, which is no row of losses"):
        load_curves(folder / CURVES)


def test_where_there_is_nothing_there_are_no_rows(folder: Path) -> None:
    assert begun(folder / "nowhere").rows == {}
    (folder / SCORES).unlink()  # as if it had been cut off between two files
    assert begun(folder).rows == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (FACTS, b"{"),
        (FACTS, b"{}"),
        (FACTS, b"\xff"),
        (SCORES, b"nothing"),
        (SCORES, b"\xff\x00"),
        (CURVES, b"a,b\n1,2"),
        (CURVES, b"population,epoch,members,training,validation\npna,inf,2,0.5,0.6\n"),
        (CURVES, b"population,epoch,members,training,validation\npna,\xff,2,0.5,0.6\n"),
    ],
)
def test_what_cannot_be_read_is_refused(folder: Path, name: str, text: bytes) -> None:
    (folder / name).write_bytes(text)
    with pytest.raises(ValueError, match=rf"results/{name}.*; (restore|remove) the file"):
        begun(folder)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text(json.dumps({}))
    with pytest.raises(FileNotFoundError, match=r"no scores.csv and facts.json, expected results"):
        load(tmp_path)


def test_scores_without_facts_are_not_written_over(folder: Path) -> None:
    before = (folder / SCORES).read_bytes()
    (folder / FACTS).unlink()
    with pytest.raises(FileNotFoundError, match=r"scores\.csv without facts\.json .*restore"):
        begun(folder)
    assert (folder / SCORES).read_bytes() == before


def test_a_row_whose_scores_are_not_those_of_its_facts_is_made_again(folder: Path) -> None:
    """A process may be killed after it has written facts, and before the scores."""
    old = (folder / SCORES).read_bytes()
    results = begun(folder)
    results.add("gin", row("three", 0.04))  # as many members
    results.save(TASKS, BASELINE)
    (folder / SCORES).write_bytes(old)
    left = begun(folder)
    assert left.has("pna", "one") and not left.has("gin", "three")
    left.add("gin", row("three", 0.04))
    left.save(TASKS, BASELINE)
    assert begun(folder).has("gin", "three")


def test_a_lost_line_is_a_lost_row_and_another_order_is_none(folder: Path) -> None:
    head, *lines = (folder / SCORES).read_text().splitlines()
    (folder / SCORES).write_text("\n".join([head, *lines[:2], *reversed(lines[2:])]))
    assert list(begun(folder).rows) == ["gin", "pna"]
    (folder / SCORES).write_text("\n".join([head, *lines[:-1]]))
    assert list(begun(folder).rows) == ["pna"]


def test_facts_from_before_they_told_of_scores_are_taken_as_they_are(folder: Path) -> None:
    facts = json.loads((folder / FACTS).read_text())
    for known in facts["populations"].values():
        del known["scores"]
    (folder / FACTS).write_text(json.dumps(facts))
    assert list(begun(folder).rows) == ["pna", "gin"]


def test_facts_without_populations_by_name_are_refused(folder: Path) -> None:
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps(facts | {"populations": []}))
    with pytest.raises(ValueError, match=r"cannot be read \(populations of it is \[\]"):
        begun(folder)
