"""Work of a captured step that runs beside other work.

Kernels of a small batch leave most of a GPU idle. What nothing waits for at once, such as the
gradients of weights, may run at the same time as the rest. Outside of a capture it is run in its
turn: there the host is what is waited for, and a second stream would cost it more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


class Beside:
    """``with beside:`` holds the work; `join` is called before anything of it is read.

    Between the two nothing that the work reads may be written to or let go of. Works of the same
    `number` follow one another, those of others run beside them.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._stream = _stream(device, number) if captured else None
        self._inside: Any = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._inside = torch.cuda.stream(self._stream)
            self._inside.__enter__()

    def __exit__(self, *problem: Any) -> None:
        if self._inside is not None:
            self._inside.__exit__(*problem)

    def join(self) -> None:
        """Have all that follows wait for the work."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
