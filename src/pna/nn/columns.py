"""Columns of a node's features, as arguments name them."""

from __future__ import annotations

from math import isfinite
from operator import index
from typing import Any


def columns_of(what: str, given: Any, width: int) -> tuple[tuple[int, float], ...]:
    """Columns of a node's features, each with a number, as they are if all is well with them."""
    try:
        found = tuple((index(column), float(number)) for column, number in given)
    except (TypeError, ValueError):
        raise ValueError(
            f"got {what}={given!r}, expected pairs of a column and a number, such as "
            "((3, 1.0), (4, 1.0))"
        ) from None
    columns = [column for column, _ in found]
    if len(set(columns)) < len(columns) or not set(columns) <= set(range(width)):
        raise ValueError(
            f"got columns {columns} for {what}, expected some of 0 to {width - 1}, the features of "
            "a node, each once"
        )
    if not all(isfinite(number) for _, number in found):
        raise ValueError(f"got {what}={given!r}, expected finite numbers")
    return found
