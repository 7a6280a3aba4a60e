"""How functions that take long report what they have done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[int, int], None]  # called with how much is done, and how much there is in all


def reporting(
    parts: Iterable[T], total: int, progress: Progress | None, size: Callable[[T], int]
) -> Iterator[T]:
    """Yield all parts, and report the sum of their sizes after each."""
    done = 0
    for part in parts:
        done += size(part)
        if progress is not None:
            progress(min(done, total), total)
        yield part
