"""Processes for tests that kill, stop or limit one.

They are forked from a process that has imported pna already, which saves each of them 3 seconds.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from pna.paper.workers import _context

_PRINTED = {"stdout": 1, "stderr": 2}


class Ended(NamedTuple):
    returncode: int | None  # minus the signal that ended it
    stdout: str
    stderr: str


def started(folder: Path, work: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """A process that does `work`, a function of a module; what it prints goes to `folder`."""
    for name in _PRINTED:
        (folder / name).write_bytes(b"")  # also if the process is killed before it opens them
    process: BaseProcess = _context().Process(target=_printing_to, args=(folder, work, arguments))
    process.start()
    return process


def ended(process: BaseProcess, folder: Path, timeout: float = 120) -> Ended:
    """What became of it. A process that takes longer is killed."""
    process.join(timeout)
    process.kill()
    process.join()
    return Ended(process.exitcode, *((folder / name).read_text() for name in _PRINTED))


def run(work: Callable[..., Any], *arguments: Any) -> Ended:
    """What becomes of a process that does `work`, a function of a module."""
    with tempfile.TemporaryDirectory() as folder:
        return ended(started(Path(folder), work, *arguments), Path(folder))


def command_line(*arguments: object) -> None:
    """`pna` with these arguments, as `work` of the functions above."""
    from pna.cli import app

    app([*map(str, arguments)], prog_name="pna")


def _printing_to(folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for name, number in _PRINTED.items():
        os.dup2(os.open(folder / name, os.O_WRONLY), number)
    if hasattr(signal, "pthread_sigmask"):  # workers of `pna.paper.workers` begin without Ctrl-C
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    work(*arguments)
