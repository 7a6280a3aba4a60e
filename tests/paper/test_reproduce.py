import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pna.data.graphset import GraphSet
from pna.machine import command
from pna.paper.experiment import Experiment, Graphs, variants
from pna.paper.registry import EXPERIMENTS
from pna.paper.reproduce import Options, _make_files, folder_of, reproduce
from pna.paper.results import load, load_curves
from pna.paper.scores import Scores
from pna.paper.workers import run_jobs
from pna.train.loop import train
from pna.train.run import CONFIG, ERROR, Run
from tests.paper.little import make_little


@pytest.fixture(autouse=True)
def little(monkeypatch) -> None:
    make_little(monkeypatch)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are of one order only where as many threads make them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(folder: Path, experiment: Experiment, **given):
    callbacks = {name: given.pop(name) for name in ("on_epoch", "log") if name in given}
    options = Options(**{"members": 2, "quick": True, "device": "cpu", **given})
    return reproduce(experiment, folder / "results", folder / "runs", options, **callbacks)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder for each of two models, with its results and its run: tests work on copies."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        make_little(patch)
        for model in ("gcn", "gin"):
            run(folder / model, EXPERIMENTS["multitask"], models=[model])
    return folder


def copied(trained: Path, model: str, to: Path, part: str = "") -> Scores:
    """Copy what was trained, all of it or a part, and return its scores."""
    shutil.copytree(trained / model / part, to / part, dirs_exist_ok=True)
    return load(trained / model / "results")[0]


def test_from_graphs_to_scores(tmp_path) -> None:
    """From nothing: makes the graphs, then trains and tests two models, one of them PNA."""
    epochs = []
    scores = run(
        tmp_path, EXPERIMENTS["multitask"], models=["pna", "gcn"],
        on_epoch=lambda name, epoch: epochs.append((name, epoch)),
    )  # fmt: skip
    assert list(scores.populations) == ["pna", "gcn"]
    assert scores.populations["pna"].errors["test"].shape == (2, 6)
    assert np.isfinite(scores.average("pna", "test", None, ratio=True).mean)
    assert ("pna", 2) in epochs and ("gcn", 2) in epochs
    read, facts = load(tmp_path / "results")
    np.testing.assert_array_equal(
        read.populations["gcn"].errors["test"], scores.populations["gcn"].errors["test"]
    )
    assert facts["quick"] and facts["populations"]["pna"]["parameters"] == 8350
    held = facts["populations"]["pna"]
    assert held["epochs"] == 2 and held["scores"] == scores.digest("pna")
    assert held["environment"]["command"] == command()
    assert str(tmp_path) not in json.dumps(facts)


def test_what_is_trained_is_not_trained_again(tmp_path, trained) -> None:
    first = copied(trained, "gcn", tmp_path)
    trial = EXPERIMENTS["multitask"].trials(members=2, quick=True, chosen=["gcn"])[0]
    weights = tmp_path / "runs" / folder_of(trial) / "best.safetensors"
    before = weights.stat().st_mtime_ns
    assert load(tmp_path / "results")[1]["took"]["seconds"] > 0
    shutil.rmtree(tmp_path / "results")
    types = run(tmp_path, EXPERIMENTS["graph-types"], models=["gcn"])
    assert weights.stat().st_mtime_ns == before
    assert len(types.splits) == 10
    assert "took" not in load(tmp_path / "results")[1]  # the clock knows nothing of the training
    assert first.populations["gcn"].members == types.populations["gcn"].members


def test_a_finished_run_of_other_graphs_is_refused(tmp_path, trained) -> None:
    """Its scores would be those of graphs that it may have been trained on."""
    copied(trained, "gcn", tmp_path)
    (trial,) = EXPERIMENTS["multitask"].trials(members=2, quick=True, chosen=["gcn"])
    path = trial.graphs.made(tmp_path / "runs")
    graphs = GraphSet.load(path)
    replace(graphs, x=graphs.x + 1).save(path, force=True)
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(ValueError, match=r"got other graphs than those that .* was started with"):
        run(tmp_path, EXPERIMENTS["multitask"], models=["gcn"])


def test_rows_that_results_have_already_stay(tmp_path, trained) -> None:
    multitask, folder = EXPERIMENTS["multitask"], tmp_path / "results"
    alone = copied(trained, "gin", tmp_path)
    copied(trained, "gcn", tmp_path, "runs")
    facts = load(folder)[1]
    facts["evaluated on"] = facts["populations"]["gin"].pop("evaluated on")  # as it once was told
    (folder / "facts.json").write_text(json.dumps(facts))
    both = run(tmp_path, multitask, models=["gcn"])
    assert list(both.populations) == ["gcn", "gin"]  # in the experiment's order
    errors = (scores.populations["gin"].errors["test"] for scores in (alone, both))
    np.testing.assert_array_equal(*errors)
    facts = load(folder)[1]
    assert list(facts["populations"]) == ["gcn", "gin"] and "took" not in facts
    assert facts["populations"]["gin"]["label"] == "GIN"
    assert all(held["evaluated on"]["torch"] for held in facts["populations"].values())
    assert [len(rows) for rows in load_curves(folder / "curves.csv").values()] == [2, 2]
    with pytest.raises(ValueError, match=r"tuned, quick\), expected .*plain, quick\) to add to"):
        run(tmp_path, multitask, models=["gat"], recipe="plain")  # which belongs elsewhere


