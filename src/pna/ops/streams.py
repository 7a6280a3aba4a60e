"""Side streams for work of a captured step that runs concurrently with other work.

Kernels of a small batch leave most of a GPU idle. Work whose result is not needed at once, such as
the gradients of weights, may run at the same time as the rest. Outside of a capture it runs in
order: the host is the bottleneck there, and a second stream would add overhead.
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


class SideStream:
    """``with side:`` submits work to a side stream; call `join` before its result is read.

    Until then, nothing that the work reads may be written to or freed. Work submitted under the
    same `number` runs in order; different numbers run on different streams, concurrently. A `join`
    inside the ``with`` of another side stream makes that stream wait.
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
        """Keep these objects alive as long as this one, or until `let_go`."""
        if self._stream is not None:
            self._held += held

    def let_go(self) -> None:
        """Release held objects. Call this once the work is joined and its results are kept."""
        self._held.clear()

    def join(self) -> None:
        """Make all later work on the current stream wait for this work."""
        if self._stream is not None and self._done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._done)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class DeferredJoins:
    """Joins of work in a backward pass, deferred to the end of that pass.

    ``with deferred:`` surrounds the forward pass, in which layers `claim` the parameters whose
    gradients they compute. The caller registers as its `own` the parameters whose gradients it
    reads itself, after `join`. Autograd may read the gradient of any other parameter: if weights
    are computed from it, or if two layers claim it and autograd adds their gradients. Such work is
    joined at once. Tensors that the work reads are kept until the join.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._claims: Counter[int] = Counter()
        self._works: list[SideStream] = []
        self._before: Token[DeferredJoins | None] | None = None

    def __enter__(self) -> None:
        self._before = _deferred.set(self)

    def __exit__(self, *problem: Any) -> None:
        assert self._before is not None
        _deferred.reset(self._before)

    def own(self, parameters: Iterable[Tensor]) -> None:
        """Register parameters whose gradients nobody reads before `join`."""
        self._own.update(parameter.data_ptr() for parameter in parameters)

    @staticmethod
    def claim(parameters: Iterable[Tensor | None]) -> GradientClaim:
        """Register the parameters of a layer; it keeps the claim for its backward pass."""
        deferred = _deferred.get()
        addresses = [p.data_ptr() for p in parameters if p is not None]
        if deferred is not None:
            deferred._claims.update(addresses)
        return GradientClaim(deferred, addresses)

    @staticmethod
    def is_active() -> bool:
        """Whether the code runs inside ``with deferred:``."""
        return _deferred.get() is not None

    def _is_alone(self, address: int) -> bool:
        """Whether the parameter at this address is registered as own and claimed once."""
        return address in self._own and self._claims[address] == 1

    def join(self) -> None:
        """Make all later work on the current stream wait for all deferred work."""
        for work in self._works:
            work.join()
        self._works.clear()


class GradientClaim:
    """The parameters of a layer, and the `DeferredJoins` around it, if any."""

    def __init__(self, deferred: DeferredJoins | None, addresses: list[int]) -> None:
        self._deferred, self._addresses = deferred, addresses

    def join(self, work: SideStream, *held: Any) -> None:
        """Join the work at the end of the backward pass, and hold what it reads until then. Join it
        now if nothing is deferred, or if a parameter is not this layer's alone."""
        deferred = self._deferred
        if deferred is None or not all(deferred._is_alone(address) for address in self._addresses):
            work.join()
            return
        work.hold(*held)
        deferred._works.append(work)

    def join_later(self, work: SideStream) -> None:
        """Join the work at the end of the backward pass, or now if nothing is deferred. The layer's
        own backward pass joins it earlier."""
        if self._deferred is None:
            work.join()
        else:
            self._deferred._works.append(work)


_deferred: ContextVar[DeferredJoins | None] = ContextVar("deferred", default=None)
