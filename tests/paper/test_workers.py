"""Several trainings at a time: what happens to the others when one fails, or at Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from pna.data.multitask import multitask
from pna.paper.experiment import Graphs
from pna.paper.workers import run_jobs, sigterm_as_ctrl_c
from pna.signals import stop_when_asked
from pna.train.run import CONFIG, LAST, Run
from tests import processes

MANY = 2400  # so that a busy machine is not taken for one that does not stop


def count(name: str, until: int, on_epoch) -> str:
    """Tells of epochs, a tenth of a second each, until it is asked to stop."""
    with stop_when_asked() as stop:
        for epoch in range(until):
            on_epoch(name, epoch)
            if stop.is_set():
                raise KeyboardInterrupt
            time.sleep(0.1)
    return name


def fail(name: str, until: int, on_epoch) -> str:
    on_epoch(name, until)
    raise ValueError(f"{name} went wrong")


def either(name: str, until: int, on_epoch) -> str:
    return (fail if name == "bad" else count)(name, until, on_epoch)


def blocked() -> bool:
    """Whether Ctrl-C could not have come since this process began."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def count_and_look(name: str, until: int, on_epoch) -> tuple[str, bool]:
    return count(name, until, on_epoch), blocked()


def test_in_order_and_told_of_and_ctrl_c_is_for_whoever_waits() -> None:
    epochs: list[tuple[str, int]] = []
    jobs = [("a", 3), ("b", 2), ("c", 1)]
    done = run_jobs(count_and_look, jobs, 2, lambda *what: epochs.append(what))
    assert done == [("a", True), ("b", True), ("c", True)]
    assert sorted(epochs) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    assert not blocked()


def test_where_one_fails_the_others_stop() -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="bad went wrong"):
        run_jobs(either, [("good", MANY), ("bad", 1), *[("later", MANY)] * 4], 2)
    assert time.monotonic() - begin < MANY * 0.1 / 2


@pytest.mark.parametrize("workers", [1, 2])
def test_others_go_on_where_someone_takes_the_error(workers: int) -> None:
    failed, ended = {}, {}
    jobs = [("good", 2), ("bad", 1), ("later", 3)]
    done = run_jobs(
        either, jobs, workers, lambda *_: None, None, ended.__setitem__, failed.__setitem__
    )
    assert done == ["good", "later"] and ended == {0: "good", 2: "later"}
    assert {index: str(error) for index, error in failed.items()} == {1: "bad went wrong"}


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_worker_that_is_killed_ends_all_even_where_someone_takes_errors() -> None:
    failed: dict[int, Exception] = {}
    with pytest.raises(MemoryError, match="a worker was killed"):
        run_jobs(die, [("a", 1), ("b", 1)], 2, on_failed=failed.__setitem__)
    assert not failed


def die(name: str, until: int, on_epoch) -> str:
    on_epoch(name, until)
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_worker_that_is_killed_is_told_of() -> None:
    with pytest.raises(MemoryError, match=r"a worker was killed.*fewer workers.*--resume"):
        run_jobs(die, [("a", 1), ("b", 1)], 2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_whoever_began_them(tmp_path: Path) -> None:
    """Who cannot ask them to, if killed."""
    jobs = [(str(tmp_path), k) for k in (1, 2)]
    parent = processes.started(tmp_path, run_jobs, write_pid, jobs, 2)
    try:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("worker-*"))) < 2:
            assert parent.is_alive() and time.monotonic() < end
            time.sleep(0.02)
    finally:
        parent.kill()
    workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    end = time.monotonic() + 30
    while any(map(works, workers)):
        assert time.monotonic() < end
        time.sleep(0.02)


def works(process: int) -> bool:
    """Whether it is there, and not merely waiting for somebody to take note of its end."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def write_pid(folder: str, until: int, on_epoch) -> str:
    """Write the number of its process to a file, then run for long without a report."""
    (Path(folder) / f"worker-{os.getpid()}").touch()
    time.sleep(MANY)
    return folder


def test_where_who_listens_fails_all_stop() -> None:
    begin = time.monotonic()

    def on_epoch(name: str, epoch: int) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(count, [(name, MANY) for name in "abcd"], 2, on_epoch)
    assert time.monotonic() - begin < MANY * 0.1 / 2


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_sigterm_to_the_first_process_alone_stops_all() -> None:
    begin = time.monotonic()

    def on_epoch(name: str, epoch: int) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # which would end the tests
        if epoch == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(count, [(name, MANY) for name in "abcd"], 2, on_epoch)
    assert time.monotonic() - begin < MANY * 0.1 / 2
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_two_signals_at_once_do_not_end_the_wait_for_workers() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with sigterm_as_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # would raise here
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_all_workers_are_started(monkeypatch, number) -> None:
    """Another thread receives it. A worker that starts after the end has no queue of reports."""
    spawned = []
    spawn = ProcessPoolExecutor._spawn_process

    def interrupted(pool: ProcessPoolExecutor) -> None:
        sender = threading.Thread(target=os.kill, args=(os.getpid(), number))
        sender.start()
        sender.join()
        spawn(pool)
        spawned.append(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", interrupted)
    with sigterm_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
        run_jobs(count, [(name, MANY) for name in "ab"], 2)
    assert len(spawned) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_to_all_processes_can_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    """As Ctrl-C in a terminal, or `timeout`. Two processes import torch: the command, and the one
    that its workers are forked from."""
    graphs = multitask(0, sizes=(15, 16), counts={"train": 32, "validation": 2, "test": 2})
    (tmp_path / "runs").mkdir()
    graphs.save(tmp_path / "runs" / f"{Graphs('paper', quick=True).name}.safetensors")
    command = [
        sys.executable, "-m", "pna", "reproduce", "multitask", "--quick", "--members", "1",
        "--workers", "2", "--device", "cpu", "--runs", str(tmp_path / "runs"),
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    configs = f"runs/*/*/{CONFIG}"
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            end = time.monotonic() + 120
            while not list(tmp_path.glob(configs)):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.02)
            os.killpg(process.pid, number)
            said, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "to continue" in said
    begun = [Run(path.parent) for path in tmp_path.glob(configs)]
    assert 1 <= len(begun) < 7  # not all of them were begun, and of those that were
    assert any(run.summary is None for run in begun)
    assert all((run.folder / LAST).is_file() for run in begun)  # after the epoch they were in
