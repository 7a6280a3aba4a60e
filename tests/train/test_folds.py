"""Cross-validation: a run for each fold, their scores, and predictions with all of them."""

import csv
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pytest

from pna import GraphSet
from pna.data.division import FoldOptions
from pna.data.folds import fold_of, with_folds
from pna.train import Run, Settings, cross_validate, evaluate, evaluate_folds, predict
from pna.train.defaults import model_for
from pna.train.fold_runs import FoldRuns
from pna.train.mask_columns import graphs_of
from tests.train.small_runs import molecules

LOSS = {"active": "bce", "size": "mse"}
SETTINGS = Settings(epochs=2, members=2, seed=5)


@pytest.fixture(scope="module")
def graphs() -> GraphSet:
    return with_folds(replace(molecules(48), split_of_graph=None, splits=()), FoldOptions(2))


def model(graphs: GraphSet):
    return model_for(graphs, "pna", {"hidden": 4, "layers": 1}, LOSS)


def validated(data, out, settings=SETTINGS, **options):
    graphs = data if isinstance(data, GraphSet) else GraphSet.load(data)
    given = {"loss": LOSS, "tasks": ["active", "size"], "device": "cpu", **options}
    return cross_validate(data, out, model(graphs), settings, **given)


@pytest.fixture(scope="module")
def path(graphs, tmp_path_factory):
    found = tmp_path_factory.mktemp("folds") / "graphs.safetensors"
    graphs.save(found)
    return found


@pytest.fixture(scope="module")
def scores(path):
    return validated(path, path.parent / "cv")


def test_scores_are_those_of_the_mean_prediction_on_the_test_graphs(graphs, scores):
    errors = []
    for number, run in enumerate(FoldRuns.load(scores.folder).runs):
        fold = fold_of(graphs, number).split("test")
        wanted = fold.y_graph[:, 2].numpy()
        errors.append(np.abs(predict(run, fold, device="cpu").graph["size"] - wanted).mean())
    np.testing.assert_allclose(scores.values("size")["mae"], errors, rtol=1e-5)
    mean, std = scores.means("size")["mae"]
    assert mean == pytest.approx(statistics.mean(errors), rel=1e-5)
    assert std == pytest.approx(statistics.stdev(errors), rel=1e-4)
    assert scores.targets == ["active", "size", "average"]
    assert "roc_auc" in scores.means("active") and scores.means("average") == {}


