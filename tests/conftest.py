"""What tests share: the device, and the backends that are held against the definition.

Without a GPU, Triton's kernels run in its interpreter, on CPU tensors. It costs about a
millisecond for every few operations of a program, so graphs in tests are narrow and small.
"""

import gc
import importlib.util
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.testing

from tests import covering, interpreter

if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, so before anything does
    interpreter.make_faster()

if not torch.cuda.is_available():
    # Otherwise Inductor starts processes, each of which imports torch, to compile a few files.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

#: Where in a program the nodes of a graph come from takes a tenth of the time of tracing.
torch.fx.config.do_not_emit_stack_traces = True

#: Commands are put together once, not at every call: a tenth of a second.
typer.testing._get_command = cache(typer.main.get_command)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Backend:
    """An implementation of `pna.aggregate`, and the device on which its tensors live."""

    name: str
    device: torch.device


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run every combination of parameters, not enough of them for every pair of values",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter is NumPy, which warns where a kernel divides by zero in a masked lane.
    for module in ("triton.runtime.interpreter", "numpy._core.fromnumeric"):
        config.addinivalue_line("filterwarnings", f"ignore::RuntimeWarning:{module}")
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        settings.register_profile("pna", deadline=None)  # the machine may be busy
        settings.load_profile("pna")


#: Tests that ask for one of these fixtures run on the GPU, except as the parameter "cpu".
_ON_THE_DEVICE = {"device", "triton", "fast", "backend"}
#: Tests of these folders train, which is done on the GPU unless they say otherwise.
_TRAINING = {"bench", "estimators", "paper", "train"}
#: Packages that many tests need, and that an interpreter with a GPU may lack.
_OPTIONAL = {"hypothesis", "sklearn", "torch_geometric"}


#: Files with tests of tens of seconds. They come first: the last one would keep others waiting.
_FIRST = {
    "test_exporting.py", "test_inductor.py", "test_tracing.py", "test_triton_compile.py",
    "test_workers.py", "test_torchrun.py", "test_distributed.py",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before items are selected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test marked `gpu` needs a GPU. Those that run on one where there is one are marked here.

    So are, with `slow`, the cases that their marker `covering` does not need. Those of them that
    are for a GPU alone are left out here if there is none. Of all other tests, every row of every
    `parametrize` is needed once.

    Cases that are not needed for every pair of rows to occur are left out, except with
    `--every-case`. Without a GPU, a test marked `covering(0)` needs every value only.
    """
    if not config.getoption("every_case"):
        slowest = [item for item in items if DEVICE.type != "cuda" and _is_slowest(item)]
        extra = covering.left_over(slowest, strength=1)
        aside = {*slowest}
        rest = [item for item in items if item not in aside]
        extra += covering.left_over(rest, strength=2, given=aside - {*extra})
        _leave_out(config, items, extra)
    marked = [item for item in items if _may_be_slow(item)]
    others = [i for i in items if i.get_closest_marker("slow") is None and not _may_be_slow(i)]
    unneeded = covering.left_over(marked)
    for item in unneeded + covering.left_over(others, strength=1):
        item.add_marker(pytest.mark.slow)
    if DEVICE.type != "cuda":
        _leave_out(config, items, [item for item in unneeded if _is_for_a_gpu(item)])
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            if DEVICE.type != "cuda":
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        elif _runs_on_the_device(item):
            item.add_marker(pytest.mark.gpu)
    items.sort(key=lambda item: item.path.name not in _FIRST)


def _leave_out(config: pytest.Config, items: list[pytest.Item], some: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=some)
    left_out = {*some}
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collections, which take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave tests and modules out of garbage collections: there are a million objects of them."""
    gc.freeze()


def _runs_on_the_device(item: pytest.Item) -> bool:
    if item.path.relative_to(Path(__file__).parent).parts[0] in _TRAINING:
        return True
    asked = _ON_THE_DEVICE.intersection(getattr(item, "fixturenames", ()))
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    return any(chosen.get(name) != "cpu" for name in asked)


def _may_be_slow(item: pytest.Item) -> bool:
    """Whether a test is marked `covering`, and runs Triton's kernels or is `always` slow."""
    marker = item.get_closest_marker("covering")
    if marker is None or marker.kwargs.get("always"):
        return marker is not None
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    return "triton" in {
        *getattr(item, "fixturenames", ()),
        chosen.get("fast"),
        chosen.get("backend"),
    }


def _is_slowest(item: pytest.Item) -> bool:
    """Whether `make test` runs one case of it, which is marked `covering(0)`."""
    marker = item.get_closest_marker("covering")
    return marker is not None and marker.args == (0,) and _may_be_slow(item)


def _is_for_a_gpu(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("covering")
    return marker is not None and marker.kwargs.get("rest") == "gpu"


#: A test that takes longer says in its docstring why. Seconds of processor time.
_LONG = 5.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    begin = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        spent = sum(os.times()[:4]) - begin
        if spent > _LONG and not getattr(getattr(item, "function", None), "__doc__", None):
            item.user_properties.append(("long and undocumented", spent))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that take long and do not say why."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "long and undocumented" and report.when == "call":
                terminalreporter.write_line(
                    f"{report.nodeid} took {value:.0f} s and has no docstring that says why"
                )


class _Module(pytest.Module):
    """A file of tests that is skipped if it imports an optional package that is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = str(getattr(error.__cause__, "name", None)).partition(".")[0]
            if missing in _OPTIONAL:
                pytest.skip(f"no {missing}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


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
