"""Kernels that are launched without most of Triton's work on the host.

A launch by Triton takes 28 µs for thirty arguments, more than most kernels of a small batch. Most
of it goes to finding the compiled version: Triton compiles a kernel once for every combination of
dtypes, alignments and constants. `Kernel` uses a shorter key for the same properties, and then
calls the compiled kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from pna.ops.backend import interpreting
from pna.torch_internals import raw_stream

#: The minor versions of Triton whose compiled kernels are called directly.
TESTED_VERSIONS = ("3.6", "3.7")

_IS_TESTED = ".".join(triton.__version__.split(".")[:2]) in TESTED_VERSIONS

_OPTIONS = ("num_warps", "num_stages", "maxnreg")

_NO_CHANGE = nullcontext()


def on_device(tensor: Tensor) -> Any:
    """A context in which the device of `tensor` is the current one."""
    device = tensor.device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NO_CHANGE
    return torch.cuda.device(device)


class Kernel:
    """A decorator like `triton.jit`: ``kernel[grid](...)`` launches it on the current device.

    Numbers of `unspecialised` parameters may change from call to call: no version is compiled for
    1, or for multiples of 16.
    """

    def __init__(self, function: Callable[..., None], unspecialised: Sequence[str] = ()) -> None:
        self.jit = triton.jit(function, do_not_specialize=list(unspecialised))
        self._compiled: dict[tuple[Any, ...], Any] = {}
        if not interpreting():
            self._names = tuple(self.jit.arg_names)
            self._constants = tuple(p.name for p in self.jit.params if p.is_constexpr)
            others = [p.name for p in self.jit.params if not p.is_constexpr]
            self._others = tuple(name for name in others if name not in unspecialised)
            self._unspecialised = tuple(unspecialised)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        if interpreting() or not _IS_TESTED:
            return self.jit[grid]

        def launch(*values: Any, **arguments: Any) -> None:
            arguments.update(zip(self._names, values, strict=False))
            self._launch(grid, arguments)

        return launch

    def _launch(self, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        device = torch.cuda.current_device()
        key = (
            device,
            *[arguments.get(name) for name in _OPTIONS],
            *[arguments[name] for name in self._constants],
            *[_specialised(arguments[name]) for name in self._others],
            *[-(2**31) <= arguments[name] < 2**31 for name in self._unspecialised],
        )
        compiled = self._compiled.get(key)
        if compiled is None or triton.knobs.runtime.launch_enter_hook.calls:  # a profiler listens
            self._compiled[key] = self.jit[grid](**arguments)
            return
        compiled.run(
            *(*grid, 1, 1)[:3], raw_stream(device), compiled.function, compiled.packed_metadata,
            None, None, None, *[arguments[name] for name in self._names],
        )  # fmt: skip


def _specialised(value: Any) -> Any:
    """The properties of a tensor or number that a kernel is compiled for."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    return 1 if value == 1 else (value % 16 == 0, -(2**31) <= value < 2**31)
