"""Disk errors while a run is written, with a remedy and the command that resumes the run."""

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
def disk_errors(folder: Path) -> Iterator[None]:
    """Add to a disk error how to resume the run in this folder; its last checkpoint is complete."""
    try:
        yield
    except OSError as error:
        if not folder.is_dir() and error.errno == errno.ENOENT:
            raise FileNotFoundError(
                f"got {folder}, which was removed or moved during training, expected it to stay; "
                "move it back and continue with pna train --resume, or start a new run"
            ) from error
        if error.errno not in _REMEDIES:
            raise
        what, _, _ = str(error).partition("; ")  # without another remedy
        explained = OSError(f"{what}; {_REMEDIES[error.errno]}, then pna train --resume {folder}")
        explained.errno = error.errno
        raise explained from error
