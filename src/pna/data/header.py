"""Checks of the header of a graph set's file, which may come from anyone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pna.names import unique
from pna.stored import fits

#: Largest number of categories of a feature or target: a model learns a vector for each.
MOST_KINDS = 1_000_000

#: The types of the metadata that training reads, and their names in errors.
_METADATA = {
    "benchmark": (str, "a name"),
    "node_values": (list[int], f"whole numbers up to {MOST_KINDS:,}"),
    "edge_values": (list[int], f"whole numbers up to {MOST_KINDS:,}"),
    "losses": (dict[str, str], "names by target"),
    "means": (dict[str, float], "numbers by target"),
    "undirected": (bool, "true or false"),
    "degree_features": (bool, "true or false"),
    "folds": (dict[str, int | list[str]], "a number of repeats and parts"),
    "molecules": (dict[str, list[str] | str], "names"),
}


def check_header(facts: dict[str, Any], names: Iterable[str], scales: Mapping[str, str]) -> None:
    """Raise a ValueError unless these entries of the header can be used.

    `names` are lists of different names. `scales` are lists of positive numbers, each as long as
    the list of names that it refers to. "metadata" is a dict.
    """
    for where in names:
        if not fits(facts[where], list[str]):
            raise ValueError(f"{where} is no list of names")
        unique(where, facts[where])
    for scale, where in scales.items():
        entry = facts[scale]
        if not fits(entry, list[float]) or not all(0 < v < math.inf for v in entry):
            raise ValueError(f"{scale} is no list of numbers above 0")
        if len(entry) != len(facts[where]):
            raise ValueError(f"{scale} has {len(entry)} numbers for {where}")
    metadata = facts["metadata"]
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is of type {type(metadata).__name__}, expected a dict")
    for name, (kind, expected) in _METADATA.items():
        entry = metadata.get(name, kind())
        if not fits(entry, kind) or not _in_range(name, entry):
            raise ValueError(f"metadata has {name} that are not {expected}")


def _in_range(name: str, entry: Any) -> bool:
    if name.endswith("_values"):
        return all(0 <= value <= MOST_KINDS for value in entry)
    return name != "means" or all(map(math.isfinite, entry.values()))
