"""Compile kernels for a GPU that need not be here, and launch them on a CUDA driver that notes it.

Run as a program, with the path of that driver, in a process of its own: Triton decides when it is
imported whether it interprets. Prints the loaded kernels, then the noted parameters of each launch.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from pna.ops.triton import driver, launcher
from pna.ops.triton.sequence import LaunchSequence, Step

DRIVER = ctypes.CDLL(sys.argv[1])
LOADED: list[str] = []


@launcher.Kernel
def _scaled_kernel(x, out, num_rows, stride, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * stride, mask=row < num_rows)
    tl.store(out + row, value * factor, mask=row < num_rows)


class Device:
    """What Triton asks the driver of a device, answered for an H100."""

    utils = SimpleNamespace(
        load_binary=lambda name, binary, shared, device: (
            LOADED.append(name) or (1, 40 + len(LOADED), 32, 0, 1024)
        ),
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class OnGpu(torch.Tensor):
    is_cuda = True  # type: ignore[assignment]


def launch(rows: int, stride: int, factor: float, **options: Any) -> None:
    """Launch the kernel, and print its function, threads and parameters."""
    x, out = (torch.zeros(64).as_subclass(OnGpu) for _ in range(2))
    ctypes.c_int.in_dll(DRIVER, "count").value = 6 if stride == 1 else 7
    _scaled_kernel[(2,)](x, out, num_rows=rows, stride=stride, factor=factor, BLOCK=32, **options)
    noted = bytes((ctypes.c_uint64 * 64).in_dll(DRIVER, "noted"))
    function, grid, *_ = struct.unpack_from("11Q", noted)
    (threads,) = struct.unpack_from("Q", noted, 32)
    pointers = struct.unpack_from("2Q", noted, 88)
    assert pointers == (x.data_ptr(), out.data_ptr()), "parameters 0 and 1"
    kinds = ["i", "i", "f"] if stride != 1 else ["i", "f"]
    numbers = [struct.unpack_from(k, noted, 104 + 8 * i)[0] for i, k in enumerate(kinds)]
    assert struct.unpack_from("2Q", noted, 104 + 8 * len(kinds)) == (0, 0), "the last parameters"
    print(function - 40, grid, threads, *numbers)


@partial(launcher.Kernel, unspecialised=("stride",))
def _copy_kernel(x, out, num_rows, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row, tl.load(x + row * stride, mask=row < num_rows), mask=row < num_rows)


def launch_sequence() -> None:
    """Compile a sequence for the types of its tensors, launch it, and print the same."""
    torch.cuda.device = lambda device: nullcontext()  # type: ignore[assignment,misc]
    step = Step(
        launcher.PreparedKernel(_copy_kernel, BLOCK=32), ("tiles",), ("x", "out", "rows", 3)
    )
    types = {"x": torch.float32, "out": torch.bfloat16}
    sequence = LaunchSequence([step], types, ["rows", "tiles"])
    assert sequence.is_ready(0)
    ctypes.c_int.in_dll(DRIVER, "count").value = 6
    sequence.launch(0, [2**20, 2**21, 17, 2])
    noted = bytes((ctypes.c_uint64 * 64).in_dll(DRIVER, "noted"))
    function, grid, *_ = struct.unpack_from("11Q", noted)
    print(function - 40, grid, *struct.unpack_from("=QQi4xi4xQQ", noted, 88))


def main() -> None:
    driver._cuda = lambda: DRIVER
    triton.runtime.driver.set_active(Device())
    launcher.current_device = lambda: 0
    launcher.raw_stream = lambda device: 7
    for rows in (1, 16, 17, 64):  # one version for all
        launch(rows, 3, 0.5)
    launch(17, 1, 0.5)  # the stride is compiled into the kernel
    launch(17, 16, 0.5, num_warps=8)
    launch(17, 3, 0.25)
    launch_sequence()
    print(*LOADED)


if __name__ == "__main__":
    main()
