"""What a file says about itself, as JSON: read from text that anybody may have written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pna.names import unique

#: The most values of a feature or target that are kinds: a model learns a vector for every one.
MOST_KINDS = 1_000_000

_DEEPEST = 100  # lists and objects within each other; Python's own functions give up at about 1,000


def read_facts(text: str) -> dict[str, Any]:
    """The object in a JSON text; raises `ValueError` if it is something else, or nested too deep
    for whoever prints or copies it."""
    try:
        held = json.loads(text)
        if _depth_exceeds(held, _DEEPEST):
            raise RecursionError
        json.dumps(held, ensure_ascii=False).encode()  # half a surrogate pair cannot be printed
    except RecursionError:
        raise ValueError(f"lists or objects nested more than {_DEEPEST} deep") from None
    if not isinstance(held, dict):
        raise ValueError(f"got {type(held).__name__}, expected an object of JSON, {{…}}")
    return held


def check_facts(facts: dict[str, Any], names: Iterable[str], scales: Mapping[str, str]) -> None:
    """Raise unless the facts of a graph set are lists of names, of numbers to divide by, as many
    as the names that `scales` refers to, and metadata that training can read."""
    for where in names:
        if not _is_list_of(facts[where], lambda name: isinstance(name, str)):
            raise ValueError(f"{where} is no list of names")
        unique(where, facts[where])
    for scale, where in scales.items():
        if not _is_list_of(facts[scale], lambda value: _is_finite(value) and value > 0):
            raise ValueError(f"{scale} is no list of numbers above 0")
        if len(facts[scale]) != len(facts[where]):
            raise ValueError(f"{scale} has {len(facts[scale])} numbers for {where}")
    _check_metadata(facts["metadata"])


def _depth_exceeds(held: Any, most: int) -> bool:
    """Level by level, since a function that calls itself would fail on what it looks for."""
    level = [held]
    for _ in range(most + 1):
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            return False
        level = [v for c in containers for v in (c.values() if isinstance(c, dict) else c)]
    return True


#: What metadata that training reads must be, by its name.
_METADATA: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "benchmark": ("a name", lambda held: isinstance(held, str)),
    "node_values": (
        f"whole numbers up to {MOST_KINDS:,}",
        lambda held: _is_list_of(held, _is_count),
    ),
    "edge_values": (
        f"whole numbers up to {MOST_KINDS:,}",
        lambda held: _is_list_of(held, _is_count),
    ),
    "losses": (
        "names by target",
        lambda held: isinstance(held, dict) and all(isinstance(v, str) for v in held.values()),
    ),
    "means": (
        "numbers by target",
        lambda held: isinstance(held, dict) and all(map(_is_finite, held.values())),
    ),
}


def _check_metadata(metadata: Any) -> None:
    """Raise unless what training reads of a graph set's metadata has the right type."""
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is of type {type(metadata).__name__}, expected a dict")
    for name, (expected, is_right) in _METADATA.items():
        if name in metadata and not is_right(metadata[name]):
            raise ValueError(f"metadata has {name} that are not {expected}")


def _is_list_of(held: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(held, list | tuple) and all(map(is_right, held))


def _is_finite(held: Any) -> bool:
    is_number = isinstance(held, int | float) and not isinstance(held, bool)
    return is_number and abs(held) <= sys.float_info.max  # which fails for NaN


def _is_count(held: Any) -> bool:
    return isinstance(held, int) and not isinstance(held, bool) and 0 <= held <= MOST_KINDS
