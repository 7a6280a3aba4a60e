"""What commands share: where they print, how they fail, and how they tell of long work."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pna.files import check_plain

#: Seconds that a process of many gives the first one to tell what went wrong for all of them.
_FIRST_TELLS = 5.0


def check_target(out: Path, force: bool) -> None:
    """Before the work, not after it."""
    check_plain(out)
    folder = out.resolve().parent
    if out.exists() and not force:
        raise FileExistsError(
            f"got {out}, which exists, expected a new file; --force overwrites it"
        )
    if not folder.is_dir():
        raise FileNotFoundError(f"got {out}, but there is no folder {folder}; make it")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"got {out}, but its folder may not be written to; choose another")


def check_folder(out: Path) -> None:
    """The same for a folder, which is made where there is none."""
    whole = out.absolute()
    there = next(place for place in (whole, *whole.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(f"got {out}, but {there} is no folder, expected one")
    if not os.access(there, os.W_OK):
        raise PermissionError(f"got {out}, but {there} may not be written to; choose another")


def make_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


@contextmanager
def errors() -> Iterator[None]:
    """Errors of the user or the machine as a line, not a traceback; warnings likewise.

    Of the processes that `torchrun` has started the first tells, and as it ends `torchrun` ends the
    others. One that is still there after a while has an error of its own.
    """
    first = os.environ.get("RANK", "0") == "0"
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: (
                say_error(f"warning: {message}") if first else None
            )
            yield
    except (ValueError, OSError, MemoryError) as error:
        if not first:
            time.sleep(_FIRST_TELLS)
        say_error(f"error: {error}")
        raise typer.Exit(1) from error


@contextmanager
def needing_packages() -> Iterator[None]:
    """A package that is missing is the user's to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error


def say_error(words: str) -> None:
    """One line, to where errors go, whatever is in names and files that the words quote."""
    words = "".join(c if c.isprintable() else repr(c)[1:-1] for c in words.replace("\n", " "))
    Console(stderr=True).print(words, style="red", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line for every tenth."""
    if not console.is_terminal:
        said = [0]

        def plain(done: int, total: int) -> None:
            tenth = 10 * done // total
            if tenth > said[0]:
                said[0] = tenth
                console.print(f"{done:,} of {total:,} {what}", highlight=False)

        yield plain
        return
    columns: tuple[Any, ...] = (
        TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_device(name: str) -> None:
    """Raise unless tensors can be made there; nothing stands for a usual place."""
    if not name:
        return
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"got --device {name}, which cannot be used ({why}); leave it out, or take cpu"
        ) from error


def cores() -> int:
    """Those that this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
