"""Which memory work is recorded in, with recordings that only remember it; see `test_captured`."""

from __future__ import annotations

import gc
import itertools
import weakref
from contextlib import contextmanager

import pytest
import torch

from pna.train import capture
from pna.train.capture import Captured, Memory


class Graph:
    """Stands for a recording on a GPU."""


@pytest.fixture
def used(monkeypatch) -> list[int]:
    """The handle of every recording, in a torch that, like its allocator, takes none whose last
    recording is gone."""
    handles, used, alive = itertools.count(), [], {}

    @contextmanager
    def record(graph, pool, stream, capture_error_mode):
        assert (stream, capture_error_mode) == ("line", "thread_local")
        left = alive.setdefault(pool, [])
        assert not left or any(one() is not None for one in left), "use_count > 0"
        left.append(weakref.ref(graph))
        used.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(capture, "_capture_stream", lambda device: "line")
    return used


def nothing() -> None:
    pass


def test_recordings_of_one_owner_share_their_memory(used):
    one, other = Memory(), Memory()
    held = [one.record(nothing), one.record(nothing), other.record(nothing), one.record(nothing)]
    assert used == [0, 0, 1, 0] and len(set(map(id, held))) == 4


def test_there_is_new_memory_once_all_recordings_are_gone(used):
    memory = Memory()
    held = [memory.record(nothing), memory.record(nothing)]
    held.pop()
    held.append(memory.record(nothing))  # one was left
    assert used == [0, 0, 0]
    held.clear()
    held.append(memory.record(nothing))
    held.append(memory.record(nothing))
    assert used == [0, 0, 0, 1, 1]


def test_a_recording_that_fails_leaves_no_memory_behind(used):
    memory = Memory()

    def fails() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        memory.record(fails)
    memory.record(nothing)
    assert used == [0, 1]


def test_work_is_warmed_up_where_it_is_recorded(used, monkeypatch):
    """torch keeps the memory that work leaves on a stream, and on every other one as much."""
    streams = []

    class Line:
        def wait_stream(self, other):
            pass

    @contextmanager
    def within(stream):
        streams.append(stream)
        yield

    monkeypatch.setattr(capture, "_capture_stream", lambda device: Line())
    monkeypatch.setattr(torch.cuda, "current_stream", Line)
    monkeypatch.setattr(torch.cuda, "stream", within)
    done = []
    for _ in range(3):
        captured = Captured(lambda: done.append(1), Memory())
        captured()
        captured()
    assert len(done) == len(streams) == 6 and all(isinstance(s, Line) for s in streams)


def test_what_went_wrong_is_said_first(used, monkeypatch):
    """Not what torch finds when it ends a recording that was broken off."""

    @contextmanager
    def unjoined(graph, pool, stream, capture_error_mode):
        try:
            yield
        finally:
            raise RuntimeError("unjoined work")

    monkeypatch.setattr(torch.cuda, "graph", unjoined)
    with pytest.raises(ZeroDivisionError):
        Memory().record(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="unjoined"):
        Memory().record(nothing)


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_is_not_collected_while_recording(used, was_on):
    """It may hold recordings, and letting go of one breaks off the one being made."""
    seen = []
    try:
        gc.enable() if was_on else gc.disable()
        Memory().record(lambda: seen.append(gc.isenabled()))
        with pytest.raises(ZeroDivisionError):
            Memory().record(lambda: 1 // 0)
        assert seen == [False] and gc.isenabled() == was_on
    finally:
        gc.enable()
