"""ZINC-12k: the benchmark's own molecules, targets and split, as a graph set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pna.data.download import Progress, download
from pna.data.graphset import GraphSet
from pna.data.sources import FROM_PUBLIC, GUIDE, SOURCES, Arrays, cache, chosen, facts, read, unpack
from pna.files import check_plain, make_folder, replacing

#: Where all molecules of ZINC are published as text, a line of JSON each, those of a split in one
#: file; where the benchmark says which lines are its own; and what is the most such files can be.
PUBLISHED = "https://huggingface.co/datasets/graphs-datasets/ZINC/resolve/main/{}.jsonl"
INDEX = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/"
    "data/molecules/{}.index"
)
MOST, MOST_INDEX = 400_000_000, 1_000_000
#: The hash of the benchmark's arrays, from wherever they come.
CONTENT = "6cd732b0fb08ab27baae0b448f695d219cfc7b908b11a145f4de179a4e7f0986"

#: Kinds of atoms and bonds in the benchmark's dictionaries, of which 21 and 3 occur.
ATOMS, BONDS = 28, 4

SPLITS = ("train", "validation", "test")

_ARRAYS = (
    *("num_nodes", "num_bonds", "atom_type", "bond_src", "bond_dst", "bond_type"),
    *("target", "split"),
)


def zinc(where: str | Path | None = None) -> GraphSet:
    """The 12,000 molecules of the benchmark, 10,000 of them to train on.

    Nodes have the type of their atom and edges, both directions of every bond, the type of the
    bond (1 single, 2 double, 3 triple) as whole numbers; graphs have penalised logP to predict.
    `where` is the data folder or its address, PNA_DATA if not given, or "public": all of ZINC,
    from which the benchmark's molecules are taken.
    """
    if chosen(where) == FROM_PUBLIC:
        return from_arrays(load(published().read_bytes()))
    (file,) = SOURCES["zinc"].files
    return from_arrays(unpack(file.name, read(file, where), _ARRAYS))


def published(progress: Progress | None = None) -> Path:
    """The arrays of the benchmark in the cache, from what is published if they are not there.

    They are those of the data folder, to the last bit, or an error; nothing that is fetched is
    ever executed. `progress` is told of the bytes of each split.
    """
    path = cache() / "zinc" / "zinc12k.safetensors"
    check_plain(path)
    make_folder(path.parent)
    if path.is_file() and _kept(path):
        return path
    splits = [_molecules(name, progress) for name in ("train", "val", "test")]
    arrays = _laid_out(splits)
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
    """Whether the file is whole, and these molecules."""
    try:
        arrays = load(path.read_bytes())
    except SafetensorError:
        return False
    return set(arrays) == set(_ARRAYS) and digest(arrays) == CONTENT


def digest(arrays: Arrays) -> str:
    """The hash of arrays: of their names, types and content."""
    found = sha256()
    for name in _ARRAYS:
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def _molecules(split: str, progress: Progress | None) -> list[Arrays]:
    """The benchmark's own molecules of a split, in its order."""
    index, url = INDEX.format(split), PUBLISHED.format(split)
    content = download(index, MOST_INDEX)
    try:
        places = [int(word) for word in content.split(b",")]
    except ValueError as error:
        raise ValueError(
            f"got {index}, which is no list of numbers between commas, expected one; {GUIDE}"
        ) from error
    lines = download(url, MOST, progress).splitlines()
    if not set(places) <= set(range(len(lines))) or len(set(places)) < len(places):
        raise ValueError(
            f"got {len(lines):,} molecules from {url}, expected those that {index} numbers, each "
            f"once; {GUIDE}"
        )
    return [_molecule(lines[place], f"line {place + 1} of {url}") for place in places]


def _molecule(line: bytes, where: str) -> Arrays:
    """One as the data folder has it: its atoms, and every bond once, in order of its ends."""
    try:
        told = json.loads(line)
        ends = _whole(told["edge_index"]).reshape(2, -1)
        bonds, atoms = _whole(told["edge_attr"]), _whole(told["node_feat"])
        target = np.array(told["y"], np.float32).reshape(1)
        once = np.flatnonzero(ends[0] < ends[1])
        once = once[np.lexsort((ends[1, once], ends[0, once]))]
        return {
            "num_nodes": _whole([len(atoms)]),
            "num_bonds": _whole([len(once)]),
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


def _whole(numbers: Any) -> NDArray[np.uint8]:
    """Whole numbers of a byte, one after another."""
    found = np.array(numbers).ravel()
    if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() > 255):
        raise ValueError
    return found.astype(np.uint8)


def _laid_out(splits: Sequence[Sequence[Arrays]]) -> Arrays:
    """Molecules laid end to end, split after split."""
    every = [molecule for split in splits for molecule in split]
    arrays = {name: np.concatenate([one[name] for one in every]) for name in _ARRAYS[:-1]}
    counts = [len(split) for split in splits]
    return arrays | {"split": np.repeat(np.arange(len(splits), dtype=np.uint8), counts)}


def from_arrays(arrays: Arrays) -> GraphSet:
    """Molecules laid end to end, every bond once, its ends numbered within the molecule."""
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
