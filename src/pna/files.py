"""Files that are written completely or not at all, and errors that name the file and a remedy."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_ASIDE = re.compile(r"\..+\.\d+\.tmp")  # temporary files of `replacing`

#: The remedy for an error of the file system when a file is written.
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
    """Open a temporary file that is synced and renamed to `path` at the end.

    Text is UTF-8, with line ends unchanged. If `path` is a symbolic link, its target is replaced.
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
        with suppress(OSError):  # it does not exist, or its folder is read-only or gone
            aside.unlink()


def check_plain(path: Path) -> None:
    """Raise if `path` is anything but a file or nothing. A rename would not write to a device or
    a pipe, but replace it."""
    kind = _kind(path)
    if kind is not None and kind != "a file":
        raise FileExistsError(f"got {path}, which is {kind}, expected a file; choose another name")


def check_readable(path: Path) -> None:
    """Raise unless `path` is a readable file."""
    kind = _kind(path)
    if kind is None and str(path) == "-":
        raise FileNotFoundError(
            "got - (standard input), which is read only once, expected a file; save the text to a "
            "file first, and name that"
        )
    if kind is None:
        raise FileNotFoundError(f"got {path}, expected a file there; check the path")
    if kind != "a file":
        raise OSError(f"got {path}, which is {kind}, expected a file; check the path")
    if not os.access(path, os.R_OK):
        raise PermissionError(
            f"got {path}, which may not be read, expected a file that you may read; change its "
            "permissions, or copy it"
        )


def _kind(path: Path) -> str | None:
    """What `path` is, in words; None if it does not exist."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise PermissionError(
            f"got {path}, in a folder that you may not read; change its permissions"
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a symbolic link that leads to itself"
        raise OSError(f"got {path} ({error.strerror}), expected the name of a file") from error
    if stat.S_ISREG(mode):
        return "a file"
    return "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder against other processes in such a block. If one has the lock, wait, or raise
    unless `wait`. Systems without locks do nothing."""
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
                f"got {folder}, in which another process is writing, expected it to be free; wait "
                "until that process ends, or choose another folder"
            ) from None
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(descriptor)  # which releases the lock


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors of the file system about `path` name the file and a remedy.

    Errors about other files are unchanged.
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
        explained = type(error)(f"cannot write {path} ({error.strerror}); {_REMEDIES[error.errno]}")
        explained.errno = error.errno
        raise explained from error


def leftovers(folder: Path) -> list[Path]:
    """Temporary files in a folder of processes that were killed."""
    return [path for path in folder.glob(".*.tmp") if _ASIDE.fullmatch(path.name)]


def remove_leftovers(folder: Path) -> None:
    for path in leftovers(folder):
        path.unlink(missing_ok=True)


def is_new(folder: Path) -> bool:
    """Whether a folder does not exist, or has only `leftovers`. A file raises an error."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(
            f"got {folder}, but {there} is a file, expected a folder; choose another name"
        )
    return not folder.exists() or set(folder.iterdir()) <= set(leftovers(folder))
