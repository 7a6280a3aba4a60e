"""The folder of a run, read back: models, populations, rows."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest
import torch

from pna.data import tensor_file
from pna.train.evaluation import evaluate
from pna.train.loop import Report, make_trainer, train
from pna.train.metrics_file import Metrics
from pna.train.run import (
    BEST,
    CONFIG,
    ENVIRONMENT,
    LAST,
    METRICS,
    SUMMARY,
    Config,
    Run,
    load,
    load_population,
    write_member,
)
from pna.train.settings import Settings
from tests.train.cases import SMALL, assert_near, random_graphs, whole_batch, with_arguments

NAMES = ["epoch", "member", "loss"]
GRAPHS = random_graphs(train=6, validation=3, sizes=(3, 6))
BATCH = whole_batch(GRAPHS.split("validation"))


@pytest.fixture(
    scope="module",
    params=[
        "pna recurrent",
        "gin recurrent",
        "pna stacked",
        "gated stacked",
        "diffpool stacked",
    ],
)
def run(request, tmp_path_factory) -> Run:
    """Dropout's seeds are whole numbers among the tensors, statistics belong to members."""
    settings = Settings(
        members=3, epochs=4, batch_size=4, lr=(1e-2, 3e-2, 1e-3), precision="float64", seed=2
    )
    model = with_arguments(SMALL[request.param], dropout=0.2)
    out = tmp_path_factory.mktemp("run") / "run"
    return train(GRAPHS, out, model, settings)


@torch.no_grad()
def loss_of(model, run: Run) -> float:
    """Over the validation set, as training counts it."""
    prediction = model(BATCH)
    total = 0.0
    for task in run.config.tasks:
        level = task.level
        y = getattr(BATCH, f"y_{level}")[:, task.column] / task.scale
        total += float((getattr(prediction, level)[:, task.first] - y).square().mean())
    return total / len(run.config.tasks)


@pytest.mark.parametrize("member", [0, 1, 2])
def test_a_loaded_model_has_the_validation_loss_of_its_member(run, member):
    model = load(run, member)
    assert not model.training
    assert loss_of(model, run) == pytest.approx(run.summary["best"][member], rel=1e-12)


def test_the_best_member_is_loaded_by_default(run):
    best = run.summary["best"]
    assert loss_of(load(run), run) == pytest.approx(min(best), rel=1e-12)
    assert len({round(b, 12) for b in best}) == 3


def test_the_best_file_alone_is_enough(run, tmp_path):
    alone = tmp_path / "model.safetensors"
    alone.write_bytes((run.folder / BEST).read_bytes())
    assert torch.equal(load(alone)(BATCH).graph, load(str(run.folder))(BATCH).graph)


def test_a_population_is_loaded_with_the_predictions_of_its_members(run):
    population, config = load_population(run)
    assert config == run.config and len(population) == 3
    population.train(False)
    for level in ("node", "graph"):
        got = population.apply(BATCH, lambda p, level=level: getattr(p, level))
        for k in range(3):
            assert_near(got[k], getattr(load(run, k)(BATCH), level), 1e-12)


@pytest.mark.parametrize("epoch", ["best", "last"])
def test_a_member_as_a_run_of_its_own(tmp_path, epoch):
    settings = Settings(
        members=3, epochs=4, batch_size=4, lr=(1e-2, 3e-2, 1e-3), seed=2, keep_last=True
    )
    whole = train(GRAPHS, tmp_path / "run", SMALL["gin recurrent"], settings, device="cpu")
    alone = write_member(whole, 1, tmp_path / "alone", epoch, "runs/graphs.safetensors")
    own = alone.config.settings
    assert (own.members, own.seed, own.lr) == (1, 3, (3e-2,))
    assert alone.config.data["path"] == "runs/graphs.safetensors"
    expected = evaluate(whole, GRAPHS, "validation", 1, epoch=epoch, device="cpu")
    found = evaluate(alone, GRAPHS, "validation", device="cpu")
    assert found.metrics["log10_mse"] == pytest.approx(expected.metrics["log10_mse"])
    other = evaluate(whole, GRAPHS, "validation", 0, epoch=epoch, device="cpu")
    assert found.metrics["log10_mse"] != pytest.approx(other.metrics["log10_mse"])
    best = whole.summary["best"][1]
    assert alone.summary["best"] == [best] and not (alone.folder / METRICS).exists()


def test_loading_leaves_the_random_numbers_alone(run):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    load(run)
    assert torch.equal(torch.rand(1), expected)


