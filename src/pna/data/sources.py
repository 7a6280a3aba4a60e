"""Where benchmarks come from: their files, by hash, and to whom they are owed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pna.data.download import Progress, fetch
from pna.data.unpacking import arrays_of

Arrays = dict[str, NDArray[Any]]

VARIABLE = "PNA_DATA"
FROM_PUBLIC = "public"  # instead of a data folder: from what is published
GUIDE = "docs/data.md says how to come by it"


@dataclass(frozen=True)
class File:
    """A file that a benchmark is made of: its place in the data folder, and what it must be."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """The files of a benchmark, its licence, and whom to cite."""

    files: tuple[File, ...]
    licence: str
    citation: str


_SUPERPIXELS = (
    "Dwivedi, Joshi, Luu, Laurent, Bengio, Bresson: Benchmarking graph neural networks, JMLR 24 "
    "(2023); Knyazev, Taylor, Amer: Understanding attention and generalization in graph neural "
    "networks, NeurIPS 2019"
)

SOURCES = {
    "zinc": Source(
        files=(
            File(
                "zinc/zinc12k_graphs.npz",
                333_125,
                "25ad4b34a9ef751eb7983d8a4773cca8e66bb71c259fc0d955804f904193249c",
            ),
        ),
        licence="benchmark: MIT; molecules: of ZINC, free to use, its own terms for redistribution",
        citation="Irwin, Sterling, Mysinger, Bolstad, Coleman: ZINC, J. Chem. Inf. Model. 52 "
        "(2012); Dwivedi, Joshi, Luu, Laurent, Bengio, Bresson: Benchmarking graph neural "
        "networks, JMLR 24 (2023)",
    ),
    "molhiv": Source(
        files=(
            File(
                "molhiv/molhiv.csv.gz",
                418_457,
                "e68ef659de898a5f918a0e8ab65cb4ee7e9f38d8af9664280524d52362d11717",
            ),
        ),
        licence="MIT (ogbg-molhiv, as released by OGB)",
        citation="Hu, Fey, Zitnik, Dong, Ren, Liu, Catasta, Leskovec: Open graph benchmark, "
        "NeurIPS 2020; Wu and others: MoleculeNet, Chem. Sci. 9 (2018); DTP AIDS Antiviral Screen",
    ),
    "mnist": Source(
        files=(
            File(
                "superpixels/mnist_sp75.npz",
                12_244_792,
                "98b25f669b2fbafb2f965f5e4a2ac1af2e208c547ce3625c91a50b72ef1d5bfb",
            ),
        ),
        licence="images usually given as CC BY-SA 3.0",
        citation=f"LeCun, Cortes, Burges: MNIST; {_SUPERPIXELS}",
    ),
    "cifar10": Source(
        files=(
            File(
                "superpixels/cifar10_sp150_trainval.npz",
                39_253_070,
                "30a7e910204fbfaaeef40c4263dbefba0ee0f7ba9a1bbb14d487228673d3a0c3",
            ),
            File(
                "superpixels/cifar10_sp150_test.npz",
                7_849_783,
                "42ccfd1fb012eda312e22a9cd9b79867382d6628727d5b3b951ca196645a9dae",
            ),
        ),
        licence="images without a formal licence",
        citation="Krizhevsky: Learning multiple layers of features from tiny images, 2009; "
        f"{_SUPERPIXELS}",
    ),
}


def read(file: File, where: str | Path | None = None) -> bytes:
    """The content of a file, whose hash is right.

    `where` is the data folder, or an address of one (https://…), from which it is fetched into
    the cache; PNA_DATA if not given.
    """
    place = chosen(where)
    if not place:
        raise FileNotFoundError(
            f"got no {VARIABLE}, expected the folder that holds {file.name}, or an address of one "
            f"(https://…); set it, or name it with pna data --from; {GUIDE}"
        )
    path = _fetched(file, place) if is_address(place) else Path(place).expanduser() / file.name
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
    """The data folder or its address, that of PNA_DATA if none is given; empty if neither is."""
    return str(where or os.environ.get(VARIABLE, ""))


def is_address(place: str) -> bool:
    """Whether this is a data folder in the network."""
    return place.startswith(("https://", "http://"))


def fetch_all(files: Sequence[File], address: str, progress: Progress) -> None:
    """Have all these files in the cache; `progress` is told of their bytes."""
    total, before = sum(file.size for file in files), 0

    def tell(done: int, _: int) -> None:
        progress(before + done, total)

    for file in files:
        _fetched(file, address, tell)
        before += file.size
        progress(before, total)


def _fetched(file: File, address: str, progress: Progress | None = None) -> Path:
    url, path = f"{address.rstrip('/')}/{file.name}", cache() / file.name
    return fetch(url, path, sha256=file.sha256, size=file.size, progress=progress)


def cache() -> Path:
    """Where fetched files are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pna"


def unpack(name: str, content: bytes, expected: Sequence[str]) -> Arrays:
    """The arrays of an npz file, which must have these names; nothing in it is ever executed."""
    found = arrays_of(name, content)
    if set(found) != set(expected):
        raise ValueError(
            f"got {name} with the arrays {', '.join(sorted(found))}, expected "
            f"{', '.join(sorted(expected))}"
        )
    return found


def facts(benchmark: str) -> dict[str, str]:
    """What the metadata of a graph set says of its origin."""
    source = SOURCES[benchmark]
    return {"benchmark": benchmark, "licence": source.licence, "citation": source.citation}
