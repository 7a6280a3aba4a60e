import json
from pathlib import Path

import numpy as np
import pytest

from pna.paper.experiment import Variant
from pna.paper.registry import EXPERIMENTS
from pna.report.results import Result, about, claims, find, in_order, tables
from tests.report.made import Errors, make, steadily


def test_the_table_stands_beside_the_paper(tmp_path: Path) -> None:
    errors, above = tables(Result.read(make(tmp_path, "multitask", members=7)))
    assert errors.heads[:4] == ("model", "members", "average of logs", "log of the mean")
    assert errors.heads[-1] == "spectral radius"
    pna = errors.rows[:4]
    assert [row[:2] for row in pna] == [
        ("PNA", "best 5"), ("", "all 7"), ("", "paper"), ("", "difference")
    ]  # fmt: skip
    # The average of tasks 0.1 apart is 0.25 above the first; of five members 0.01 apart, 0.02;
    # its interval is 2.776 · 0.0158 / √5.
    assert [row[2] for row in pna] == ["−2.23 ± 0.02", "−2.22 ± 0.02", "−3.13", "+0.90"]
    assert errors.rows[-2:][0][:3] == ("predicting the mean", "here", "−1.50")
    assert errors.rows[-1][:3] == ("", "paper", "−1.38")
    assert errors.strong >= {(0, 2), (0, 3)} and errors.ours == {0, 1, 2, 3}
    # Above the baseline: −2.23 + 1.5, and −3.13 + 1.38.
    assert [row[2] for row in above.rows[:4]] == ["−0.73 ± 0.02", "−0.72 ± 0.02", "−1.75", "+1.02"]


def test_the_best_is_first_unless_there_is_an_order(tmp_path: Path) -> None:
    def last_is_best(variant: Variant, split: int, members: int) -> Errors:
        names = [v.name for v in EXPERIMENTS["multitask"].variants]
        return steadily(variant, split, members) * 0 - float(names.index(variant.name))

    result = Result.read(make(tmp_path / "a", "multitask", errors=last_is_best))
    assert result.names == list(reversed(result.scores.populations))
    moments = Result.read(make(tmp_path / "b", "moments"))
    assert moments.names == [*(f"moments-{k}" for k in range(1, 6)), "pna"]


def test_few_members_have_one_line(tmp_path: Path) -> None:
    (errors,) = tables(Result.read(make(tmp_path, "moments", members=2, quick=True)))
    assert [row[:2] for row in errors.rows[:2]] == [("1 moment", "all 2"), ("2 moments", "all 2")]


def test_tests_of_an_experiment_are_columns(tmp_path: Path) -> None:
    average, overall = tables(Result.read(make(tmp_path, "extrapolation")))
    assert average.heads[2:5] == ("20–24", "25–29", "30–34")
    assert average.rows[0][2:4] == ("−0.73 ± 0.02", "−0.63 ± 0.02")
    assert average.rows[2][:3] == ("", "paper", "−1.83")
    assert "paper" not in {row[1] for row in overall.rows}  # the figure has one statistic
    assert average.rows[-1][0] != "predicting the mean"  # which is 0 of a ratio


def test_groups_are_compared(tmp_path: Path) -> None:
    def standard_is_worse(variant: Variant, split: int, members: int) -> Errors:
        return steadily(variant, split, members) + 0.3 * (variant.group == "standard")

    groups, errors = tables(Result.read(make(tmp_path, "architectures", errors=standard_is_worse)))
    assert [row[:3] for row in groups.rows[:3]] == [
        ("PNA", "recurrent", "−2.23 ± 0.02"),
        ("", "standard", "−1.93 ± 0.02"),
        ("", "difference", "−0.30 ± 0.02"),
    ]
    assert errors.rows[0][0] == "PNA, recurrent"


def test_tasks_learned_alone_count_as_many_as_each_task_has(tmp_path: Path) -> None:
    groups, errors = tables(Result.read(make(tmp_path, "single-task")))
    alone = [row for row in errors.rows if row[0] == "PNA, alone"]
    assert alone[0][1] == "best 5"
    assert groups.rows[1][1] == "alone"


def test_parameters_stand_beside_the_papers(tmp_path: Path) -> None:
    table, _ = tables(Result.read(make(tmp_path, "parameters")))
    rows = {row[0]: row[1:3] for row in table.rows}
    assert rows["PNA, 16 features"] == ("8,510", "8,350")
    assert rows["MPNN (max), 20 features"] == ("8,550", "11,186")
    assert rows["GCN, 16 features"] == ("8,510", "–")


def test_members_that_broke_are_left_out(tmp_path: Path) -> None:
    def some_break(variant: Variant, split: int, members: int) -> Errors:
        errors = steadily(variant, split, members)
        if variant.row == "gin":
            errors[:] = np.inf
        elif variant.row == "gcn":
            errors[-1] = np.inf
        return errors

    result = Result.read(make(tmp_path, "multitask", members=7, errors=some_break))
    errors = tables(result)[0]
    rows = {row[0]: row for row in errors.rows if row[0]}
    assert rows["GIN"][1:4] == ("all 0", "–", "–")
    assert result.names[-1] == "gin"
    after_gcn = errors.rows[errors.rows.index(rows["GCN"]) + 1]
    assert after_gcn[1] == "all 6"
    assert "8 of which broke" in about(result)["members"]


def test_what_was_run(tmp_path: Path) -> None:
    facts = about(Result.read(make(tmp_path, "multitask")))
    assert facts["training"] == "plain: Adam at a constant rate, as in the paper"
    assert facts["members"] == "6 of each of 7 populations"
    assert facts["epochs"] == "2,000 of at most 10,000"
    assert facts["time"] == "10 min of training in all"  # 7 populations, 90 s each
    assert (facts["on"], facts["commit"]) == ("a card", "abc")


def test_claims_have_verdicts_and_numbers(tmp_path: Path) -> None:
    rows = claims(Result.read(make(tmp_path, "multitask"))).rows
    assert rows[0][0] == "PNA has the least error on the average of the tasks"
    assert rows[0][1] == "holds" and "−0.50" in rows[0][2]


def test_results_are_found_below_and_put_in_order(tmp_path: Path) -> None:
    for name, folder in (("training", "a"), ("moments", "b/c"), ("multitask", "d")):
        make(tmp_path / folder, name)
    make(tmp_path / "e", "multitask", quick=True)
    found = find(tmp_path)
    assert found == [tmp_path / name for name in ("a", "b/c", "d", "e")]
    ordered = in_order([Result.read(folder) for folder in found])
    assert [(r.experiment.name, r.is_quick) for r in ordered] == [
        ("multitask", False), ("moments", False), ("training", False), ("multitask", True)
    ]  # fmt: skip
    assert find(tmp_path / "d") == [tmp_path / "d"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no scores\.csv .* expected results of pna"):
        find(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        find(tmp_path / "nowhere")


def test_damaged_facts_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "moments")
    facts = json.loads((folder / "facts.json").read_text())
    for text, said in (
        ("{", "cannot be read"),
        ("{}", "without 'experiment'"),
        ("[]", "expected facts that pna reproduce wrote"),
        (json.dumps(facts | {"experiment": "moment"}), "did you mean 'moments'"),
        (json.dumps(facts | {"populations": {}}), r"without moments-1, .* which scores\.csv has"),
    ):
        (folder / "facts.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            Result.read(folder)