def test_rows_of_the_same_run_are_not_run_again(tmp_path, trained) -> None:
    multitask, epochs, log = EXPERIMENTS["multitask"], [], []
    first = copied(trained, "gcn", tmp_path)
    facts = load(tmp_path / "results")[1]
    shutil.rmtree(tmp_path / "runs")
    again = run(
        tmp_path, multitask, models=["gcn"], on_epoch=lambda *what: epochs.append(what),
        log=log.append,
    )  # fmt: skip
    (told,) = log
    assert f"in {tmp_path / 'results'}. Trained on: " in told and "add --again" in told
    assert told.startswith("These are stored results, not trained now: gcn. They are")
    assert not (tmp_path / "runs").exists() and epochs == []
    assert load(tmp_path / "results")[1] == facts and facts["took"]
    np.testing.assert_array_equal(
        again.populations["gcn"].errors["test"], first.populations["gcn"].errors["test"]
    )
    other = run(tmp_path, multitask, models=["gcn"], members=3)  # which is another run
    assert len(other.populations["gcn"].members) == 3
    with pytest.raises(ValueError, match=r"got 2 members for gcn, of which .* has 3, expected at"):
        run(tmp_path, multitask, models=["gcn"], members=2)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_finished_is_kept_whatever_becomes_of_the_others(tmp_path, workers) -> None:
    """One model more than workers is trained."""
    multitask, chosen = EXPERIMENTS["multitask"], ["gcn", "gin", "gat"][: workers + 1]
    Graphs("paper", quick=True).made(tmp_path / "runs")  # as workers know nothing of `little`

    def stop(name: str, epoch: int) -> None:
        if (tmp_path / "results" / "scores.csv").is_file():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, multitask, models=chosen, on_epoch=stop, workers=workers, threads=1)
    kept, facts = load(tmp_path / "results")
    assert 1 <= len(kept.populations) < len(chosen) and "took" not in facts
    whole = run(tmp_path, multitask, models=chosen, resume=True)
    assert list(whole.populations) == sorted(chosen)
    for name, population in kept.populations.items():
        np.testing.assert_array_equal(
            population.errors["test"], whole.populations[name].errors["test"]
        )


def test_results_that_cannot_be_read_are_refused_before_the_work(tmp_path, trained) -> None:
    copied(trained, "gin", tmp_path)
    (tmp_path / "results" / "facts.json").write_text("{")
    with pytest.raises(ValueError, match=r"facts\.json, which cannot be read .* move the folder"):
        run(tmp_path, EXPERIMENTS["multitask"], models=["gcn"])
    assert len(list((tmp_path / "runs").glob("*/g*"))) == 1
    (tmp_path / "results" / "facts.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"scores\.csv without facts\.json"):
        run(tmp_path, EXPERIMENTS["multitask"], models=["gcn"])
    (tmp_path / "results" / "scores.csv").unlink()
    copied(trained, "gcn", tmp_path, "runs")
    assert list(run(tmp_path, EXPERIMENTS["multitask"], models=["gcn"]).populations) == ["gcn"]


def test_what_was_interrupted_needs_resume(tmp_path, trained) -> None:
    multitask = EXPERIMENTS["multitask"]
    whole = load(trained / "gcn" / "results")[0]

    def stop(name: str, epoch: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, multitask, models=["gcn"], on_epoch=stop)
    with pytest.raises(FileExistsError, match="go on with --resume"):
        run(tmp_path, multitask, models=["gcn"])
    resumed = run(tmp_path, multitask, models=["gcn"], resume=True)
    np.testing.assert_array_equal(
        resumed.populations["gcn"].errors["test"], whole.populations["gcn"].errors["test"]
    )


@pytest.mark.skipif(os.name != "posix", reason="other systems have no locks")
def test_a_run_that_another_command_trains_is_not_to_be_removed(tmp_path) -> None:
    multitask = EXPERIMENTS["multitask"]

    def stop(name: str, epoch: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, multitask, models=["gcn"], on_epoch=stop)
    (config,) = (tmp_path / "runs").rglob(CONFIG)
    with Run(config.parent).alone(), pytest.raises(BlockingIOError, match="wait until"):
        run(tmp_path, multitask, models=["gcn"])


def test_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch) -> None:
    multitask, messages = EXPERIMENTS["multitask"], []

    def broken(data, folder, model, *rest, **given):
        if model.convolution == "gin":
            raise RuntimeError("the GPU is gone")
        return train(data, folder, model, *rest, **given)

    monkeypatch.setattr("pna.paper.reproduce.train", broken)
    with pytest.raises(ValueError, match=r"1 of 3 populations failed: gin; .*results.*--resume"):
        run(tmp_path, multitask, models=["gin", "gcn", "gat"], log=messages.append)
    assert set(load(tmp_path / "results")[0].populations) == {"gcn", "gat"}
    (told,) = (message for message in messages if "failed" in message)
    (kept,) = (tmp_path / "runs").rglob(ERROR)
    assert told.startswith("gin failed, the others go on: the GPU is gone")
    assert str(kept) in told and "RuntimeError: the GPU is gone" in kept.read_text(encoding="utf-8")
    with pytest.raises(RuntimeError, match="the GPU is gone"):  # alone
        run(tmp_path, multitask, models=["gin"])
    monkeypatch.undo()
    make_little(monkeypatch)
    scores = run(tmp_path, multitask, models=["gin", "gcn", "gat"], resume=True)
    assert set(scores.populations) == {"gin", "gcn", "gat"} and not kept.exists()


