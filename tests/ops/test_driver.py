"""Compiled kernels are launched with the right parameters; a CUDA driver here only notes them."""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from pna.native import find_library
from pna.ops.triton import driver, launcher
from pna.ops.triton.sequence import LaunchSequence, Step

#: Notes the numbers and the first words of the parameters of the last launch.
FAKE = """
#include <stdint.h>
#include <string.h>
uint64_t noted[64]; int launches, contexts, broken, count;
static __thread void *context;
int cuCtxGetCurrent(void **c) { *c = context; return 0; }
int cuCtxSetCurrent(void *c) { context = c; contexts++; return 0; }
int cuDeviceGet(int *device, int index) { *device = 100 + index; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int device) { *c = (void *)(intptr_t)device; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "no such kernel"; return 0; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **given, void **extra)
{
    uint64_t head[] = {(uint64_t)f, x, y, z, bx, by, bz, shared, (uint64_t)stream,
                       (uint64_t)context, extra != 0};
    if (broken) return broken;
    launches++;
    memcpy(noted, head, sizeof head);
    for (int i = 0; i < count; i++) memcpy(&noted[11 + i], given[i], 8);
    return 0;
}
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    compiler, (library, reason) = shutil.which("cc"), find_library()
    if compiler is None or library is None:
        pytest.skip(reason or "there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "fake.c").write_text(FAKE)
    built = str(folder / "fake.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, folder / "fake.c"], check=True)
    return ctypes.CDLL(built)


@pytest.mark.slow
def test_a_kernel_is_compiled_and_launched(fake):
    """With parameters of a compiled kernel; versions are those that Triton would compile."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.launch_kernel", fake._name],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *launches, loaded = done.stdout.splitlines()
    assert launches == [
        "1 2 128 1 3 0.5",  # version, grid, threads, rows, stride and factor
        "1 2 128 16 3 0.5",
        "1 2 128 17 3 0.5",
        "1 2 128 64 3 0.5",
        "2 2 128 17 0.5",  # a stride of 1 is compiled into the kernel
        "3 2 256 17 16 0.5",
        "1 2 128 17 3 0.25",
        f"4 2 {2**20} {2**21} 17 3 0 0",
    ]
    assert loaded == "_scaled_kernel _scaled_kernel _scaled_kernel _copy_kernel"


@pytest.fixture
def launched(fake, monkeypatch):
    """Launches a kernel of these parameters; returns what the driver was called with."""
    monkeypatch.setattr(driver, "_cuda", lambda: fake)
    monkeypatch.setattr(driver, "load", lambda compiled, device: 2**47 + device)
    monkeypatch.setattr(driver, "max_shared_mem", lambda device: 232448)
    driver._library.cache_clear()

    def launch(signature, values, grid=(5, 6, 7), stream=9, device=3, formats="Q", **metadata):
        ctypes.c_int.in_dll(fake, "count").value = len(formats)
        kernel, names = _compiled(signature, **metadata), list(signature)
        assert driver.can_launch(kernel, names, device)
        driver.Launcher(kernel, names, device)(grid, stream, values)
        noted = bytes((ctypes.c_uint64 * 64).in_dll(fake, "noted"))
        head = struct.unpack_from("11Q", noted)
        sizes = (("=" + f, 88 + 8 * i) for i, f in enumerate(formats))
        return head, [struct.unpack_from(f, noted, at)[0] for f, at in sizes]

    yield launch
    driver._library.cache_clear()


def _compiled(signature, num_warps=4, shared=50_000, **metadata):
    usual = dict(
        num_ctas=1, launch_cooperative_grid=False, launch_pdl=False, global_scratch_size=0,
        profile_scratch_size=0, tmem_size=None, tensordesc_meta=None,
    )  # fmt: skip
    metadata = SimpleNamespace(num_warps=num_warps, shared=shared, **(usual | metadata))
    return SimpleNamespace(src=SimpleNamespace(signature=signature), metadata=metadata, name="k")


def test_the_driver_gets_grid_threads_memory_and_stream(launched):
    head, _ = launched({}, [], num_warps=8, shared=60_000)
    assert head == (2**47 + 3, 5, 6, 7, 256, 1, 1, 60_000, 9, 103, 0)


def test_missing_dimensions_of_a_grid_are_one(launched):
    assert launched({}, [], grid=(12,))[0][1:4] == (12, 1, 1)
    assert launched({}, [], grid=(12, 2))[0][1:4] == (12, 2, 1)


def test_each_parameter_has_its_type(launched):
    signature = {"x": "*fp32", "n": "i32", "m": "i64", "u": "u64", "f": "fp32", "d": "fp64"}
    given = [2**63 + 1, -5, -(2**40), 2**63, 0.1, 0.1]
    _, noted = launched(signature, given, formats="QiqQfdQQ")
    assert noted[:4] == given[:4]
    assert noted[4] == ctypes.c_float(0.1).value
    assert noted[5] == 0.1
    assert noted[6:] == [0, 0]  # Triton's memory of its own, which is not needed


def test_values_that_are_compiled_into_the_kernel_are_left_out(launched):
    signature = {"x": "*i64", "n": "constexpr", "m": "i32", "last": "constexpr"}
    assert launched(signature, [10, 1, 20, 1], formats="QiQQ")[1] == [10, 20, 0, 0]


