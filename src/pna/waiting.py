"""What a call spends its time on before there are results, for a display of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_display: Callable[[str], None] | None = None
_log: Callable[[str], None] | None = None


def waiting_for(what: str) -> None:
    """Tell the display, if there is one, what begins now: "reading the graphs"."""
    if _display is not None:
        _display(what)


def note(what: str) -> None:
    """Tell the display, if there is one, something that stays: "full batch: needs …"."""
    if _log is not None:
        _log(what)


@contextmanager
def displayed(
    show: Callable[[str], None], log: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Call `show` with everything that is waited for in this context, on all threads, and `log`
    with every `note`."""
    global _display, _log
    before, _display, _log = (_display, _log), show, log
    try:
        yield
    finally:
        _display, _log = before
