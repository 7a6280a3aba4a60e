"""The page of one run: its metrics, notes and plots."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from pna.data.molecule_table import TABLE
from pna.data.special_rows import SpecialRow, save_rows
from pna.report import run_page
from pna.report.run_page import page
from pna.report.run_results import LEVELS, RunResults
from pna.report.run_tables import scored
from pna.train import evaluate, predict
from pna.train.calibration import CalibrationRows
from tests.report.test_browser import CHROMIUM, MEASURE, PHONE, open_page
from tests.train.small_runs import molecules, small_run

pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'pna[sklearn]'")
NAMES = ("active", "kind", "<size> & $S$", "rare")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with targets of all kinds, of which "rare" has one class in the test split."""
    graphs = molecules(60)
    rare = torch.arange(60) % 3 == 0
    rare &= torch.arange(60) % 5 != 3  # none in the test split
    split = torch.tensor([0, 0, 1, 2, 3], dtype=torch.uint8).repeat(12)
    graphs = replace(
        graphs, y_graph=torch.cat([graphs.y_graph, rare[:, None].float()], 1),
        graph_targets=NAMES, graph_scale=(1.0,) * 4, split_of_graph=split,
        splits=("train", "validation", "test", "calibration"),
        metadata=graphs.metadata | {TABLE: "measured.csv"},
    )  # fmt: skip
    loss = {"active": "bce", "kind": "cross_entropy", "<size> & $S$": "mse", "rare": "bce"}
    run = small_run(graphs, tmp_path_factory.mktemp("runs") / "my & run", loss=loss)
    rows = [SpecialRow(2, "CCO", "duplicate", "same molecule as line 1", "kept")]
    save_rows(run.folder.with_suffix(".rows.csv"), rows)
    return run


@pytest.fixture(scope="module")
def results(trained):
    return RunResults.of(trained, device="cpu")


@pytest.fixture(scope="module")
def shown(results):
    return page(results)


def section(shown, name):
    (found,) = re.findall(rf"<section><h2>{re.escape(name)}</h2>(.*?)</section>", shown, re.S)
    return found


def test_metrics_are_those_of_evaluate(trained, shown):
    tables = re.findall(r"<table>.*?</table>", shown, re.S)
    assert len(tables) == 6  # numbers, two classes, classes: of the mean and of single members
    for split in ("test", "validation"):
        found = {task.name: task for task in evaluate(trained, split=split, device="cpu").tasks}
        for table, name, metric, form in (
            (tables[0], "<size> & $S$", "rmse", ".4g"),
            (tables[1], "active", "roc_auc", ".4f"),
            (tables[2], "kind", "accuracy", ".4f"),
        ):
            value = found[name].ensemble[metric]
            assert f"<td>{value:{form}}</td>".replace("-", "−") in table
            assert f"<td>{found[name].rows}</td>" in table
        mean = np.mean(found["kind"].metrics["accuracy"])
        assert f"<td>{mean:.4f} ± " in tables[5]


def test_rows_are_those_of_predict(trained, results):
    graphs = results.graphs.split("test")
    given = predict(trained, graphs, device="cpu", interval=0.9)
    for index, rows in enumerate(results.rows):
        y = graphs.y_graph[:, index].double().numpy()
        known = ~np.isnan(y)
        np.testing.assert_array_equal(rows.targets, y[known])
        if rows.kind == "classes":
            expected = np.stack([given.graph[f"kind={c}"] for c in range(3)], 1)
        else:
            expected = given.graph[rows.task.name]
            std = given.spread["graph"][f"{rows.task.name}_std"]
            np.testing.assert_allclose(rows.found.std, std[known], rtol=1e-5)
        np.testing.assert_allclose(rows.found.mean, expected[known], rtol=1e-5)
    assert len(results.rows[0].targets) == 11  # one of twelve is missing
    ends = [given.spread["graph"][f"<size> & $S$_{end}"] for end in ("low", "high")]
    np.testing.assert_allclose(results.rows[2].found.ends, ends, rtol=1e-5)


def test_coverage_is_counted(trained, results):
    graphs, rows = results.graphs.split("test"), results.rows[2]
    for level, share in (*zip(LEVELS, rows.covered, strict=True),)[3::4]:  # 0.4 and 0.8
        given = predict(trained, graphs, device="cpu", interval=level).spread["graph"]
        low, high = (given[f"<size> & $S$_{end}"] for end in ("low", "high"))
        inside = sum(a <= y <= b for a, y, b in zip(low, rows.targets, high, strict=True))
        assert share == inside / 12


