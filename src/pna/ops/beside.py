"""Work of a captured step that runs beside other work.

Kernels of a small batch leave most of a GPU idle. What nothing waits for at once, such as the
gradients of weights, may run at the same time as the rest. Outside of a capture it is run in its
turn: there the host is what is waited for, and a second stream would cost it more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar, Token
from functools import cache
from typing import Any

import torch
from torch import Tensor


class Beside:
    """``with beside:`` holds the work; `join` is called before anything of it is read.

    Between the two nothing that the work reads may be written to or let go of. Works of the same
    `number` follow one another, those of others run beside them. A `join` inside of another's
    ``with`` has that other one wait.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._stream = _stream(device, number) if captured else None
        self._inside: Any = None
        self._done: torch.cuda.Event | None = None
        self._held: list[Any] = []

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._inside = torch.cuda.stream(self._stream)
            self._inside.__enter__()

    def __exit__(self, *problem: Any) -> None:
        if self._stream is not None:
            self._done = self._stream.record_event()
            self._inside.__exit__(*problem)

    def hold(self, *held: Any) -> None:
        """Do not let go of these while there is this object."""
        if self._stream is not None:
            self._held += held

    def join(self) -> None:
        """Have all that follows wait for the work."""
        if self._stream is not None and self._done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._done)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Later:
    """Works of a backward pass that are joined at its end, and not before.

    ``with later:`` is around the forward pass, in which a layer `claim`s the parameters whose
    gradients it makes beside. Whoever does that reads these gradients only after `join`. Where two
    claim the same parameter autograd adds their gradients up, so that both have to join at once.
    """

    def __init__(self) -> None:
        self._claims: Counter[int] = Counter()
        self._works: list[Beside] = []
        self._before: Token[Later | None] | None = None

    def __enter__(self) -> None:
        self._before = _later.set(self)

    def __exit__(self, *problem: Any) -> None:
        assert self._before is not None
        _later.reset(self._before)

    @staticmethod
    def claim(parameters: Iterable[Tensor | None]) -> Claim:
        """The claim of a layer, to be kept for its backward pass."""
        later = _later.get()
        places = [p.data_ptr() for p in parameters if p is not None]
        if later is not None:
            later._claims.update(places)
        return Claim(later, places)

    def join(self) -> None:
        """Have all that follows wait for all the works."""
        for work in self._works:
            work.join()
        self._works.clear()


class Claim:
    """What a layer has of a `Later`."""

    def __init__(self, later: Later | None, places: list[int]) -> None:
        self._later, self._places = later, places

    def join(self, work: Beside, *held: Any) -> None:
        """Join the work: later, if all parameters are this layer's alone, and hold what the work
        reads until then; else now."""
        later = self._later
        if later is None or any(later._claims[place] > 1 for place in self._places):
            work.join()
            return
        work.hold(*held)
        later._works.append(work)

    def join_later(self, work: Beside) -> None:
        """Join the work at the end of the backward pass, before which the layer's own joins it;
        now, where nobody waits for that end."""
        if self._later is None:
            work.join()
        else:
            self._later._works.append(work)


_later: ContextVar[Later | None] = ContextVar("later", default=None)
