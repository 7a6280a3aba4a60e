"""Which graphs come when, and that each comes once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pna.data import tensor_file
from pna.data.diameter import diameters
from pna.train import train
from pna.train.batches import Batches, Execution, order
from pna.train.settings import ModelSettings, Settings
from tests import processes
from tests.train.cases import random_graphs

GRAPHS = random_graphs(11, 0)


def seen(epoch: int = 0, **options) -> list[list[int]]:
    """The graphs of every batch."""
    found = []

    def step(batch):
        ids = batch.graph_ids
        found.append(ids[batch.real].tolist() if batch.real is not None else ids.tolist())

    size, shuffle = options.pop("batch_size", 4), options.pop("shuffle", True)
    batches = Batches(GRAPHS, step, size, shuffle=shuffle, seed=3, execution=Execution(**options))
    batches.run(epoch)
    assert len(found) == len(batches)
    return found


def test_orders_are_functions_of_seed_and_epoch():
    assert order(5, False, 7, 3).tolist() == [0, 1, 2, 3, 4]
    first = order(50, True, 1, 0)
    assert sorted(first.tolist()) == list(range(50))
    assert np.array_equal(first, order(50, True, 1, 0))
    for seed, epoch in ((1, 1), (2, 0), (0, 1)):
        assert not np.array_equal(first, order(50, True, seed, epoch))


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("pad", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_every_graph_comes_once(batch_size, pad, shuffle):
    found = seen(batch_size=batch_size, pad=pad, shuffle=shuffle)
    flat = [i for batch in found for i in batch]
    assert flat == order(11, shuffle, 3, 0).tolist()
    assert all(len(batch) == min(batch_size, 11) for batch in found[:-1])


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("batch_size", [2, 5])
def test_processes_share_every_batch(processes, batch_size):
    """Evenly, as far as it goes; some may have none of the last."""
    whole = seen(batch_size=batch_size)
    shares = [seen(batch_size=batch_size, rank=r, processes=processes) for r in range(processes)]
    for number, batch in enumerate(whole):
        parts = [share[number] for share in shares]
        assert [i for part in parts for i in part] == batch
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_processes_agree_on_sizes():
    """A recurrent model must call the layers that share sums as often in each."""
    ranges = set()
    for rank in range(2):
        own = Execution(rank=rank, processes=2)
        step = lambda b: ranges.add(b.size_range)  # noqa: E731
        Batches(GRAPHS, step, 2, shuffle=True, execution=own).run(0)
    assert ranges == {(int(GRAPHS.sizes.min()), int(GRAPHS.sizes.max()))}


@pytest.mark.parametrize("pad", [False, True], ids=["plain", "padded"])
def test_diameters_are_those_of_the_graphs(pad):
    far = diameters(GRAPHS)

    def step(batch):
        real = slice(None) if batch.real is None else batch.real
        assert torch.equal(batch.diameter[real], far[batch.graph_ids[real]])
        # recorded once for all graphs, a step cannot go by those at hand
        expected = far.max() if pad else batch.diameter.max()
        assert batch.max_diameter == int(expected)

    Batches(GRAPHS, step, 4, shuffle=True, diameters=far, execution=Execution(pad=pad)).run(1)


def test_processes_agree_on_diameters():
    far, found = diameters(GRAPHS), set()
    for rank in range(2):
        own = Execution(rank=rank, processes=2)
        step = lambda b: found.add(b.max_diameter)  # noqa: E731
        Batches(GRAPHS, step, 2, shuffle=True, diameters=far, execution=own).run(0)
    assert found == {int(far.max())}


def test_batches_too_large_to_pad_come_as_they_are():
    found: list[bool] = []
    step = lambda b: found.append(b.real is None)  # noqa: E731
    batches = Batches(GRAPHS, step, 4, shuffle=True, execution=Execution(pad=True))
    batches._shapes = batches._shapes[:1]
    batches._shapes = [type(s)(s.graphs, 5, 5) for s in batches._shapes]
    batches.run(0)
    assert found == [True] * 3


def test_ids_of_an_epoch_are_moved_to_the_device_at_once(monkeypatch):
    """A transfer before every step would wait for the step before."""
    moved = []
    monkeypatch.setattr(torch, "from_numpy", lambda a: moved.append(a.shape) or torch.tensor(a))
    assert len(seen(batch_size=4, pad=True)) == 3
    assert moved == [(3, 4)]


def test_batches_that_never_change_are_made_once():
    made = []
    batches = Batches(GRAPHS, made.append, 4, shuffle=False)
    batches.run(0), batches.run(1)
    assert all(one is other for one, other in zip(made[:3], made[3:], strict=True))


def cut_while_mapped(path: Path) -> None:
    try:
        cut_while_trained_on(path, -1)
    except ValueError as error:
        sys.exit(f"error: {error}")


def cut_while_trained_on(path: Path, most: int) -> None:
    """Train on a file that is read to memory if it has at most so many bytes, else mapped."""
    random_graphs(11, 3).save(path)
    model, settings = ModelSettings("gin", hidden=4), Settings(epochs=3, batch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "IN_MEMORY", most)
        train(path, path.with_name("run"), model, settings, report=lambda _: os.truncate(path, 10))


def test_a_mapped_file_that_is_cut_stops_training_with_an_error(tmp_path):
    """Not with a signal, which takes a process of its own to see."""
    path = tmp_path / "set.safetensors"
    done = processes.run(cut_while_mapped, path)
    assert done.returncode == 1, done.stderr  # SIGBUS would be -7
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"error: got {path}, which was changed while it was in use")


def test_a_file_in_memory_may_be_cut(tmp_path):
    cut_while_trained_on(tmp_path / "set.safetensors", tensor_file.IN_MEMORY)
