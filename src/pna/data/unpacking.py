"""Unpack compressed files up to a limit: a few kilobytes may expand beyond the memory."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Environment variable: the largest unpacked size of a file in bytes, such as 4e9.
VARIABLE = "PNA_MAX_UNPACKED"
DEFAULT = 256 * 2**20

_CHUNK = 2**20
_SHOWN = 200  # characters of another library's error


def most_unpacked() -> int:
    """The largest unpacked size of a file in bytes."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return DEFAULT
    try:
        return int(float(given))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"got {VARIABLE}={given!r}, expected a number of bytes, such as 4e9"
        ) from error


def gunzip(name: str, content: bytes) -> bytes:
    """The content of a gzip file; `name` is for errors."""
    most = most_unpacked()
    unpacked = bytearray()
    try:
        with gzip.open(io.BytesIO(content)) as file:
            while chunk := file.read(_CHUNK):
                unpacked += chunk
                if len(unpacked) > most:
                    raise _too_large(name, most)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"got {name}, which gzip cannot unpack ({error}); copy it again"
        ) from error
    return bytes(unpacked)


def load_npz(name: str, content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file; `name` is for errors. No code in it is executed."""
    most = most_unpacked()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # of a member, no more is read than the size that the archive states
            size = sum(member.file_size for member in archive.infolist())
        if size > most:
            raise _too_large(name, most)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except _TooLargeError:
        raise
    except Exception as error:  # numpy parses headers as Python: a hostile one may raise any error
        raise ValueError(
            f"got {name}, which cannot be read as npz ({_in_short(error)}), expected one; copy it "
            "again"
        ) from error


def _in_short(error: Exception) -> str:
    """The first line of an error, shortened: it may quote a whole header."""
    first = f"{error}".partition("\n")[0] or type(error).__name__
    return first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"


class _TooLargeError(ValueError):
    """A compressed file exceeds the limit."""


def _too_large(name: str, most: int) -> _TooLargeError:
    return _TooLargeError(
        f"got {name}, which unpacks to more than {most:,} bytes, expected at most that; if you "
        f"trust it, unpack it yourself, or raise the limit: {VARIABLE}=4e9"
    )