def test_an_empty_grid_launches_nothing(launched, fake):
    before = ctypes.c_int.in_dll(fake, "launches").value
    launched({}, [], grid=(4, 0))
    assert ctypes.c_int.in_dll(fake, "launches").value == before


def test_a_thread_without_a_context_gets_that_of_the_device(launched, fake):
    before = ctypes.c_int.in_dll(fake, "contexts").value
    heads = []
    thread = threading.Thread(
        target=lambda: heads.extend(launched({}, [], device=5)[0] for _ in range(2))
    )
    thread.start()
    thread.join()
    assert [head[9] for head in heads] == [105, 105]
    assert ctypes.c_int.in_dll(fake, "contexts").value == before + 1


def test_an_error_of_the_driver_is_raised(launched, fake):
    ctypes.c_int.in_dll(fake, "broken").value = 98
    try:
        with pytest.raises(RuntimeError, match=r"launched: no such kernel \(CUDA error 98\)"):
            launched({}, [])
    finally:
        ctypes.c_int.in_dll(fake, "broken").value = 0


@pytest.mark.parametrize(
    "unusual",
    [
        dict(num_ctas=2),
        dict(launch_cooperative_grid=True),
        dict(launch_pdl=True),
        dict(global_scratch_size=128),
        dict(profile_scratch_size=128),
        dict(tmem_size=64),
        dict(tensordesc_meta=[{}]),
        dict(shared=300_000),
    ],
)
def test_unusual_kernels_are_left_to_triton(launched, unusual):
    assert driver.can_launch(_compiled({"x": "*fp32"}), ["x"], 0)
    assert not driver.can_launch(_compiled({"x": "*fp32"}, **unusual), ["x"], 0)


def test_unusual_parameters_are_left_to_triton(launched):
    for kind in ("u1", "fp16", "tensordesc<fp32[4]>", ("i32", "i32"), "nvTmaDesc"):
        assert not driver.can_launch(_compiled({"x": kind}), ["x"], 0)
    many = {f"x{i}": "i32" for i in range(127)}
    assert not driver.can_launch(_compiled(many), list(many), 0)
    del many["x0"]
    assert driver.can_launch(_compiled(many), list(many), 0)


def test_without_a_driver_all_is_left_to_triton(monkeypatch):
    monkeypatch.setattr(driver, "_cuda", lambda: None)
    driver._library.cache_clear()
    assert not driver.can_launch(_compiled({}), [], 0)
    driver._library.cache_clear()


class _FakeKernel:
    """A prepared kernel that is compiled already; `given` are the kinds it was asked for."""

    is_direct = True

    def __init__(self, signature):
        self._signature, self.given = signature, []

    def launcher(self, kinds, device):
        self.given.append(kinds)
        if self._signature is None:
            return None
        return driver.Launcher(_compiled(self._signature), list(self._signature), device)


def test_a_sequence_launches_its_kernels_in_order(launched, fake, monkeypatch):
    monkeypatch.setattr(launcher, "raw_stream", lambda device: 11)
    # the fake driver reads as many parameters of every kernel
    first = _FakeKernel({"x": "*fp32", "n": "i32", "k": "i32", "l": "i32"})
    last = _FakeKernel({"n": "i32", "x": "*fp32", "k": "i64", "y": "*i64"})
    steps = [Step(first, ("n",), ("x", "n", 8, 9)), Step(last, (2, "m"), ("n", "y", -7, "x"))]
    sequence = LaunchSequence(steps, {"x": torch.float32, "y": torch.int64}, ["n", "m"])
    assert sequence.is_ready(3)
    assert first.given == [(torch.float32, 1, 1, 1)]
    assert last.given == [(1, torch.int64, 1, torch.float32)]
    before = ctypes.c_int.in_dll(fake, "launches").value
    ctypes.c_int.in_dll(fake, "count").value = 6
    for rows in (20, 30):
        sequence.launch(3, [2**40, 2**41, rows, 5])
    assert ctypes.c_int.in_dll(fake, "launches").value == before + 4
    noted = bytes((ctypes.c_uint64 * 64).in_dll(fake, "noted"))
    assert struct.unpack_from("11Q", noted) == (2**47 + 3, 2, 5, 1, 128, 1, 1, 50_000, 11, 103, 0)
    assert struct.unpack_from("=i4xQqQQQ", noted, 88) == (30, 2**41, -7, 2**40, 0, 0)


def test_a_sequence_of_a_kernel_that_cannot_be_launched_is_not_ready(launched):
    steps = [Step(_FakeKernel({"x": "*fp32"}), (1,), ("x",)), Step(_FakeKernel(None), (1,), ("x",))]
    assert not LaunchSequence(steps, {"x": torch.float32}, []).is_ready(3)


def test_launches_end_at_the_first_error(launched, fake, monkeypatch):
    monkeypatch.setattr(launcher, "raw_stream", lambda device: 11)
    step = Step(_FakeKernel({"x": "*fp32"}), (1,), ("x",))
    sequence = LaunchSequence([step, step], {"x": torch.float32}, [])
    assert sequence.is_ready(3)
    ctypes.c_int.in_dll(fake, "broken").value = 700
    try:
        with pytest.raises(RuntimeError, match="could not be launched: no such kernel"):
            sequence.launch(3, [2**40])
    finally:
        ctypes.c_int.in_dll(fake, "broken").value = 0