def test_plots_of_every_kind(shown):
    heads = re.findall(r"<h2>(.*?)</h2>", shown)
    assert heads == [
        "active",
        "kind",
        "&lt;size&gt; &amp; $S$",
        "rare",
        "Learning curve",
        "Settings",
    ]
    active = section(shown, "active")
    assert active.count("<svg") == 3 and "Test: 11 molecules with a known value, " in active
    assert "Hollow points: before calibration" in active
    assert section(shown, "kind").count("<svg") == 3
    size = section(shown, "&lt;size&gt; &amp; $S$")
    assert size.count("<svg") == 2
    assert re.search(r"90% intervals \(bars\) contain \d+% of the values\.", size)
    assert shown.count("<svg") == 3 + 3 + 2 + 1 + 1
    ids = re.findall(r' id="(.+?)"', shown)
    assert len(ids) == len(set(ids))


def test_one_class_has_no_curve_and_a_reason(shown):
    rare = section(shown, "rare")
    assert "Test: 12 molecules with a known value, 0 of them 1." in rare
    assert "There is no ROC or precision-recall curve: all known values are 0" in rare
    assert rare.count("<svg") == 1 and "Calibration</text>" in rare
    assert "– is a metric that is not defined" in shown


def test_facts(shown, trained):
    facts = dict(re.findall(r"<dt>(.+?)</dt><dd>(.+?)</dd>", shown.split("<table>")[0]))
    assert "<h1>my &amp; run</h1>" in shown
    assert facts["molecules"] == "60 (24 train, 12 validation, 12 test, 12 calibration)"
    assert facts["special rows"] == "1 duplicate, kept (same molecule as an earlier row)"
    assert facts["data"] == "measured.csv"
    assert facts["training"].startswith("2 members, 2 epochs in ")
    assert facts["command"] and facts["machine"] == trained.environment["cpu"]
    assert "<dt>batch_size</dt><dd>128</dd>" in shown
    addresses = {text for text in re.findall(r"https?://[^\"'\s<]+", shown)}
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_targets_beyond_the_limit_are_in_the_table_only(results, monkeypatch):
    monkeypatch.setattr(run_page, "MOST_TARGETS", 0)
    few = page(results)
    assert "4 more targets are in the table only." in few and few.count("<svg") == 1
    assert "<th class=word scope=row>rare</th>" in few


def test_too_few_calibration_rows(trained, monkeypatch):
    rows = CalibrationRows.of(trained)
    few = CalibrationRows(rows.members, rows.predictions[..., :5], rows.targets[:, :5])
    monkeypatch.setattr(CalibrationRows, "of", lambda run: few)
    found = RunResults.of(trained, device="cpu")
    assert found.rows[2].found.ends is None and found.rows[2].covered == ()
    assert "There are no intervals: got 5 calibration rows with a known <size>" in scored(found)
    with pytest.raises(ValueError, match="got 5 calibration rows"):
        RunResults.of(trained, interval=0.9, device="cpu")


def test_without_a_known_test_target_validation_is_drawn(trained, results):
    graphs = replace(results.graphs, y_graph=results.graphs.y_graph.clone())
    graphs.y_graph[graphs.split_of_graph == 2] = torch.nan
    found = RunResults.of(trained, graphs, device="cpu")
    assert [*found.evaluations] == ["validation"]
    validation = graphs.y_graph[graphs.split_of_graph == 1, 2]
    np.testing.assert_array_equal(found.rows[2].targets, validation)
    graphs.y_graph[:] = torch.nan
    with pytest.raises(ValueError, match="got no known target in test, validation for"):
        RunResults.of(trained, graphs, device="cpu")


def test_without_scikit_learn(results, monkeypatch):
    monkeypatch.setattr(run_page, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pna\[plot,sklearn\]'"):
        page(results)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium to open the page")
def test_a_phone_shows_the_panels_one_below_the_other(shown, tmp_path):
    seen = open_page(shown.replace("</body>", f"{MEASURE}</body>"), PHONE, tmp_path)
    assert seen["scrolls"] <= PHONE and seen["loaded"] == []
    assert all(250 < width <= PHONE for width, _ in seen["figures"])
    assert all(right <= PHONE for right in seen["paragraphs"])
