"""Kernels that Triton has compiled, loaded and launched without Triton's own launcher.

Triton 3.6 lets gcc build a launcher for every list of parameter types. That takes 0.3 s each, most
of the time until a first step ends, and a launch by it takes longer than one by launch.c.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import triton
from triton.compiler.compiler import max_shared_mem
from triton.runtime.errors import OutOfResources

from pna.native import find_library, size_of

#: The start of `struct launch` of launch.c, and the format of each type of parameter in 8 bytes.
_HEAD = "QQ6Iii"
_FORMATS = {"i32": "i4x", "i64": "q", "u64": "Q", "fp32": "f4x", "fp64": "d"}
_MOST = 128  # parameters; as in launch.c

#: The functions of the CUDA driver that launch.c calls, in the order of `pna_launch_driver`.
_FUNCTIONS = (
    "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
)  # fmt: skip


class Launcher:
    """A compiled kernel on a device. Calls take the grid, the stream and all values of `names`.

    `names` are the parameters that are not `tl.constexpr`. A tensor's value is its address. Values
    that Triton has compiled into the kernel are left out.
    """

    def __init__(self, compiled: Any, names: Sequence[str], device: int) -> None:
        signature, metadata = compiled.src.signature, compiled.metadata
        types = [signature[name] for name in names]
        self._kept = [i for i, kind in enumerate(types) if kind != "constexpr"]
        self._keeps_all = len(self._kept) == len(types)
        formats = parameter_formats([types[i] for i in self._kept])
        self.format = _HEAD + "".join(formats)
        self._pack = struct.Struct("=" + self.format).pack
        self._function = load(compiled, device)
        self._rest = (32 * metadata.num_warps, metadata.shared, len(formats), device, 0)

    def record(self, grid: Sequence[Any], stream: Any, values: Sequence[Any]) -> list[Any]:
        """What launch.c needs to know, in `format`."""
        if not self._keeps_all:
            values = [values[i] for i in self._kept]
        x, y, z = (*grid, 1, 1)[:3]
        return [self._function, stream, x, y, z, *self._rest, *values, 0, 0]

    def __call__(self, grid: Sequence[int], stream: int, values: Sequence[int | float]) -> None:
        launch_all(self._pack(*self.record(grid, stream, values)), 1)


def launch_all(records: bytes, number: int) -> None:
    """Launch as many kernels, one after another."""
    error = _loaded_library().pna_launch_all(records, number)
    if error:
        raise RuntimeError(f"a kernel could not be launched: {_message(error)}")


def parameter_formats(types: Sequence[str]) -> list[str]:
    """The format of each parameter; the last two are pointers to memory that is not needed."""
    return ["Q" if kind[0] == "*" else _FORMATS[kind] for kind in types] + ["Q", "Q"]


def can_launch(compiled: Any, names: Sequence[str], device: int) -> bool:
    """Whether `Launcher` supports a compiled kernel; Triton's own launcher supports all."""
    metadata, signature = compiled.metadata, compiled.src.signature
    types = [signature[name] for name in names]
    unusual = (
        metadata.num_ctas != 1, metadata.launch_cooperative_grid, metadata.launch_pdl,
        metadata.global_scratch_size, metadata.profile_scratch_size,
        getattr(metadata, "tmem_size", None), getattr(metadata, "tensordesc_meta", None),
    )  # fmt: skip
    known = {*_FORMATS, "constexpr"}
    return (
        is_available()
        and not any(unusual)
        and all(isinstance(kind, str) and (kind[0] == "*" or kind in known) for kind in types)
        and len(types) + 2 <= _MOST
        and metadata.shared <= max_shared_mem(device)  # otherwise Triton raises its own error
    )


def is_available() -> bool:
    """Whether the C library has the launcher, and the CUDA driver is there."""
    return _library() is not None


def load(compiled: Any, device: int) -> int:
    """Load a compiled kernel, as Triton does; returns the handle of its function."""
    shared, threads = compiled.metadata.shared, 32 * compiled.metadata.num_warps
    _, function, *_, most_threads = triton.runtime.driver.active.utils.load_binary(
        compiled.name, compiled.kernel, shared, device
    )
    if threads > most_threads:
        raise OutOfResources(threads, most_threads, "threads")
    return int(function)


def _loaded_library() -> ctypes.CDLL:
    library = _library()
    assert library is not None
    return library


@cache
def _library() -> ctypes.CDLL | None:
    """The C library, which then knows the CUDA driver; None without one of them."""
    library, _ = find_library()
    cuda = _cuda()
    if library is None or cuda is None or not hasattr(library, "pna_launch_all"):
        return None
    if size_of(library, "launch") != struct.calcsize("=" + _HEAD):
        return None
    functions = [ctypes.cast(getattr(cuda, name), ctypes.c_void_p) for name in _FUNCTIONS]
    library.pna_launch_driver.argtypes = [ctypes.c_void_p] * len(functions)
    library.pna_launch_driver.restype = None
    library.pna_launch_driver(*functions)
    library.pna_launch_all.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.pna_launch_all.restype = ctypes.c_int64
    return library


@cache
def _cuda() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _message(error: int) -> str:
    """The driver's words for an error code."""
    cuda, text = _cuda(), ctypes.c_char_p()
    assert cuda is not None
    cuda.cuGetErrorString(error, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} (CUDA error {error})"
