"""Finding things by name, with a helpful error when the name is unknown."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def lookup(kind: str, name: str, table: Mapping[Any, T]) -> T:
    """``table[name]``; an unknown name raises with the nearest match and all that are known.

    `kind` says in the error what was looked for: "aggregator", "scaler".
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name.lower(), table, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(table)}")
