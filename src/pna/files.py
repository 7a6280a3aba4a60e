"""Files that are written wholly or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_ASIDE = re.compile(r"\..+\.\d+\.tmp")  # what `replacing` writes to


@contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write in place of another: aside, synced, renamed.

    Text is UTF-8, its line ends as they are given. A link stays, and what it leads to is replaced.
    """
    check_plain(path)
    path = path.resolve()
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text: dict[str, Any] = {} if binary else {"newline": "", "encoding": "utf-8"}
    try:
        with naming(path):
            with aside.open("wb" if binary else "w", **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            if os.name == "posix":
                _sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def check_plain(path: Path) -> None:
    """Raise if a file of this name could not be replaced by another: a rename would not write to
    a device or a pipe, but take its place."""
    try:
        path.resolve()
    except RuntimeError as error:  # which newer versions of Python do not raise
        raise OSError(f"got {path}, a link that leads to itself, expected a file") from error
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise FileExistsError(f"got {path}, which is {kind}, expected a file; choose another name")


@contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Wait until no other process is in this block with the same folder, or else raise where one
    is; where there are locks."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"got {folder}, which another process is writing in, expected it to be free; wait "
                "until that is done, or choose another"
            ) from None
        except OSError:
            pass  # not every file system over a network has such locks
        yield
    finally:
        os.close(descriptor)  # and so let go


def _sync_folder(folder: Path) -> None:
    """Have the new name itself survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the machine say which file they are about, which those of a full disk do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def leftovers(folder: Path) -> list[Path]:
    """What processes that were killed have been writing in a folder."""
    return [path for path in folder.glob(".*.tmp") if _ASIDE.fullmatch(path.name)]


def remove_leftovers(folder: Path) -> None:
    for path in leftovers(folder):
        path.unlink(missing_ok=True)


def is_new(folder: Path) -> bool:
    """Whether a folder is not there, or has nothing in it but `leftovers`; a file is refused."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(
            f"got {folder}, but {there} is a file, expected a folder; choose another name"
        )
    return not folder.exists() or set(folder.iterdir()) <= set(leftovers(folder))
