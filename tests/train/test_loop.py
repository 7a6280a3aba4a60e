"""A training from data to its folder: what is written, told, refused, and left as it was."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pna.data import tensor_file
from pna.data.graphset import GraphSet
from pna.files import alone
from pna.machine import machine
from pna.train import loop
from pna.train.evaluation import evaluate
from pna.train.loop import Report, fingerprint, train
from pna.train.run import BEST, CONFIG, ENVIRONMENT, LAST, METRICS, SUMMARY, Run
from pna.train.settings import ModelSettings, Settings
from tests.train.cases import SMALL, random_graphs, with_arguments

GRAPHS = random_graphs(train=6, validation=3, sizes=(3, 6))
MODEL = with_arguments(SMALL["pna stacked"], layers=1)
SETTINGS = Settings(members=2, epochs=3, batch_size=4, lr=(1e-2, 1e-3))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class StoppedError(Exception):
    """Raised by whoever watches, in place of a power cut."""


def stop_at(epoch: int):
    def report(told: Report) -> None:
        if told.epoch == epoch:
            raise StoppedError

    return report


@pytest.fixture(scope="module")
def begun_once(tmp_path_factory) -> Path:
    out: Path = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(StoppedError):
        train(GRAPHS, out, MODEL, SETTINGS, save_every=0.0, report=stop_at(2))
    assert Run(out).read(LAST)[1]["epoch"] == 1
    return out


@pytest.fixture
def begun(begun_once, tmp_path) -> Path:
    """A copy of a run whose first epoch is saved, and whose second was cut off."""
    return Path(shutil.copytree(begun_once, tmp_path / "run"))


def test_what_a_run_leaves(tmp_path):
    told: list[Report] = []
    data = tmp_path / "graphs.safetensors"
    GRAPHS.save(data)
    run = train(data, tmp_path / "deep" / "run", MODEL, SETTINGS, report=told.append)
    assert set(files_of(run.folder)) == {CONFIG, ENVIRONMENT, METRICS, BEST, LAST, SUMMARY}
    rows = run.metrics()
    assert [(row["epoch"], row["member"]) for row in rows] == [
        (e, m) for e in (1, 2, 3) for m in (0, 1)
    ]
    assert {f"validation {name}" for name in "abcpqr"} <= set(rows[0])
    for row in rows:
        of_tasks = [row[f"validation {name}"] for name in "abcpqr"]
        assert row["validation"] == pytest.approx(sum(of_tasks) / 6, rel=1e-5)
        report = told[int(row["epoch"]) - 1]
        assert report.validation[int(row["member"])] == row["validation"]
        assert report.training[int(row["member"])] == row["training"]
    assert [(t.epoch, t.epochs, t.alive, t.broken) for t in told] == [
        (e, 3, [True] * 2, [False] * 2) for e in (1, 2, 3)
    ]
    summary = run.summary
    for k in (0, 1):
        least = min((r["validation"], r["epoch"]) for r in rows if r["member"] == k)
        assert (summary["best"][k], summary["best_epoch"][k]) == least
        assert told[-1].best[k] == least[0]
    assert summary["epochs"] == 3 and summary["seeds"] == [0, 1] and summary["processes"] == 1
    assert run.config.data == {
        "path": str(data), "fingerprint": fingerprint(GRAPHS), "splits": ["train", "validation"],
        "features": {"node": ["0", "1"], "edge": []},
    }  # fmt: skip
    assert run.config.settings == SETTINGS
    assert run.config.model.degrees and run.config.model.graph_targets == 3


def test_training_learns(tmp_path):
    settings = Settings(epochs=40, batch_size=6, lr=(2e-2,), patience=None)
    rows = train(GRAPHS, tmp_path / "run", SMALL["pna recurrent"], settings).metrics()
    assert rows[-1]["training"] < 0.5 * rows[0]["training"]


def test_a_name_is_the_usual_model(tmp_path):
    settings = Settings(epochs=1, batch_size=6)
    run = train(GRAPHS, tmp_path / "run", "gcn", settings, tasks=["a", "p"], loss={"a": "mae"})
    assert (run.config.model.convolution, run.config.model.architecture) == ("gcn", "stacked")
    assert [(task.name, task.loss) for task in run.config.tasks] == [("a", "mae"), ("p", "mse")]


@pytest.mark.parametrize("depth", ["diameter", "adaptive", 3], ids=str)
def test_depths_that_ask_for_more(tmp_path, depth):
    model = with_arguments(SMALL["pna recurrent"], depth=depth)
    run = train(GRAPHS, tmp_path / "run", model, Settings(epochs=1, batch_size=4))
    assert math.isfinite(run.metrics()[0]["validation"])


def test_no_epochs_are_a_run_too(tmp_path):
    run = train(GRAPHS, tmp_path / "run", MODEL, Settings(epochs=0))
    assert run.metrics() == [] and run.summary["epochs"] == 0


def test_it_ends_when_all_have_stopped(tmp_path):
    settings = Settings(members=2, epochs=50, lr=(0.0,), patience=2)
    model = ModelSettings("pna", "standard", 4, arguments={"layers": 1})
    run = train(GRAPHS, tmp_path / "run", model, settings)
    rows = run.metrics()
    assert rows[-1]["epoch"] == run.summary["epochs"] < 50


def test_a_broken_member_is_told_of(tmp_path):
    settings = Settings(members=2, epochs=4, batch_size=4, lr=(1e-2, 1e38), patience=None)
    told: list[Report] = []
    run = train(GRAPHS, tmp_path / "run", MODEL, settings, report=told.append)
    assert told[-1].broken == run.summary["broken"] == [False, True]
    assert told[-1].alive == [True, False]
    json.loads((run.folder / SUMMARY).read_text())


# Refusals: the folder stays as it was.


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="run, which is not empty"):
        train(GRAPHS, out, MODEL, SETTINGS)
    assert files_of(out) == {"thesis.tex": b"precious"}


def test_a_run_is_not_overwritten(begun):
    before = files_of(begun)
    with pytest.raises(FileExistsError, match="resume"):
        train(GRAPHS, begun, MODEL, SETTINGS)
    assert files_of(begun) == before


def test_an_empty_folder_will_do(tmp_path):
    train(GRAPHS, tmp_path, MODEL, SETTINGS)
    assert Run(tmp_path).summary is not None


def test_what_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        train(GRAPHS, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scribble(path: Path) -> None:
    path.write_bytes(b"\x00not a checkpoint" * 10)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut, scribble, empty])
def test_a_damaged_checkpoint_is_named_and_nothing_touched(begun, spoil):
    spoil(begun / LAST)
    before = files_of(begun)
    with pytest.raises(ValueError, match=r"run/last\.safetensors"):
        train(GRAPHS, begun, resume=True)
    assert files_of(begun) == before


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (MODEL, {"members": 3, "lr": (1e-2,)}),  # more members
        (MODEL, {"members": 1, "lr": (1e-2,)}),
        (MODEL, {"average": 0.9}),  # one tensor more
        (MODEL, {"lr": (1e-2, 2e-3)}),  # the same tensors, all of them
        (MODEL, {"seed": 4}),
        (SMALL["gin recurrent"], {}),
        (with_arguments(MODEL, layers=3), {}),
    ],
    ids=["members", "fewer members", "average", "lr", "seed", "model", "layers"],
)
def test_a_checkpoint_of_another_run_is_named_and_nothing_touched(begun, tmp_path, model, settings):
    given = Settings(**{**vars(SETTINGS), **settings})
    other = train(GRAPHS, tmp_path / "other", model, given)
    (begun / LAST).write_bytes((other.folder / LAST).read_bytes())
    before = files_of(begun)
    with pytest.raises(ValueError, match=r"run/last\.safetensors, which does not belong"):
        train(GRAPHS, begun, resume=True)
    assert files_of(begun) == before


def test_the_best_is_no_checkpoint(begun):
    (begun / LAST).write_bytes((begun / BEST).read_bytes())
    with pytest.raises(ValueError, match=r"last\.safetensors"):
        train(GRAPHS, begun, resume=True)


def test_other_graphs_are_refused_and_nothing_touched(begun):
    before = files_of(begun)
    with pytest.raises(ValueError, match=r"other graphs than those that .*run was started with"):
        train(random_graphs(6, 3, (3, 6), seed=1), begun, resume=True)
    assert files_of(begun) == before


def test_a_damaged_configuration_is_named(begun):
    (begun / CONFIG).write_text("{")
    with pytest.raises(ValueError, match=r"config\.json, which cannot be used"):
        train(GRAPHS, begun, resume=True)


def test_splits_without_graphs_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="validation"):
        train(GRAPHS.split("train"), tmp_path / "run", MODEL, SETTINGS)
    assert not (tmp_path / "run").exists()


# A disk that is full.


@pytest.mark.parametrize("fails", ["fsync", "write"])
def test_a_full_disk_leaves_the_last_checkpoint(begun, monkeypatch, fails):
    """Nothing is half written, nothing left lying about, and what was saved can be gone on from."""
    held = {name: (begun / name).read_bytes() for name in (LAST, BEST, CONFIG)}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if fails == "fsync":
            patched.setattr(os, "fsync", full)
        else:
            patched.setattr(tensor_file.safetensors.torch, "save", lambda *_: Unwritable())
        with pytest.raises((OSError, TypeError)) as error:
            train(GRAPHS, begun, resume=True, save_every=0.0)
        if fails == "fsync":
            assert str(error.value).startswith(f"cannot write {begun}/")
    assert {name: (begun / name).read_bytes() for name in held} == held
    assert not list(begun.glob(".*"))
    assert Run(begun).read(LAST)[1]["epoch"] == 1
    run = train(GRAPHS, begun, resume=True)
    assert [row["epoch"] for row in run.metrics()] == [1, 1, 2, 2, 3, 3]


class Unwritable:
    """Contents that no file takes, half way through."""


def test_a_run_says_where_it_was_resumed(begun, monkeypatch):
    """Once for each start that came to a checkpoint, and the last; not where nothing was left."""

    def resumed_on(cpu: str, **options) -> dict:
        monkeypatch.setattr(loop, "machine", lambda: {"cpu": cpu})
        monkeypatch.setattr(loop, "command", lambda: f"pna on {cpu}")
        with suppress(StoppedError):
            train(GRAPHS, begun, resume=True, save_every=0.0, **options)
        return json.loads((begun / ENVIRONMENT).read_text())

    first = json.loads((begun / ENVIRONMENT).read_text())
    here = machine() | {"command": first["command"]}
    assert "resumed" not in first and first == json.loads(json.dumps(here))
    assert resumed_on("a", report=stop_at(2))["resumed"] == [
        {"after_epoch": 1, "cpu": "a", "command": "pna on a"}
    ]
    assert resumed_on("b", report=stop_at(3))["resumed"] == [
        {"after_epoch": 1, "cpu": "b", "command": "pna on b"}
    ]
    both = [
        {"after_epoch": 1, "cpu": "b", "command": "pna on b"},
        {"after_epoch": 2, "cpu": "c", "command": "pna on c"},
    ]
    assert resumed_on("c") == first | {"resumed": both}
    assert resumed_on("d") == first | {"resumed": both}
    assert resumed_on("e", epochs=4)["resumed"] == [
        *both,
        {"after_epoch": 3, "cpu": "e", "command": "pna on e"},
    ]


def test_resuming_removes_what_a_killed_process_was_writing(begun):
    (begun / ".last.safetensors.99999.tmp").write_bytes(b"half")
    train(GRAPHS, begun, resume=True)
    assert not list(begun.glob(".*"))


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        train(GRAPHS, out, MODEL, SETTINGS, report=stop_at(1))
    assert not (out / LAST).exists()
    whole = train(GRAPHS, tmp_path / "whole", MODEL, SETTINGS)
    again = train(GRAPHS, out, resume=True)
    for name, tensor in whole.read(LAST)[0].items():
        assert torch.equal(again.read(LAST)[0][name], tensor), name
    assert len(again.metrics()) == 6


@pytest.mark.slow
def test_a_run_resumed_for_every_epoch_ends_as_one_that_was_not(tmp_path):
    """At those too after which members leave: rows, weights, and who is left."""
    settings = Settings(members=4, epochs=10, batch_size=4, lr=(1e-2, 0.0, 3e-2, 0.0), patience=2)
    whole = train(GRAPHS, tmp_path / "whole", MODEL, settings)
    left = whole.read(LAST)[0]["ids"].tolist()
    assert 0 < len(left) < 4
    out = tmp_path / "run"
    for epoch in range(2, whole.summary["epochs"] + 1):
        with pytest.raises(StoppedError):
            train(GRAPHS, out, MODEL, settings, resume=epoch > 2, save_every=0.0,
                  report=stop_at(epoch))  # fmt: skip
    run = train(GRAPHS, out, resume=True)
    assert [{**row, "seconds": 0} for row in run.metrics()] == [
        {**row, "seconds": 0} for row in whole.metrics()
    ]
    for name, tensor in whole.read(LAST)[0].items():
        assert torch.equal(run.read(LAST)[0][name], tensor), name


def test_fingerprints_tell_sets_apart():
    same = random_graphs(train=6, validation=3, sizes=(3, 6))
    assert fingerprint(same) == fingerprint(GRAPHS)
    assert fingerprint(GRAPHS[1:]) != fingerprint(GRAPHS)
    changed = random_graphs(train=6, validation=3, sizes=(3, 6))
    changed.y_graph[0, 0] += 1
    assert fingerprint(changed) != fingerprint(GRAPHS)


def test_fingerprints_copy_nothing():
    """Of a set larger than memory is to spare; safetensors maps it."""
    graphs = replace(GRAPHS, x=torch.zeros(GRAPHS.num_nodes, 100_000))
    tracemalloc.start()
    fingerprint(graphs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < graphs.x.nbytes / 10


# A run that goes on for longer than it was begun for.


def test_a_finished_run_goes_on_to_more_epochs(tmp_path):
    longer = replace(SETTINGS, epochs=5)
    whole = train(GRAPHS, tmp_path / "whole", MODEL, longer)
    run = train(GRAPHS, tmp_path / "run", MODEL, SETTINGS)
    train(GRAPHS, run.folder, resume=True, epochs=5)
    assert run.config == whole.config and run.summary["epochs"] == 5
    assert run.read(LAST)[1]["config"] == whole.read(LAST)[1]["config"]
    for name, tensor in whole.read(LAST)[0].items():
        assert torch.equal(run.read(LAST)[0][name], tensor), name
    assert [row["validation"] for row in run.metrics()] == [
        row["validation"] for row in whole.metrics()
    ]


def test_a_run_cut_off_as_it_went_on_for_longer_is_not_finished(tmp_path):
    run = train(GRAPHS, tmp_path / "run", MODEL, SETTINGS)
    with pytest.raises(StoppedError):
        train(GRAPHS, run.folder, resume=True, epochs=5, report=stop_at(4))
    assert run.summary is None
    train(GRAPHS, run.folder, resume=True)
    assert run.summary["epochs"] == 5 and len(run.metrics()) == 10


@pytest.mark.parametrize(
    "settings, epochs, message",
    [
        ({"schedule": "cosine"}, 5, "schedule .cosine. was planned over 3 epochs, expected 3"),
        ({}, 2, "expected at least the 3 that are done"),
        ({"lr": (0.0,), "patience": 1}, 5, "all of its members have stopped or broken"),
    ],
    ids=["cosine", "fewer", "all stopped"],
)
def test_a_run_that_cannot_go_on_is_left_as_it_is(tmp_path, settings, epochs, message):
    model = with_arguments(SMALL["pna standard"], layers=1)
    run = train(GRAPHS, tmp_path / "run", model, replace(SETTINGS, **settings))
    before = files_of(run.folder)
    with pytest.raises(ValueError, match=message):
        train(GRAPHS, run.folder, resume=True, epochs=epochs)
    assert files_of(run.folder) == before


def test_epochs_of_a_new_run_belong_to_its_settings(tmp_path):
    with pytest.raises(ValueError, match=r"expected it in the settings"):
        train(GRAPHS, tmp_path / "run", MODEL, SETTINGS, epochs=5)


# Targets, before anything is made.


def with_targets(values: list[float], split: str) -> GraphSet:
    """The first target of the graphs of a split, over and over; all others 0.5."""
    y = torch.full_like(GRAPHS.y_graph, 0.5)
    chosen = GRAPHS.split_of_graph == GRAPHS.splits.index(split)
    y[chosen, 0] = torch.tensor(values).repeat(len(GRAPHS))[: int(chosen.sum())].to(y.dtype)
    return replace(GRAPHS, y_graph=y)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(
    "values, options, message",
    [
        ([math.nan], {}, r"got no value of the target 'p' in {}, all are missing .*--tasks"),
        ([0.5, -math.inf], {}, "got -inf for the target 'p' in {}, expected finite numbers"),
        ([0.0, 1.5], {"loss": "bce"}, r"got 1\.5 for .*'p' in {}, expected numbers from 0 to 1"),
        ([-0.5], {"loss": {"p": "bce"}}, r"got -0\.5 for the target 'p' in {}"),
    ],
    ids=["missing", "infinite", "above 1", "below 0"],
)
def test_targets_that_cannot_be_learned_are_refused(tmp_path, split, values, options, message):
    graphs = with_targets(values, split)
    with pytest.raises(ValueError, match=message.format(f"the split '{split}'")):
        train(graphs, tmp_path / "run", MODEL, SETTINGS, tasks=["p", "q"], **options)
    assert not (tmp_path / "run").exists()
    train(graphs, tmp_path / "run", MODEL, SETTINGS, tasks=["q"])  # the others can


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("level, field", [("node", "x"), ("edge", "edge_attr")])
def test_features_that_are_no_numbers_are_refused(tmp_path, split, level, field):
    """In the second graph of the split, and by its name."""
    graphs = random_graphs(edges=2)
    features = getattr(graphs, field).clone()
    at = (graphs.split_of_graph == graphs.splits.index(split)).nonzero()[1]
    features[getattr(graphs, f"{level}_offsets")[at], 1] = math.nan
    where = f"the {level} feature '1' of graph 1 of the split '{split}'"
    with pytest.raises(ValueError, match=f"got nan for {where}, expected finite"):
        train(replace(graphs, **{field: features}), tmp_path / "run", MODEL, SETTINGS)
    assert not (tmp_path / "run").exists()


def test_targets_of_nodes_and_graphs_may_have_one_name(tmp_path):
    """As those that were not named: both "0"."""
    numbered = ("0", "1", "2")
    graphs = replace(GRAPHS, node_targets=numbered, graph_targets=("0", "b", "2"))
    run = train(graphs, tmp_path / "run", MODEL, SETTINGS, loss={"node.0": "mae"})
    names = ["node.0", "1", "node.2", "graph.0", "b", "graph.2"]
    assert [(task.name, task.loss) for task in run.config.tasks] == [
        (name, "mae" if name == "node.0" else "mse") for name in names
    ]
    row = run.metrics()[0]
    of_tasks = [row[f"validation {name}"] for name in names]
    assert row["validation"] == pytest.approx(sum(of_tasks) / 6, rel=1e-5)
    found = evaluate(run, graphs, "validation")
    assert [task.name for task in found.tasks] == names
    assert found.loss == pytest.approx(run.summary["best"], rel=1e-4)
    single = train(GRAPHS, tmp_path / "alone", MODEL, SETTINGS, loss={"a": "mae"})
    assert run.summary["best"] == single.summary["best"]
    with pytest.raises(ValueError, match="unknown target '0'"):
        train(graphs, tmp_path / "other", MODEL, SETTINGS, tasks=["0"])


# Killed as it began.


def test_a_run_killed_as_its_folder_was_made_can_be_begun_anew(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / f".{CONFIG}.99999.tmp").write_text('{"version"')
    run = train(GRAPHS, out, MODEL, SETTINGS)
    assert run.summary is not None and not list(out.glob(".*"))


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks")
def test_two_trainings_do_not_share_a_folder(tmp_path):
    """The second is refused, begun anew or resumed, and the first goes on as if it were alone."""
    out, refused = tmp_path / "run", []

    def meanwhile(*_):
        for resume in (False, True):
            with pytest.raises(OSError) as problem:
                train(GRAPHS, out, MODEL, SETTINGS, resume=resume)
            refused.append(type(problem.value))

    run = train(GRAPHS, out, MODEL, SETTINGS, report=meanwhile)
    assert refused == [FileExistsError, BlockingIOError] * SETTINGS.epochs
    whole = train(GRAPHS, tmp_path / "whole", MODEL, SETTINGS)
    for name, tensor in whole.read(LAST)[0].items():
        assert torch.equal(run.read(LAST)[0][name], tensor), name
    with alone(out), pytest.raises(BlockingIOError, match="another process is writing"):
        train(GRAPHS, out, resume=True, epochs=9)
    assert run.config.settings.epochs == SETTINGS.epochs


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("pna.train.loop.make_trainer", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        train(GRAPHS, tmp_path / "run", MODEL, SETTINGS)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_told_of(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match=r"got .*run, which was removed or moved during"):
        train(GRAPHS, out, MODEL, SETTINGS, save_every=0.0, report=lambda _: shutil.rmtree(out))


def test_a_folder_that_another_took_the_place_of_is_not_written_to(tmp_path):
    out = tmp_path / "run"

    def replaced(_: object) -> None:
        out.rename(tmp_path / "away")
        train(GRAPHS, out, MODEL, SETTINGS)

    with pytest.raises(FileExistsError, match=r"got .*run, which was .*, and another folder of"):
        train(GRAPHS, out, MODEL, replace(SETTINGS, seed=7), save_every=0.0, report=replaced)
    assert Run(out).read(LAST)[1]["epoch"] == Run(out).summary["epochs"]
    assert Run(out).config.settings.seed == SETTINGS.seed


def test_rows_of_some_epochs_alone(tmp_path):
    run = train(GRAPHS, tmp_path / "run", MODEL, replace(SETTINGS, epochs=5), log_every=2)
    assert [row["epoch"] for row in run.metrics()] == [2, 2, 4, 4, 5, 5]
    with pytest.raises(ValueError, match="log_every=0"):
        train(GRAPHS, tmp_path / "other", MODEL, SETTINGS, log_every=0)


def test_other_settings_of_a_run_that_is_resumed_are_ignored_with_a_warning(begun):
    other = replace(SETTINGS, batch_size=2)
    with pytest.warns(
        UserWarning, match=r"differ from those of the run \(batch_size\); they are ignored"
    ):
        run = train(GRAPHS, begun, MODEL, other, resume=True, device="cpu")
    assert run.config.settings == SETTINGS
