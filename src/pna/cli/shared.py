"""What commands share: printing, tables, errors, progress, and checks of paths and devices."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from pna.files import check_plain

#: The name of standard input, and of standard output, in place of a file's.
STANDARD = "-"

#: Temporary files, and what messages call them.
CALLED: dict[str, str] = {}

#: Seconds that other processes of `torchrun` wait, so that the first one reports an error.
_FIRST_REPORTS = 5.0


def check_target(out: Path, force: bool) -> None:
    """Raise unless this file can be written. Called before the work, not after it."""
    check_plain(out)
    folder = out.resolve().parent
    if out.exists() and not force:
        raise FileExistsError(
            f"got {out}, which exists, expected a new file; --force overwrites it"
        )
    if not folder.is_dir():
        raise FileNotFoundError(f"got {out}, but there is no folder {folder}; make it")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"got {out}, but its folder is not writable; choose another")


def check_folder(out: Path) -> None:
    """Raise unless this folder can be written to, or made."""
    path = out.absolute()
    there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not there.is_dir():
        raise NotADirectoryError(f"got {out}, but {there} is not a folder, expected one")
    if not os.access(there, os.W_OK):
        raise PermissionError(f"got {out}, but {there} is not writable; choose another")


def make_console(width: int = 160) -> Console:
    """A console as wide as the terminal, or as this where there is none."""
    return Console(emoji=False, width=None if sys.stdout.isatty() else width)


def console_of_notes(console: Console, quiet: bool, as_json: bool) -> Console:
    """The console for lines that are not the result: none if quiet, stderr beside JSON."""
    if quiet:
        return Console(quiet=True)
    return Console(stderr=True, emoji=False) if as_json else console


def print_line(console: Console, text: str) -> None:
    """Print one line as it is: without colours, markup or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def make_table(left: Iterable[str], right: Iterable[str] = (), title: str | None = None) -> Table:
    """An empty table with columns of text, then columns of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right")
    return table


@contextmanager
def errors() -> Iterator[Console]:
    """A console for a command, which prints errors of the user or the machine, and warnings, as
    one line without a traceback.

    Among the processes of `torchrun`, the first one reports; when it ends, `torchrun` ends the
    others. A process that is still alive after a few seconds has an error of its own.
    """
    first = os.environ.get("RANK", "0") == "0"
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: (
                print_error(f"warning: {message}") if first else None
            )
            yield make_console()
    except (ValueError, OSError, MemoryError, ModuleNotFoundError) as error:
        if not first:
            time.sleep(_FIRST_REPORTS)
        print_error(f"error: {error}")
        raise typer.Exit(1) from error


def print_error(text: str) -> None:
    """Print one line to stderr; characters that cannot be printed are escaped."""
    for path, name in CALLED.items():
        text = text.replace(path, name)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", " "))
    console = Console(stderr=True, emoji=False)  # :b: may be part of a name
    console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; otherwise one line for every 10%. Both have the rate and the
    time left, measured from the first call on."""
    if not console.is_terminal:
        printed, began = 0, (0, 0.0)

        def plain(done: int, total: int) -> None:
            nonlocal printed, began
            now = time.monotonic()
            began = began if began[1] else (done, now)
            rate = (done - began[0]) / (now - began[1]) if now - began[1] > 0.5 else 0
            tenth = 10 * done // total
            if tenth > printed:
                printed = tenth
                left = timedelta(seconds=round((total - done) / rate)) if rate else ""
                more = f", {rate:,.0f} per second, {left} left" if rate and tenth < 10 else ""
                print_line(console, f"{done:,} of {total:,} {what}{more}")

        yield plain
        return
    columns: tuple[Any, ...] = (
        TextColumn(what), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)
        begun = False

        def update(done: int, total: int) -> None:
            nonlocal begun
            if begun:
                bar.update(task, completed=done, total=total)
            else:  # which no speed is computed from: it may resume
                bar.reset(task, completed=done, total=total)
            begun = True

        yield update


class _RateColumn(ProgressColumn):
    """How much is done in a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def read_standard_input(folder: Path, column: str = "") -> Path:
    """A table file in this folder with all of standard input.

    It is CSV if its first line names this column, or one of SMILES; else a SMILES in each line.
    """
    path = folder / "standard input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with path.open("rb") as file:
        first = file.readline()
    is_table = b"smiles" in first.lower() or (column and column.encode() in first)
    path = path.rename(path.with_suffix(".csv" if is_table else ".smi"))
    CALLED[str(path)] = "standard input"
    return path


def warn_of_unfinished(run: Path) -> None:
    """Warn on standard error if the training of a run was interrupted or is going on."""
    from pna.train.run import Run

    if Run(run).exists and Run(run).summary is None:
        print_error(
            f"warning: the training of {run} has not ended; these are the best weights so far: pna "
            f"train --resume {run}"
        )


def check_device(name: str) -> None:
    """Raise unless tensors can be made on this device; an empty name is the default device."""
    if not name:
        return
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"got --device {name}, which cannot be used ({why}); leave it out, or use cpu"
        ) from error


def cores() -> int:
    """Number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