def test_models_of_float32_are_loaded(tmp_path):
    """Whose whole numbers are wider than their weights."""
    model = with_arguments(SMALL["pna stacked"], dropout=0.2)
    run = train(GRAPHS, tmp_path / "run", model, Settings(epochs=1, members=2))
    loaded = load(run)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert loaded.dropout.seed.dtype == torch.int64
    assert loss_of(loaded, run) == pytest.approx(min(run.summary["best"]), rel=1e-4)
    trainer = make_trainer(run.config, GRAPHS, "cpu")  # as it began: the same seeds
    assert loaded.dropout.seed in trainer.population.buffers["dropout.seed"]


@pytest.mark.parametrize("member", [3, -1])
def test_members_that_are_not_there(run, member):
    with pytest.raises(IndexError, match=f"got member {member} of a run of 3, expected .* 0 to 2"):
        load(run, member)


def test_configurations_survive_their_file(run):
    config = run.config
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_newer_configurations_are_refused(run, tmp_path):
    held = run.config.as_dict() | {"version": 99}
    (tmp_path / CONFIG).write_text(json.dumps(held))
    with pytest.raises(ValueError, match=r"config\.json.*version 99, expected 1 or older; upgrade"):
        _ = Run(tmp_path).config


@pytest.mark.parametrize("torn", ["", "{", "{}", "[]"])
def test_a_damaged_configuration_is_named_with_a_remedy(tmp_path, torn):
    (tmp_path / CONFIG).write_text(torn)
    with pytest.raises(ValueError, match=r"config\.json, which cannot be used.*restore the file"):
        _ = Run(tmp_path).config


def test_what_is_no_run(tmp_path):
    assert not Run(tmp_path).exists and Run(tmp_path).summary is None
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(
        FileNotFoundError, match=r"has no config\.json.*folder that pna train wrote"
    ):
        _ = Run(tmp_path).config
    with pytest.raises(FileNotFoundError, match=r"no config\.json, expected the folder of a run"):
        load(tmp_path)


def test_what_is_not_trained_yet(run, tmp_path):
    Run(tmp_path).start(run.config, {})
    for read in (load, lambda folder: load_population(Run(folder), "last")):
        with pytest.raises(
            FileNotFoundError, match=r"has no (best|last).*continue it: pna train --resume"
        ):
            read(tmp_path)


def test_a_run_killed_as_its_folder_was_made_is_to_be_started_again(tmp_path):
    (tmp_path / f".{CONFIG}.99999.tmp").write_text("{")
    with pytest.raises(FileNotFoundError, match=r"nothing was saved in it yet: .*without --resume"):
        _ = Run(tmp_path).config


def test_a_run_of_no_epochs_is_to_be_trained_for_more(tmp_path):
    """And is not finished while it is."""
    run = train(GRAPHS, tmp_path / "run", SMALL["pna stacked"], Settings(epochs=0))
    with pytest.raises(FileNotFoundError, match=r"for 0 epochs; .*--resume .*run --epochs 10"):
        load(run)
    finished = []
    train(GRAPHS, run.folder, resume=True, epochs=1, report=lambda _: finished.append(run.summary))
    assert finished == [None] and run.summary["epochs"] == 1


@pytest.fixture
def short(tmp_path) -> Run:
    """Of an epoch, whose files may be damaged."""
    return train(GRAPHS, tmp_path / "run", SMALL["pna stacked"], Settings(epochs=1, batch_size=6))


def test_weights_that_are_gone_after_training(short):
    (short.folder / BEST).unlink()
    with pytest.raises(FileNotFoundError, match="the file is gone: restore it, or start a new run"):
        load(short)


@pytest.mark.parametrize("name", [BEST, LAST])
def test_damaged_tensors_are_not_gone_on_with(short, name):
    path = short.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-400] + bytes(b ^ 1 for b in whole[-400:]))
    with pytest.raises(ValueError, match=rf"{name}, which is damaged .*restore it"):
        short.read(name)
    if name == LAST:
        with pytest.raises(ValueError, match=rf"{name}, which is damaged"):
            train(GRAPHS, short.folder, resume=True, epochs=2)


def test_tensors_written_before_there_were_checksums_are_read(short):
    tensors, facts = short.read(BEST)
    path = short.folder / BEST
    tensor_file.write(path, tensors, facts, kind="pna.train.best", version=1, force=True)
    assert short.read(BEST)[1] == facts


