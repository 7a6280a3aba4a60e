"""State of the compiler: whether it is tracing the implementation of an operator.

The compiler can only launch, record and package kernels that it sees. So it traces the Triton
implementation of an operator on fake tensors, which have no memory and whose sizes are symbols.
Code that runs there must not read values, and should not compare sizes that vary between batches:
each comparison becomes a guard, and a guard that fails recompiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pna.torch_internals import known_size, size_hint

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)

#: The size of a symbol about which nothing is known.
_UNKNOWN_SIZE = 4096


def is_tracing() -> bool:
    """Whether the compiler is tracing an implementation, on this thread."""
    return _tracing.get()


@contextmanager
def tracing() -> Iterator[None]:
    before = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(before)


def likely(size: int) -> int:
    """A size to choose tiles and paths by; for a symbol, its value in the batch being traced.

    The choice stays for all other batches. So it must be right for any size, if not the fastest.
    """
    return size if isinstance(size, int) else size_hint(size, _UNKNOWN_SIZE)


def divisor(size: int) -> int:
    """The size, or 1 if it is a symbol: a divisor of the size in every batch."""
    return size if isinstance(size, int) else known_size(size, 1)
