"""Several kernels that are launched one after another, by one call to C.

On a small graph, the GPU waits for the host: for Python to collect the arguments of each launch,
and for every tensor that is allocated. A `LaunchSequence` collects all arguments at once. What its
kernels pass on to each other is in one buffer, whose parts need no tensors of their own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna.ops.tracing import is_tracing
from pna.ops.triton import driver, launcher
from pna.ops.triton.launcher import PreparedKernel

#: Addresses of parts of a buffer are multiples of this number of bytes.
ALIGNMENT = 16

_MOST_THREADS = 8


class Step(NamedTuple):
    """One launch. Its grid and its arguments are names of values, or numbers."""

    kernel: PreparedKernel
    grid: tuple[str | int, ...]
    arguments: tuple[str | int, ...]


_Version = tuple[PreparedKernel, tuple[torch.dtype | int, ...]]


class LaunchSequence:
    """Steps, and the names of their values, in order: tensors with their types, and numbers."""

    def __init__(
        self, steps: Sequence[Step], tensors: Mapping[str, torch.dtype], numbers: Sequence[str]
    ) -> None:
        self._steps, self._tensors = steps, tensors
        self._places = {name: i for i, name in enumerate((*tensors, *numbers))}
        self._launches: dict[int, Callable[[Sequence[int]], None] | None] = {}

    def is_ready(self, device: int) -> bool:
        """Whether `launch` can be used: in eager mode, on a GPU whose driver is known."""
        if is_tracing() or launcher.is_observed() or not self._steps[0].kernel.is_direct:
            return False
        if device not in self._launches:
            compile_all([self], device)
        return self._launches[device] is not None

    def launch(self, device: int, values: Sequence[int]) -> None:
        """Launch all kernels. `values` are the addresses of all tensors, which are multiples of 16,
        and the numbers."""
        run = self._launches[device]
        assert run is not None
        run(values)

    def run(self, values: Mapping[str, Any]) -> None:
        """The same by one launch at a time, as the compiler and the interpreter need it."""
        for kernel, grid, arguments in self._steps:
            kernel(_resolved(grid, values), *_resolved(arguments, values))

    def versions(self) -> list[_Version]:
        """The kernel of every step, with the types of its arguments; 1 stands for all numbers."""
        return [
            (step.kernel, tuple(self._tensors.get(str(name), 1) for name in step.arguments))
            for step in self._steps
        ]

    def bind(self, device: int, launchers: Sequence[driver.Launcher | None]) -> None:
        """Take the compiled steps."""
        if not all(launchers):
            self._launches[device] = None
            return
        stream, constants = len(self._places), list[int]()

        def place(of: str | int) -> int:
            if isinstance(of, str):
                return self._places[of]
            constants.append(of)
            return stream + len(constants)

        chosen, form = list[int](), "="
        for step, made in zip(self._steps, launchers, strict=True):
            assert made is not None
            form += made.format
            record = made.record(step.grid, _STREAM, step.arguments)
            chosen += [stream if item is _STREAM else place(item) for item in record]
        pick, pack, number = itemgetter(*chosen), struct.Struct(form).pack, len(self._steps)
        always = tuple(constants)

        def run(values: Sequence[int]) -> None:
            pool = (*values, launcher.raw_stream(device), *always)
            driver.launch_all(pack(*pick(pool)), number)

        self._launches[device] = run


_STREAM: Any = object()


def _resolved(items: Sequence[str | int], values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[item] if isinstance(item, str) else item for item in items)


def compile_all(sequences: Sequence[LaunchSequence], device: int) -> None:
    """Compile the kernels of all sequences for a device, as many at a time as there are cores."""
    sequences = [sequence for sequence in sequences if device not in sequence._launches]
    work = list(dict.fromkeys(each for sequence in sequences for each in sequence.versions()))
    if not work:
        return
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1, len(work))) as pool:
        made = pool.map(lambda version: version[0].launcher(version[1], device), work)
        found = dict(zip(work, made, strict=True))
    for sequence in sequences:
        sequence.bind(device, [found[version] for version in sequence.versions()])


class BufferPart(NamedTuple):
    """A part of a buffer: a matrix with this number of columns, and as many rows as `rows` says."""

    name: str
    rows: str
    columns: int
    dtype: torch.dtype


class BufferLayout:
    """Parts of one buffer."""

    def __init__(self, parts: Sequence[BufferPart]) -> None:
        self._parts = parts
        self._sizes = [(p.rows, p.columns * p.dtype.itemsize) for p in parts]

    def offsets(self, rows: Mapping[str, int]) -> list[int]:
        """The first byte of every part, and the end of the last."""
        offset, found = 0, [0]
        for name, size in self._sizes:
            offset += -(-rows[name] * size // ALIGNMENT) * ALIGNMENT
            found.append(offset)
        return found

    def tensors(self, buffer: Tensor, rows: Mapping[str, int]) -> dict[str, Tensor]:
        """Every part as a matrix."""
        found = {}
        for (name, kind, columns, dtype), offset in zip(
            self._parts, self.offsets(rows), strict=False
        ):
            part = buffer[offset : offset + rows[kind] * columns * dtype.itemsize]
            found[name] = part.view(dtype).view(rows[kind], columns)
        return found
