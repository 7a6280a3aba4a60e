"""The files that benchmarks are made from, with their hashes, licences and citations."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pna.data.download import download_file
from pna.data.progress import Progress
from pna.data.unpacking import load_npz

Arrays = dict[str, NDArray[Any]]

VARIABLE = "PNA_DATA"
FROM_PUBLIC = "public"  # in place of a data folder: download what is published
GUIDE = "docs/data.md says how to come by it"


@dataclass(frozen=True)
class File:
    """A file of a benchmark: its path in the data folder, its size in bytes and its hash."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Public:
    """The address of a public data folder, and the files that it holds."""

    address: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class DataSource:
    """The files of a benchmark, its licence, and whom to cite."""

    files: tuple[File, ...]
    licence: str
    citation: str


def _files(rows: list[dict[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**row) for row in rows)


_TABLE = json.loads(resources.files("pna.data").joinpath("sources.json").read_text("utf-8"))

#: The benchmarks, and the images that two of them are made from.
SOURCES = {
    name: DataSource(_files(row["files"]), row["licence"], row["citation"])
    for name, row in _TABLE.items()
}
PUBLIC = {
    name: Public(row["public"]["address"], _files(row["public"]["files"]))
    for name, row in _TABLE.items()
    if "public" in row
}


def read(file: File, where: str | Path | None = None) -> bytes:
    """Read a file and check its hash.

    `where` is the data folder, or the address (https://…) of one, from which the file is
    downloaded into the cache. Default: PNA_DATA.
    """
    location = chosen(where)
    if not location:
        raise FileNotFoundError(
            f"got no {VARIABLE}, expected the folder that holds {file.name}, or an address of one "
            f"(https://…); set it, or download the published file with {VARIABLE}={FROM_PUBLIC}; "
            f"for pna data, --from does the same; {GUIDE}"
        )
    path = (
        _fetched(file, location)
        if is_address(location)
        else Path(location).expanduser() / file.name
    )
    if not path.is_file():
        raise FileNotFoundError(
            f"got no {path}, expected the data folder ({VARIABLE}, or pna data --from) to hold it; "
            f"{GUIDE}"
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"got {path} of {len(content):,} bytes and sha256 {found}, expected {file.size:,} "
            f"bytes and {file.sha256}: damaged, or another file; it was not opened, copy it again"
        )
    return content


def chosen(where: str | Path | None) -> str:
    """The given data folder or address, else that of PNA_DATA, else an empty text."""
    return str(where or os.environ.get(VARIABLE, ""))


def is_address(location: str) -> bool:
    """Whether this is a web address, not a folder."""
    return location.startswith(("https://", "http://"))


def fetch_all(files: Sequence[File], address: str, progress: Progress) -> None:
    """Download files into the cache. `progress` is called with the bytes done, and of all files."""
    total, before = sum(file.size for file in files), 0

    def report(done: int, _: int) -> None:
        progress(before + done, total)

    for file in files:
        _fetched(file, address, report)
        before += file.size
        progress(before, total)


def _fetched(file: File, address: str, progress: Progress | None = None) -> Path:
    url, path = f"{address.rstrip('/')}/{file.name}", cache() / file.name
    return download_file(url, path, sha256=file.sha256, size=file.size, progress=progress)


def cache() -> Path:
    """The folder of downloaded files."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pna"


def unpack(name: str, content: bytes, expected: Sequence[str]) -> Arrays:
    """The arrays of an npz file, which must have these names. No code in it is executed."""
    found = load_npz(name, content)
    if set(found) != set(expected):
        raise ValueError(
            f"got {name} with the arrays {', '.join(sorted(found))}, expected "
            f"{', '.join(sorted(expected))}"
        )
    return found


def facts(benchmark: str) -> dict[str, str]:
    """The metadata of a graph set about its origin."""
    source = SOURCES[benchmark]
    return {"benchmark": benchmark, "licence": source.licence, "citation": source.citation}