@pytest.mark.parametrize("name", [BEST, LAST])
def test_tensors_of_another_run_are_refused(short, tmp_path, name):
    other = train(GRAPHS, tmp_path / "other", SMALL["pna stacked"], Settings(epochs=1), tasks=["p"])
    (short.folder / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(
        ValueError, match=rf"run/{name}, which does not belong to .*run: it belongs to"
    ):
        short.read(name)


def test_the_number_of_epochs_makes_no_other_run(short):
    config = short.config
    longer = replace(config, settings=replace(config.settings, epochs=9))
    (short.folder / CONFIG).write_text(json.dumps(longer.as_dict()))
    assert short.read(BEST)[1]["epoch"] == 1


def test_the_last_in_place_of_the_best(short):
    with pytest.raises(ValueError, match=r"file of pna\.train\.last, .*; pass a run, or restore"):
        load(short.folder / LAST)


@pytest.mark.parametrize("torn", ["", "{", "[]", "{}", '{"epochs": 2}'])
def test_a_damaged_summary_is_named_with_a_remedy_that_works(short, torn):
    whole = short.summary
    (short.folder / SUMMARY).write_text(torn)
    with pytest.raises(ValueError, match=r"summary\.json, which cannot.*remove the file.*--resume"):
        _ = short.summary
    (short.folder / SUMMARY).unlink()
    train(GRAPHS, short.folder, resume=True)
    assert short.summary["best"] == whole["best"]


def test_a_damaged_summary_of_kept_weights_is_not_written_again(short):
    """There is no checkpoint to resume."""
    (short.folder / SUMMARY).write_text("{")
    (short.folder / LAST).unlink()
    with pytest.raises(ValueError, match=r"remove the file$"):
        _ = short.summary
    (short.folder / SUMMARY).unlink()
    load(short.folder)


@pytest.mark.parametrize("torn", [None, "{", "[]"])
def test_a_damaged_environment_is_named_before_anything_is_written(short, torn):
    path = short.folder / ENVIRONMENT
    path.unlink()
    if torn is not None:
        path.write_text(torn)
    before = {p.name: p.read_bytes() for p in short.folder.iterdir()}
    with pytest.raises(
        ValueError, match=r"environment\.json, which cannot be read .*write \{\} in"
    ):
        train(GRAPHS, short.folder, resume=True, epochs=2)
    assert {p.name: p.read_bytes() for p in short.folder.iterdir()} == before
    path.write_text("{}")
    train(GRAPHS, short.folder, resume=True, epochs=2)
    assert [start["after_epoch"] for start in short.environment["resumed"]] == [1]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space, or have your quota raised"),
        (errno.EFBIG, "raise the limit on the size of a file (ulimit -f), or choose another disk"),
        (errno.EROFS, "make the disk writable"),
        (errno.EACCES, "make the folder writable"),
    ],
    ids=errno.errorcode.get,
)
def test_an_error_of_the_disk_says_how_to_go_on(short, monkeypatch, number, remedy):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    tensors, facts = short.read(LAST)
    metrics = Metrics(short.folder / METRICS, NAMES)
    before = {p.name: p.read_bytes() for p in short.folder.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        writes = {
            LAST: lambda: short.write(LAST, tensors, facts),
            SUMMARY: lambda: short.finish({}),
            ENVIRONMENT: lambda: short.start(short.config, {}),
            METRICS: metrics.close,
        }
        for name, write in writes.items():
            with pytest.raises(OSError) as error:
                write()
            message = str(error.value)
            assert os.strerror(number) in message and str(short.folder) in message
            assert message.endswith(f"; {remedy}, then pna train --resume {short.folder}")
            assert error.value.errno == number and (name != LAST or LAST in message)
    before.pop(SUMMARY)  # a run that begins has none
    assert {p.name: p.read_bytes() for p in short.folder.iterdir()} == before


def test_a_limit_on_the_size_of_files_leaves_the_checkpoint_before_good(tmp_path):
    """And the run goes on from there, once the limit is raised, to where it would have come."""
    resource = pytest.importorskip("resource")
    settings = Settings(members=2, epochs=5, batch_size=6)
    whole = train(GRAPHS, tmp_path / "whole", SMALL["pna stacked"], settings, device="cpu")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(report: Report) -> None:
        if report.epoch == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))

    out = tmp_path / "run"
    try:
        with pytest.raises(OSError, match=r"too large.*ulimit -f.*then pna train --resume .*run"):
            train(
                GRAPHS, out, SMALL["pna stacked"], settings,
                device="cpu", save_every=0.0, report=limit,
            )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert Run(out).read(LAST)[1]["epoch"] == 2
    run = train(GRAPHS, out, resume=True, device="cpu")
    assert not list(out.glob(".*"))
    for name in (BEST, LAST):
        tensors, others = run.read(name)[0], whole.read(name)[0]
        assert all(torch.equal(tensors[key], others[key]) for key in others)
    assert [row["epoch"] for row in run.metrics()] == [row["epoch"] for row in whole.metrics()]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/run.*; choose another"):
        train(GRAPHS, tmp_path / "file" / "run", SMALL["pna stacked"], Settings(epochs=1))
