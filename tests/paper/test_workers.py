"""Several trainings at a time: what happens to the others when one fails, or at Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pna.paper.workers import all_of
from pna.train.run import Run

MANY = 2400  # so that a busy machine is not taken for one that does not stop


def count(name: str, until: int, told) -> str:
    """Tells of epochs, a tenth of a second each, until it is asked to stop."""
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(name))
    try:
        for epoch in range(until):
            told(name, epoch)
            if asked:
                raise KeyboardInterrupt
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    return name


def fail(name: str, until: int, told) -> str:
    told(name, until)
    raise ValueError(f"{name} went wrong")


def either(name: str, until: int, told) -> str:
    return (fail if name == "bad" else count)(name, until, told)


def blocked() -> bool:
    """Whether Ctrl-C could not have come since this process began."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def count_and_look(name: str, until: int, told) -> tuple[str, bool]:
    return count(name, until, told), blocked()


@pytest.mark.slow
def test_in_order_and_told_of_and_ctrl_c_is_for_whoever_waits() -> None:
    """Workers are processes that import torch, as in all tests of this file."""
    heard: list[tuple[str, int]] = []
    jobs = [("a", 3), ("b", 2), ("c", 1)]
    done = all_of(count_and_look, jobs, 2, lambda *what: heard.append(what))
    assert done == [("a", True), ("b", True), ("c", True)]
    assert sorted(heard) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    assert not blocked()


@pytest.mark.slow
def test_where_one_fails_the_others_stop() -> None:
    """Workers import torch."""
    begin = time.monotonic()
    with pytest.raises(ValueError, match="bad went wrong"):
        all_of(either, [("good", MANY), ("bad", 1), *[("later", MANY)] * 4], 2)
    assert time.monotonic() - begin < MANY * 0.1 / 2


def die(name: str, until: int, told) -> str:
    told(name, until)
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_worker_that_is_killed_is_told_of() -> None:
    """Workers import torch."""
    with pytest.raises(MemoryError, match=r"a worker was killed.*fewer workers.*--resume"):
        all_of(die, [("a", 1), ("b", 1)], 2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_whoever_began_them(tmp_path: Path) -> None:
    """Who cannot ask them to, if killed. Three processes import torch."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pna.paper.workers import all_of\n"
        "from tests.paper.test_workers import say\n"
        f"if __name__ == '__main__': all_of(say, [({str(tmp_path)!r}, k) for k in (1, 2)], 2)\n"
    )
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen([sys.executable, str(script)], env=environment) as process:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("worker-*"))) < 2:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        process.kill()
    workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    end = time.monotonic() + 30
    while any(map(works, workers)):
        assert time.monotonic() < end
        time.sleep(0.1)


def works(process: int) -> bool:
    """Whether it is there, and not merely waiting for somebody to take note of its end."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def say(folder: str, until: int, told) -> str:
    """Leaves its number behind, and works on and on without telling."""
    (Path(folder) / f"worker-{os.getpid()}").touch()
    time.sleep(MANY)
    return folder


@pytest.mark.slow
def test_where_who_listens_fails_all_stop() -> None:
    """Workers import torch."""
    begin = time.monotonic()

    def told(name: str, epoch: int) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_of(count, [(name, MANY) for name in "abcd"], 2, told)
    assert time.monotonic() - begin < MANY * 0.1 / 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("kill, number", [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)])
def test_what_is_stopped_can_go_on(tmp_path: Path, kill, number) -> None:
    """By Ctrl-C in a terminal, which all processes hear; by SIGTERM to the first alone. The graphs
    are made and three processes import torch before there is anything to stop."""
    command = [
        sys.executable, "-m", "pna", "reproduce", "multitask", "--quick", "--members", "1",
        "--workers", "2", "--device", "cpu", "--runs", str(tmp_path / "runs"),
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            end = time.monotonic() + 120
            while not list(tmp_path.glob("runs/*/*/config.json")):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.2)
            time.sleep(1)
            kill(process.pid, number)
            said, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "to continue" in said
    begun = [Run(path.parent) for path in tmp_path.glob("runs/*/*/config.json")]
    assert 1 <= len(begun) < 7  # not all of them were begun, and of those that were
    assert any(run.summary is None for run in begun)
