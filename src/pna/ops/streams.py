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

from pna import fast_paths


class Beside:
    """``with beside:`` holds the work; `join` is called before anything of it is read.

    Between the two nothing that the work reads may be written to or let go of. Works of the same
    `number` follow one another, those of others run beside them. A `join` inside of another's
    ``with`` has that other one wait.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        captured = captured and fast_paths.is_on("streams")
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
            self._inside.__exit__(*problem)
            self._done = self._stream.record_event()

    def hold(self, *held: Any) -> None:
        """Do not let go of these while there is this object, or until `let_go`."""
        if self._stream is not None:
            self._held += held

    def let_go(self) -> None:
        """Of what is held: once the work is joined, and others hold what they need of it."""
        self._held.clear()

    def join(self) -> None:
        """Have all that follows wait for the work."""
        if self._stream is not None and self._done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._done)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Later:
    """Works of a backward pass that are joined at its end, and not before.

    ``with later:`` is around the forward pass, in which layers `claim` the parameters whose
    gradients they make, beside or not. Whoever does that names those whose gradients it reads
    itself, as its `own`, and only after `join`. Of others the next to read may be autograd: of
    weights that are made of parameters, or where two claim the same one and it adds both up. Such
    works are joined at once. What works read is kept until the join.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._claims: Counter[int] = Counter()
        self._works: list[Beside] = []
        self._before: Token[Later | None] | None = None

    def __enter__(self) -> None:
        self._before = _later.set(self)

    def __exit__(self, *problem: Any) -> None:
        assert self._before is not None
        _later.reset(self._before)

    def own(self, parameters: Iterable[Tensor]) -> None:
        """Gradients of these are read after `join`, by nobody before."""
        self._own.update(parameter.data_ptr() for parameter in parameters)

    @staticmethod
    def claim(parameters: Iterable[Tensor | None]) -> Claim:
        """The claim of a layer, to be kept for its backward pass."""
        later = _later.get()
        places = [p.data_ptr() for p in parameters if p is not None]
        if later is not None:
            later._claims.update(places)
        return Claim(later, places)

    def _is_alone(self, place: int) -> bool:
        """Whether the parameter at this place is one of its own, and claimed once."""
        return place in self._own and self._claims[place] == 1

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
        """Join the work: later, if all parameters are this layer's alone and their gradients read
        after that, and hold what the work reads until then; else now."""
        later = self._later
        if later is None or not all(later._is_alone(place) for place in self._places):
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
