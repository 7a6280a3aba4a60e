"""Files that are written wholly or not at all, and errors that say which file and what to do."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_ASIDE = re.compile(r"\..+\.\d+\.tmp")  # what `replacing` writes to

#: What to do about an error of the file system, where a file is written.
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have your quota raised",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f), or choose another disk",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.EACCES: "choose a folder that you may write to, or have its permissions changed",
    errno.EPERM: "choose a folder that you may write to, or have its permissions changed",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "choose a name below a folder, not below a file",
    errno.ENOENT: "make the folder first",
}


@contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write in place of another: aside, synced, renamed.

    Text is UTF-8, its line ends as they are given. A link stays, and what it leads to is replaced.
    """
    with naming(path):
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
        with suppress(OSError):  # there is none, or its folder cannot be written to or is gone
            aside.unlink()


def check_plain(path: Path) -> None:
    """Raise if a file of this name could not be replaced by another: a rename would not write to
    a device or a pipe, but take its place."""
    kind = _kind(path)
    if kind is not None and kind != "a file":
        raise FileExistsError(f"got {path}, which is {kind}, expected a file; choose another name")


def check_readable(path: Path) -> None:
    """Raise unless there is a file of this name that may be read."""
    kind = _kind(path)
    if kind is None:
        raise FileNotFoundError(f"got {path}, expected a file there; check the path")
    if kind != "a file":
        raise OSError(f"got {path}, which is {kind}, expected a file; check the path")
    if not os.access(path, os.R_OK):
        raise PermissionError(
            f"got {path}, which may not be read, expected a file that you may read; have its "
            "permissions changed, or copy it"
        )


def _kind(path: Path) -> str | None:
    """What there is of this name, in words; None of nothing."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise PermissionError(
            f"got {path}, in a folder that you may not look into; have its permissions changed"
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a symbolic link that leads to itself"
        raise OSError(f"got {path} ({error.strerror}), expected the name of a file") from error
    if stat.S_ISREG(mode):
        return "a file"
    return "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where there is none."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


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
    """Errors of the file system, where `path` is written, name the file and say what to do.

    Those about files elsewhere stay as they are.
    """
    try:
        yield
    except OSError as error:
        about = path if error.filename is None else Path(os.fsdecode(error.filename))
        own = (path, path.parent, *path.parents)
        if error.errno is None or not (about in own or about.parent == path.parent):
            raise
        if error.errno not in _REMEDIES:
            raise OSError(error.errno, error.strerror, str(path)) from error
        told = type(error)(f"cannot write {path} ({error.strerror}); {_REMEDIES[error.errno]}")
        told.errno = error.errno
        raise told from error


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
