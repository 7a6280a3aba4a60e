"""ZINC-12k: the molecules, targets and split of the benchmark, as a graph set."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pna.data.download import download
from pna.data.graphset import GraphSet
from pna.data.progress import Progress
from pna.data.sources import FROM_PUBLIC, GUIDE, SOURCES, Arrays, cache, chosen, facts, read, unpack
from pna.files import check_plain, make_folder, replacing

#: The addresses of all molecules of ZINC, one file per split with a line of JSON per molecule; of
#: the benchmark's lists of its own lines; and the largest sizes of both in bytes.
PUBLISHED = "https://huggingface.co/datasets/graphs-datasets/ZINC/resolve/main/{}.jsonl"
INDEX = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/"
    "data/molecules/{}.index"
)
MAX_BYTES, MAX_INDEX_BYTES = 400_000_000, 1_000_000
#: The hash of the benchmark's arrays.
CONTENT = "6cd732b0fb08ab27baae0b448f695d219cfc7b908b11a145f4de179a4e7f0986"

#: Types of atoms and bonds in the benchmark's dictionaries. 21 and 3 of them occur.
ATOMS, BONDS = 28, 4

SPLITS = ("train", "validation", "test")

_ARRAYS = (
    *("num_nodes", "num_bonds", "atom_type", "bond_src", "bond_dst", "bond_type"),
    *("target", "split"),
)


def zinc(where: str | Path | None = None) -> GraphSet:
    """The 12,000 molecules of the benchmark; 10,000 of them are for training.

    Features are integers: the type of an atom, and the type of a bond (1 single, 2 double, 3
    triple), with an edge in each direction. The target is penalised logP. `where` is the data
    folder or its address, or "public" to select the molecules from all of ZINC. Default: PNA_DATA.
    """
    if chosen(where) == FROM_PUBLIC:
        return from_arrays(load(published().read_bytes()))
    (file,) = SOURCES["zinc"].files
    return from_arrays(unpack(file.name, read(file, where), _ARRAYS))


def published(progress: Progress | None = None) -> Path:
    """The arrays of the benchmark in the cache, made from public files if they are not there.

    Arrays that differ from those of the data folder by a single bit are an error. No code in a
    download is executed. `progress` is called with the bytes done of a split, and in all.
    """
    path = cache() / "zinc" / "zinc12k.safetensors"
    check_plain(path)
    make_folder(path.parent)
    if path.is_file() and _kept(path):
        return path
    splits = [_molecules(name, progress) for name in ("train", "val", "test")]
    every = [molecule for split in splits for molecule in split]
    arrays = {name: np.concatenate([one[name] for one in every]) for name in _ARRAYS[:-1]}
    arrays["split"] = np.repeat(np.arange(3, dtype=np.uint8), [len(split) for split in splits])
    if digest(arrays) != CONTENT:
        raise ValueError(
            f"got molecules from {PUBLISHED.format('*')} whose arrays have sha256 "
            f"{digest(arrays)}, expected {CONTENT}: they, or which of them to take, have changed; "
            f"nothing of it was kept; {GUIDE}"
        )
    with replacing(path, binary=True) as file:
        file.write(save(arrays))
    return path


def _kept(path: Path) -> bool:
    """Whether the file is complete and has the right molecules."""
    try:
        arrays = load(path.read_bytes())
    except SafetensorError:
        return False
    return set(arrays) == set(_ARRAYS) and digest(arrays) == CONTENT


def digest(arrays: Arrays) -> str:
    """The hash of the names, types and contents of arrays."""
    found = sha256()
    for name in _ARRAYS:
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def _molecules(split: str, progress: Progress | None) -> list[Arrays]:
    """The benchmark's molecules of a split, in its order."""
    index_url, url = INDEX.format(split), PUBLISHED.format(split)
    content = download(index_url, MAX_INDEX_BYTES)
    try:
        indices = [int(word) for word in content.split(b",")]
    except ValueError as error:
        raise ValueError(
            f"got {index_url}, which is no list of numbers between commas, expected one; {GUIDE}"
        ) from error
    lines = download(url, MAX_BYTES, progress).splitlines()
    if not set(indices) <= set(range(len(lines))) or len(set(indices)) < len(indices):
        raise ValueError(
            f"got {len(lines):,} molecules from {url}, expected those that {index_url} numbers, "
            f"each once; {GUIDE}"
        )
    return [_molecule(lines[index], f"line {index + 1} of {url}") for index in indices]


def _molecule(line: bytes, where: str) -> Arrays:
    """A molecule as in the data folder: its atoms, and every bond once, sorted by its ends."""
    try:
        record = json.loads(line)
        ends = _as_bytes(record["edge_index"]).reshape(2, -1)
        bonds, atoms = _as_bytes(record["edge_attr"]), _as_bytes(record["node_feat"])
        target = np.array(record["y"], np.float32).reshape(1)
        once = np.flatnonzero(ends[0] < ends[1])
        once = once[np.lexsort((ends[1, once], ends[0, once]))]
        return {
            "num_nodes": _as_bytes([len(atoms)]),
            "num_bonds": _as_bytes([len(once)]),
            "atom_type": atoms,
            "bond_src": ends[0, once],
            "bond_dst": ends[1, once],
            "bond_type": bonds[once],
            "target": target,
        }
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"got no molecule in {where} ({type(error).__name__}), expected node_feat, edge_index, "
            f"edge_attr and y; {GUIDE}"
        ) from error


def _as_bytes(numbers: Any) -> NDArray[np.uint8]:
    """Integers of one byte, as a flat array."""
    found = np.array(numbers).ravel()
    if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() > 255):
        raise ValueError
    return found.astype(np.uint8)


def from_arrays(arrays: Arrays) -> GraphSet:
    """Concatenated molecules, with every bond once, its ends numbered within the molecule."""
    one, other = arrays["bond_src"], arrays["bond_dst"]
    return GraphSet.from_arrays(
        arrays["num_nodes"],
        np.stack([np.stack([one, other], 1).ravel(), np.stack([other, one], 1).ravel()]),
        2 * arrays["num_bonds"].astype(np.int64),
        x=arrays["atom_type"],
        edge_attr=np.repeat(arrays["bond_type"], 2),
        y_graph=arrays["target"],
        split=arrays["split"],
        splits=SPLITS,
        node_features=["atom type"],
        edge_features=["bond type"],
        graph_targets=["penalised logP"],
        metadata=facts("zinc") | {"node_values": [ATOMS], "edge_values": [BONDS]},
    )
