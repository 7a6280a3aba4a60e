"""Downloads that are complete and have the expected hash, or leave no file at all."""

from __future__ import annotations

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from pna.data.progress import Progress
from pna.files import leftovers, make_folder, replacing

ATTEMPTS = 3
_TIMEOUT = 30.0  # seconds without a byte until a connection is closed
_PAUSE = 1.0  # seconds before the second attempt, twice that before the third
_CHUNK = 1 << 18
_OLD = 3600.0  # seconds until a partial file of another process counts as abandoned


class _InterruptedError(Exception):
    """A transfer that ended early, and may succeed when it is started again."""


def download_file(
    url: str, path: Path, *, sha256: str, size: int, progress: Progress | None = None
) -> Path:
    """Download the file of this address, size and hash to `path`, unless it is there already.

    It is written to another name and renamed once its hash is right, so nobody finds a part of it.
    """
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        return path
    make_folder(path.parent)
    for old in leftovers(path.parent):  # of killed processes; newer ones may still be in use
        if time.time() - old.stat().st_mtime > _OLD:
            old.unlink(missing_ok=True)
    try:
        content = download(url, size, progress)
    except ConnectionError as error:
        raise ConnectionError(f"{error}, or copy the file to {path} by other means") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"got another file from {url} ({len(content):,} bytes of sha256 {found}), expected "
            f"{size:,} bytes of sha256 {sha256}; it was thrown away unopened"
        )
    with replacing(path, binary=True) as file:
        file.write(content)
    return path


def download(url: str, max_bytes: int, progress: Progress | None = None) -> bytes:
    """Download what is at an address. A transfer that breaks off is started again from its first
    byte, with `ATTEMPTS` attempts in all."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"got the address {url}, expected one that begins with https://")
    for attempt in range(1, ATTEMPTS + 1):
        content = bytearray()
        try:
            for chunk, expected in _chunks(url):
                content += chunk
                if len(content) > max_bytes:
                    raise ValueError(
                        f"got more than {max_bytes:,} bytes from {url}, expected at most that; "
                        "check the address"
                    )
                if progress is not None:
                    progress(len(content), expected or max_bytes)
            return bytes(content)
        except _InterruptedError as error:
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"got {error} from {url}, {ATTEMPTS} times, expected a file; check the network "
                    "and run it again"
                ) from error
            time.sleep(attempt * _PAUSE)
    raise AssertionError("unreachable")


def sha256_of(path: Path) -> str:
    """The SHA-256 hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(url: str) -> Iterator[tuple[bytes, int | None]]:
    """The content in pieces, each with the announced length, if any. Errors of the network are told
    apart from those of a disk."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            done, expected = 0, answer.length
            while chunk := answer.read(_CHUNK):
                done += len(chunk)
                yield chunk, expected
            if answer.length:  # announced, but not sent
                raise _InterruptedError(f"{done:,} bytes and then nothing")
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code == 429:  # temporary
            raise _InterruptedError(f"the answer {error.code} ({error.reason})") from error
        raise FileNotFoundError(
            f"got the answer {error.code} ({error.reason}) from {url}, expected a file; check the "
            "address"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"got the address {url}, which is not valid ({error}); check it"
        ) from error
    except (OSError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())  # on one line
        raise _InterruptedError(f"no more ({reason})") from error
