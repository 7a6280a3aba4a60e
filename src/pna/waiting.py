"""What a call spends its time on before there are results, for a display of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_display: Callable[[str], None] | None = None


def waiting_for(what: str) -> None:
    """Tell the display, if there is one, what begins now: "reading the graphs"."""
    if _display is not None:
        _display(what)


@contextmanager
def displayed(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with everything that is waited for in this context, on all threads."""
    global _display
    before, _display = _display, show
    try:
        yield
    finally:
        _display = before