def test_the_table_has_every_fold_then_mean_and_deviation(scores, path):
    with (path.parent / "cv" / "folds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_size = [row for row in rows if row["target"] == "size"]
    assert [row["fold"] for row in of_size] == ["0", "1", "mean", "std"]
    assert [row["graphs"] for row in of_size] == ["24", "24", "", ""]
    cells = [float(row["rmse"]) for row in of_size]
    np.testing.assert_allclose(cells[2], statistics.mean(cells[:2]), rtol=1e-6)
    np.testing.assert_allclose(cells[3], statistics.stdev(cells[:2]), rtol=1e-5)
    assert all(row["roc_auc"] == "" for row in of_size)


def test_other_graphs_are_scored_by_every_fold(graphs, scores):
    others = replace(graphs, metadata={})
    found = evaluate_folds(scores.folder, others, split=None, member=1, device="cpu")
    runs = FoldRuns.load(scores.folder).runs
    each = [evaluate(run, others, None, 1, device="cpu").tasks[1].ensemble["rmse"] for run in runs]
    assert found.values("size")["rmse"] == each
    assert [of.graphs for of in found.evaluations] == [48, 48]


def test_folds_without_a_metric_are_left_out(scores):
    first, *rest = scores.evaluations
    tasks = [replace(task, ensemble=task.ensemble | {"roc_auc": np.nan}) for task in first.tasks]
    found = replace(scores, evaluations=[replace(first, tasks=tasks), *rest])
    known = scores.values("active")["roc_auc"][1:]
    assert found.means("active")["roc_auc"][0] == pytest.approx(statistics.mean(known))


def test_every_fold_is_a_run_of_its_own(graphs, scores, path):
    for number, run in enumerate(FoldRuns.load(scores.folder).runs):
        config = run.config
        assert config.settings.seeds == [5 + 2 * number, 6 + 2 * number]
        own = fold_of(graphs, number)
        assert config.tasks[1].scale == pytest.approx(own.split("train").y_graph[:, 2].max().item())
        assert graphs_of(path, config.settings.mask_column).split_of_graph.equal(own.split_of_graph)
        assert evaluate(run, device="cpu").ensemble == scores.evaluations[number].ensemble


def test_predictions_are_means_over_all_members_of_all_folds(graphs, scores):
    runs = FoldRuns.load(scores.folder).runs
    each = [predict(run, graphs, member, device="cpu").graph for run in runs for member in range(2)]
    found = predict(scores.folder, graphs, device="cpu")
    for name in ("active", "size"):
        given = np.stack([of[name] for of in each])
        np.testing.assert_allclose(found.graph[name], given.mean(0), rtol=1e-5, atol=1e-7)
        std = found.spread["graph"][f"{name}_std"]
        np.testing.assert_allclose(std, given.std(0), rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match=r"got --interval for .*, a cross-validation, .* leave"):
        predict(scores.folder, graphs, device="cpu", interval=0.9)


def test_an_interrupted_fold_goes_on_and_finished_ones_are_not_trained_again(scores, path):
    out, seen = path.parent / "again", []

    def stop(report):
        seen.append(report.epoch)
        if len(seen) == 3:
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        validated(path, out, report=stop, save_every=0)
    with pytest.raises(ValueError, match=r"of which 1 of 2 folds are trained, .*fold-0"):
        predict(out, path, device="cpu")
    with pytest.raises(ValueError, match="1 of 2 folds are trained"):
        evaluate_folds(out)
    seen.clear()
    found = validated(path, out, report=lambda report: seen.append(report.epoch), save_every=0)
    assert seen == [1, 2]  # the first epoch of the second fold was not saved
    text = (path.parent / "cv" / "folds.csv").read_text()
    assert (out / "folds.csv").read_text() == text
    assert found.evaluations[1].ensemble == scores.evaluations[1].ensemble


def test_another_cross_validation_is_not_continued(graphs, scores, path, tmp_path):
    with pytest.raises(ValueError, match=r"with other settings\.epochs, expected the same"):
        validated(path, scores.folder, replace(SETTINGS, epochs=3))
    other = with_folds(replace(molecules(48), split_of_graph=None, splits=()), FoldOptions(2), 1)
    with pytest.raises(ValueError, match=r"with other graphs or folds, expected the same"):
        validated(other, scores.folder)
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(FileExistsError, match="not empty, expected a new folder, or that of the"):
        validated(path, tmp_path)
    with pytest.raises(ValueError, match="got graphs without folds, expected some"):
        cross_validate(fold_of(graphs, 0), tmp_path / "new")
    with pytest.raises(FileNotFoundError, match=r"it is a cross-validation: pass a fold, such as"):
        _ = Run(scores.folder).config


def test_a_target_that_a_fold_does_not_have(tmp_path):
    """Found before the first fold is trained."""
    plain = replace(molecules(), split_of_graph=None, splits=())
    y = plain.y_graph.clone()
    y[4:, 2] = np.nan
    graphs = with_folds(replace(plain, y_graph=y), FoldOptions(8))
    with pytest.raises(ValueError, match=r"^fold \d: got no value of the target 'size' .*--folds"):
        validated(graphs, tmp_path / "cv")
    assert not (tmp_path / "cv").exists()


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"version": 9, "folds": []}', '{"version": 1, "folds": []}',
                '{"version": 1, "folds": [{"repeat": 0}]}'],
)  # fmt: skip
def test_a_damaged_list_of_folds(content, tmp_path):
    (tmp_path / "folds.json").write_text(content)
    with pytest.raises(ValueError, match=r"folds\.json, which cannot be used .*; restore"):
        FoldRuns.load(tmp_path)


def test_a_fold_that_broke_is_named(scores, path, tmp_path):
    shutil.copytree(scores.folder, tmp_path / "cv")
    run = Run(tmp_path / "cv" / "fold-1")
    summary = run.summary
    run.finish(summary | {"best": [None, None], "broken": [True, True]})
    with pytest.raises(ValueError, match="fold-1: the loss of every member is not finite; lower"):
        validated(path, tmp_path / "cv")