def test_alone_only_the_tasks_learned_are_counted(tmp_path) -> None:
    alone = replace(variants("gcn")[0], group="alone", alone=2)
    experiment = Experiment("alone", "each task alone", (alone,))
    scores = run(tmp_path, experiment, members=1)
    errors = scores.populations["gcn alone"].errors["test"]
    assert errors.shape == (6, 6)
    assert (~np.isnan(errors)).sum(1).tolist() == [1] * 6
    assert np.isfinite(scores.average("gcn alone", "test", None).mean)


def test_what_two_rows_have_in_common_is_trained_once(tmp_path, monkeypatch) -> None:
    """A quick run draws inputs once, and so both of these do."""
    asked = []

    def spied(one, jobs, *rest):
        asked.append(len(jobs))
        return run_jobs(one, jobs, *rest)

    monkeypatch.setattr("pna.paper.reproduce.run_jobs", spied)
    epochs = []
    scores = run(
        tmp_path, EXPERIMENTS["training"], models=["redrawn", "drawn-once"],
        on_epoch=lambda name, epoch: epochs.append((name, epoch)),
    )  # fmt: skip
    assert asked == [1]
    ours, once = (scores.populations[name].errors["test"] for name in ("redrawn", "drawn-once"))
    np.testing.assert_array_equal(ours, once)
    assert ("redrawn", 2) in epochs and ("drawn-once", 2) in epochs


@pytest.mark.slow
def test_two_at_a_time_are_the_same(tmp_path, one_thread) -> None:
    one = run(tmp_path / "one", EXPERIMENTS["multitask"], models=["gcn", "mpnn-max"])
    for trial in EXPERIMENTS["multitask"].trials(members=2, quick=True, chosen=["gcn"]):
        assert Run(tmp_path / "one" / "runs" / folder_of(trial)).summary is not None
    two = run(
        tmp_path / "two", EXPERIMENTS["multitask"], models=["gcn", "mpnn-max"], workers=2,
        threads=1,
    )  # fmt: skip
    for name in ("gcn", "mpnn-max"):
        np.testing.assert_allclose(
            two.populations[name].errors["test"], one.populations[name].errors["test"], rtol=1e-4
        )


def test_two_at_once_make_the_graphs_once(tmp_path):
    """Whoever comes second would have made them for nothing, and then failed to save them."""
    made = []

    class Slow:
        name = "slow"

        def made(self, folder: Path, *_: object) -> Path:
            path = folder / "slow.safetensors"
            if not path.is_file():
                made.append(path)
                time.sleep(0.2)
                path.write_bytes(b"graphs")
            return path

    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(_make_files, [slow], tmp_path / "runs", 1, print) for _ in range(2)]
    assert len(made) == 1 and [one.result() for one in found] == [{slow: made[0]}] * 2


def test_graphs_that_take_long_are_told_of(tmp_path, trained, monkeypatch) -> None:
    monkeypatch.setattr("pna.paper.reproduce._SILENCE", 0.0)
    copied(trained, "gin", tmp_path, "runs")
    (trial,) = EXPERIMENTS["multitask"].trials(members=2, quick=True, chosen=["gin"])
    trial.graphs.made(tmp_path / "runs").unlink()
    log: list[str] = []
    run(tmp_path, EXPERIMENTS["multitask"], models=["gin"], log=log.append)
    assert any(re.fullmatch(r"[\d,]+ of [\d,]+ graphs", words) for words in log)
    assert log[0].startswith("making the graphs")
