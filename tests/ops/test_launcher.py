"""`Kernel` launches the version of a kernel that Triton would compile for its inputs."""

import threading

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
from pna.native import find_library  # noqa: E402
from pna.ops.triton import driver  # noqa: E402
from pna.ops.triton.launcher import Kernel, on_device  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["driver", "triton"], autouse=True)
def launched_by(request, monkeypatch):
    """Kernels are launched by `pna.ops.triton.driver`, or by Triton's own launcher."""
    if request.param == "triton":
        monkeypatch.setattr(driver, "can_launch", lambda *_: False)
    elif find_library()[0] is None:
        pytest.skip("the C library was not built")
    _scaled_kernel._compiled.clear()
    yield request.param
    _scaled_kernel._compiled.clear()


@Kernel
def _scaled_kernel(x, out, size, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < size)
    tl.store(out + place, value * factor, mask=place < size)


@Kernel
def _copy_kernel(x, out, num_rows, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < num_rows), mask=place < num_rows)


@Kernel
def _product_kernel(x, out, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    block = tl.load(x + rows * SIZE + columns)
    tl.store(out + rows * SIZE + columns, tl.dot(block, block))


def _scale(x, factor, block=128):
    out = torch.full_like(x, -1)
    _scaled_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), factor, BLOCK=block)
    return out


def test_launches_repeat(launched_by):
    x = torch.randn(1000, device="cuda")
    for _ in range(3):
        assert torch.equal(_scale(x, 3), 3 * x)
    (launch,) = _scaled_kernel._compiled.values()
    assert isinstance(launch, driver.Launcher) == (launched_by == "driver")


def test_a_float_and_an_integer_of_the_same_value_have_their_own_version():
    x = torch.randn(1000, device="cuda")
    for factor in (1, 1.0, 0.1, 0, 0.0):
        assert torch.equal(_scale(x, factor), x * factor)


def test_an_empty_grid_launches_nothing():
    x = torch.randn(0, device="cuda")
    assert _scale(x, 3).numel() == 0


def test_memory_of_the_host_is_refused():
    x = torch.randn(1000, device="cuda")
    _scale(x, 3)
    for _ in range(2):
        with pytest.raises(ValueError, match="cpu tensor"):
            _scale(x.cpu(), 3)
    assert torch.equal(_scale(x, 3), 3 * x)


def test_a_thread_that_has_not_used_cuda_launches():
    x, found = torch.randn(1000, device="cuda"), []
    out = torch.empty_like(x)
    launch = _scaled_kernel[(8,)]
    thread = threading.Thread(target=lambda: found.append(launch(x, out, 1000, 3, BLOCK=128)))
    thread.start()
    thread.join()
    assert found == [None]
    assert torch.equal(out, 3 * x)


def test_much_shared_memory():
    x = torch.randint(-3, 4, (128, 128), device="cuda").float()  # exact in TF32
    out = torch.empty_like(x)
    _product_kernel[(1,)](x, out, SIZE=128)
    assert torch.equal(out, (x.double() @ x.double()).float())
    (launch,) = _product_kernel._compiled.values()
    _product_kernel._compiled.clear()
    if isinstance(launch, driver.Launcher):
        assert launch._rest[1] > 48 * 1024  # a kernel must ask for more than that


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_each_dtype_has_its_own_version(dtype):
    x = torch.arange(500, device="cuda").to(dtype)
    assert torch.equal(_scale(x, 2), 2 * x)


def test_a_tensor_that_is_not_aligned_has_its_own_version():
    x = torch.randn(1027, device="cuda")
    for start in (0, 1, 2, 3, 0):
        assert torch.equal(_scale(x[start:], 2), 2 * x[start:])


def test_numbers_that_triton_specialises():
    for size in (1, 16, 17, 1024, 1025):
        x = torch.arange(size, device="cuda")
        for factor in (1, 16, 2, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1):
            assert torch.equal(_scale(x, factor), x * factor)


def test_sizes_of_a_batch_have_no_version_of_their_own():
    for size in (1, 2, 16, 1000, 1024):
        x = torch.arange(size, device="cuda")
        out = torch.empty_like(x)
        _copy_kernel[(triton.cdiv(size, 128),)](x, out, num_rows=size, BLOCK=128)
        assert torch.equal(out, x)
    assert len(_copy_kernel._compiled) == 1
    _copy_kernel._compiled.clear()


def test_constants_and_warps_have_their_own_version():
    x = torch.randn(1000, device="cuda")
    for block in (32, 256):
        assert torch.equal(_scale(x, 2, block), 2 * x)


def test_it_runs_on_the_current_stream():
    x = torch.zeros(2**20, device="cuda")
    _scale(x, 2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x += 1
        out = _scale(x, 2)
    stream.synchronize()
    assert torch.equal(out, torch.full_like(out, 2))


def test_a_launch_can_be_captured():
    x, graph = torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()
    _scale(x, 3)
    with torch.cuda.graph(graph):
        out = _scale(x, 3)
    x.fill_(2)
    graph.replay()
    assert torch.equal(out, torch.full_like(out, 6))


def test_a_profiler_sees_every_launch():
    x = torch.randn(1000, device="cuda")
    _scale(x, 3)
    seen = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        _scale(x, 3)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert seen == ["_scaled_kernel"]


def test_the_device_of_a_tensor_on_the_current_one_is_not_changed():
    x = torch.ones(1, device="cuda")
    with on_device(x):
        assert torch.cuda.current_device() == x.device.index
