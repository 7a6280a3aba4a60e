"""A run that is out of memory has a checkpoint, from which it ends as if it had not been."""

from __future__ import annotations

import pytest
import torch

from pna.train.loop import train
from pna.train.memory_errors import is_out_of_memory
from pna.train.run import BEST, LAST, Run
from pna.train.settings import ModelSettings, Settings
from pna.train.trainer import Trainer
from tests.train.cases import random_graphs

MODEL = ModelSettings("gin", "stacked", 4, arguments={"dropout": 0.2, "layers": 2})
#: Two members learn nothing and stop after epoch 3, so that the others are compacted.
SETTINGS = Settings(
    members=4, epochs=5, batch_size=6, lr=(3e-3, 0.0, 1e-3, 0.0), patience=2, average=0.9
)

OF_A_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 95.37 GiB. GPU 0 has …")
OF_A_CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 2147483648 bytes. Error code 12 (Cannot allocate memory)"
)


def fail_in(monkeypatch, part, call, error):
    """Raise at the given call of `_train`, two of which are an epoch, or of `_validate`."""
    calls, step = [0], getattr(Trainer, part)

    def failing(self, batch):
        calls[0] += 1
        step(self, batch)  # its weights, running statistics and random numbers have changed
        if calls[0] == call:
            raise error

    monkeypatch.setattr(Trainer, part, failing)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(random_graphs(), folder, MODEL, SETTINGS, device="cpu")


def tensors_of(run, name):
    return run.read(name)[0]


@pytest.mark.parametrize(
    ("part", "call", "done", "error", "amount"),
    [
        # before there is any checkpoint
        pytest.param("_train", 1, 0, OF_A_GPU, "95.37 GiB more", marks=pytest.mark.slow),
        ("_train", 6, 2, OF_A_GPU, "95.37 GiB more"),  # in the second step of the third epoch
        ("_validate", 3, 2, OF_A_CPU, "2 GiB more"),
        # after members have left
        pytest.param("_train", 9, 4, MemoryError(), "edges; ", marks=pytest.mark.slow),
    ],
)
def test_the_resumed_run_ends_as_the_uninterrupted_one(
    monkeypatch, tmp_path, whole, part, call, done, error, amount
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in(patch, part, call, error)
        remedies = rf"{amount}.*free.*epoch {done} is saved.*--resume .*run.*--members"
        with pytest.raises(MemoryError, match=remedies):
            train(random_graphs(), folder, MODEL, SETTINGS, device="cpu")
    assert Run(folder).read(LAST)[1]["epoch"] == done
    resumed = train(random_graphs(), folder, resume=True, device="cpu")
    for name in (LAST, BEST):
        expected = tensors_of(whole, name)
        got = tensors_of(resumed, name)
        assert expected.keys() == got.keys()
        assert all(torch.equal(got[n], expected[n]) for n in expected)
    assert resumed.summary["best"] == whole.summary["best"]
    rows = [[row[k] for k in ("epoch", "member", "training")] for row in resumed.metrics()]
    assert rows == [[row[k] for k in ("epoch", "member", "training")] for row in whole.metrics()]


def test_other_errors_are_not_explained(monkeypatch, tmp_path):
    fail_in(monkeypatch, "_train", 1, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(random_graphs(), tmp_path / "run", MODEL, SETTINGS, device="cpu")
    assert not is_out_of_memory(ValueError("not enough memory"))


def test_memory_for_the_graphs_is_missing(monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise OF_A_GPU

    monkeypatch.setattr("pna.train.loop.make_trainer", fail)
    with pytest.raises(MemoryError, match=r"95.37 GiB more; .* are free; use a smaller") as caught:
        train(random_graphs(), tmp_path / "run", MODEL, SETTINGS, device="cpu")
    assert "resume" not in str(caught.value) and not (tmp_path / "run" / LAST).exists()
