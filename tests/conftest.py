"""What tests share: the device, and the backends that are held against the definition.

Without a GPU, Triton's kernels run in its interpreter, on CPU tensors. It costs about a
millisecond for every few operations of a program, so graphs in tests are narrow and small.
"""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, so before anything does

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Backend:
    """An implementation of `pna.aggregate`, and the device on which its tensors live."""

    name: str
    device: torch.device


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter is NumPy, which warns where a kernel divides by zero in a masked lane.
    for module in ("triton.runtime.interpreter", "numpy._core.fromnumeric"):
        config.addinivalue_line("filterwarnings", f"ignore::RuntimeWarning:{module}")


@pytest.fixture
def device() -> torch.device:
    return DEVICE


def _inside(name: str) -> Iterator[Backend]:
    import pna
    from pna.ops.backend import availability

    reason = availability()[name]
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    with pna.backend(name):
        yield Backend(name, torch.device("cpu") if name == "cpu" else DEVICE)


@pytest.fixture(params=["cpu", "triton"])
def fast(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each fast backend in turn, chosen for the length of the test."""
    yield from _inside(request.param)


@pytest.fixture(params=["reference", "cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Every backend in turn, chosen for the length of the test."""
    yield from _inside(request.param)


@pytest.fixture
def cpu() -> Iterator[Backend]:
    yield from _inside("cpu")


@pytest.fixture
def triton() -> Iterator[Backend]:
    yield from _inside("triton")
