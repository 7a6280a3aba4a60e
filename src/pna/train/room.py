"""Errors of the disk while a run is written: what to do, and how to go on with the run."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have your quota raised",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f), or choose another disk",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.EIO: "check the disk",
}


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """An error of the disk says how to go on with the run in this folder, whose last checkpoint is
    whole."""
    try:
        yield
    except OSError as error:
        if not folder.is_dir() and error.errno == errno.ENOENT:
            raise FileNotFoundError(
                f"got {folder}, which was removed or moved while a training wrote in it, expected "
                "it to stay; move it back and go on with pna train --resume, or train anew"
            ) from error
        if error.errno not in _REMEDIES:
            raise
        what, _, _ = str(error).partition("; ")  # which it may say another remedy after
        told = OSError(f"{what}; {_REMEDIES[error.errno]}, then pna train --resume {folder}")
        told.errno = error.errno
        raise told from error
