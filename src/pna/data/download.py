"""Files from the network: whole, and what they are expected to be, or not there at all."""

from __future__ import annotations

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

from pna.files import leftovers, make_folder, replacing

Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # told how many bytes are there, and of how many

ATTEMPTS = 3
_TIMEOUT = 30.0  # seconds without a byte after which a connection is given up
_PAUSE = 1.0  # seconds before the second attempt, twice that before the third
_CHUNK = 1 << 18
_OLD = 3600.0  # seconds after which what another process was writing is taken for abandoned


class _BrokenOffError(Exception):
    """A transfer that ended early, and may do better when begun again."""


def fetch(
    url: str, path: Path, *, sha256: str, size: int, progress: Progress | None = None
) -> Path:
    """Have the file of this address, size and hash at `path`; nothing to do if it is there.

    It is written aside and renamed once its hash is right, so that nobody ever finds a part of
    it. A transfer that breaks off is begun again from its first byte, `ATTEMPTS` times in all.
    """
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        return path
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"got the address {url}, expected one that begins with https://")
    make_folder(path.parent)
    _remove_abandoned(path.parent)
    told = progress or (lambda done, total: None)
    return _insisting(
        lambda: _transfer(url, path, sha256, size, told),
        f"{url}, {ATTEMPTS} times, expected {size:,} bytes; check the network and run it again, or "
        f"bring the file by other means to {path}",
    )


def received(url: str, most: int, progress: Progress | None = None) -> bytes:
    """What is at an address, of at most so many bytes, for whoever can tell if it is right."""
    told = progress or (lambda done, total: None)

    def transfer() -> bytes:
        content = bytearray()
        for chunk, expected in _chunks(url):
            content += chunk
            if len(content) > most:
                raise ValueError(f"got more than {most:,} bytes from {url}, expected fewer")
            told(len(content), expected or most)
        return bytes(content)

    where = f"{url}, {ATTEMPTS} times, expected a file; check the network and run it again"
    return _insisting(transfer, where)


def _insisting(transfer: Callable[[], Result], where: str) -> Result:
    """Begin again what broke off; `where` goes on about what never came."""
    for attempt in range(1, ATTEMPTS):
        try:
            return transfer()
        except _BrokenOffError:
            time.sleep(attempt * _PAUSE)
    try:
        return transfer()
    except _BrokenOffError as error:
        raise ConnectionError(f"got {error} from {where}") from error


def sha256_of(path: Path) -> str:
    """The hash of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _transfer(url: str, path: Path, sha256: str, size: int, progress: Progress) -> Path:
    digest, done = hashlib.sha256(), 0
    with replacing(path, binary=True) as file:
        for chunk, _ in _chunks(url):
            done += len(chunk)
            if done > size:
                break
            digest.update(chunk)
            file.write(chunk)
            progress(done, size)
        if done < size:
            raise _BrokenOffError(f"{done:,} bytes and then nothing")
        if done > size or digest.hexdigest() != sha256:
            got = f"more than {size:,} bytes" if done > size else digest.hexdigest()
            raise ValueError(
                f"got another file from {url} ({got}), expected {size:,} bytes of sha256 {sha256}; "
                "it was thrown away unopened"
            )
    return path


def _chunks(url: str) -> Iterator[tuple[bytes, int | None]]:
    """What is sent, piece by piece, and how much there will be if that is said; faults of the
    network are told apart from those of a disk."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            done, expected = 0, answer.length
            while chunk := answer.read(_CHUNK):
                done += len(chunk)
                yield chunk, expected
            if answer.length:  # what was promised and did not come
                raise _BrokenOffError(f"{done:,} bytes and then nothing")
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code == 429:  # it may pass
            raise _BrokenOffError(f"the answer {error.code} ({error.reason})") from error
        raise FileNotFoundError(
            f"got the answer {error.code} ({error.reason}) from {url}, expected a file; check the "
            "address"
        ) from error
    except ValueError as error:
        raise ValueError(f"got the address {url}, which is none ({error}); check it") from error
    except (OSError, HTTPException) as error:
        said = " ".join(str(getattr(error, "reason", error)).split())  # on one line
        raise _BrokenOffError(f"no more ({said})") from error


def _remove_abandoned(folder: Path) -> None:
    """What downloads that were killed have left; others may be under way."""
    for path in leftovers(folder):
        if time.time() - path.stat().st_mtime > _OLD:
            path.unlink(missing_ok=True)
