"""Kernels that are launched without most of Triton's work on the host.

A launch by Triton takes 28 µs for thirty arguments, more than most kernels of a small batch. Most
of it goes to finding the compiled version: Triton compiles a kernel once for every combination of
dtypes, alignments and constants. `Kernel` uses a shorter key for the same properties, and then
launches the compiled kernel itself, by `driver`. While the compiler traces an operator, a launch
becomes a node of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
import triton
from torch import Tensor

from pna.ops.backend import interpreting
from pna.ops.tracing import is_tracing
from pna.ops.triton import driver
from pna.torch_internals import current_device, raw_stream
from pna.waiting import waiting_for

#: The minor versions of Triton whose compiled kernels are called directly.
TESTED_VERSIONS = ("3.6", "3.7")

_IS_TESTED = ".".join(triton.__version__.split(".")[:2]) in TESTED_VERSIONS

_OPTIONS = ("num_warps", "num_stages", "maxnreg")

#: Parameters that follow the size of the batch. They bound loops and masks, so that a kernel gains
#: nothing if it is compiled once more for the number 1, and for multiples of 16.
COUNTS = frozenset(
    ("num_rows", "num_edges", "num_segments", "num_long", "num_slots", "first_slot", "tiles",
     "splits")
)  # fmt: skip

_NO_CHANGE = nullcontext()

_Launch = Callable[[Sequence[int], int, Sequence[int | float]], None]

_runtime = triton.knobs.runtime


# Triton has both, but its versions also run in kernels and take 5 µs on the host.


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n."""
    return 1 << (int(n) - 1).bit_length()


def on_device(tensor: Tensor) -> Any:
    """A context in which the device of `tensor` is the current one."""
    if is_tracing():
        return _NO_CHANGE
    device = tensor.device
    if device.type != "cuda" or device.index == current_device():
        return _NO_CHANGE
    return torch.cuda.device(device)


def is_observed() -> bool:
    """Whether a profiler listens to the launches of Triton."""
    return bool(_runtime.launch_enter_hook.calls)


class Kernel:
    """A decorator like `triton.jit`: ``kernel[grid](...)`` launches it on the current device.

    Numbers of `COUNTS` and of `unspecialised` parameters may change from call to call: no version
    is compiled for 1, or for multiples of 16.
    """

    def __init__(self, function: Callable[..., None], unspecialised: Sequence[str] = ()) -> None:
        self._unspecialised = COUNTS.union(unspecialised)
        self.jit = triton.jit(function, do_not_specialize=self._unspecialised)
        self._compiled: dict[tuple[Any, ...], _Launch] = {}
        self.is_direct = _IS_TESTED and not interpreting()
        self._launch: Callable[..., None] = self._first_launch
        if self.is_direct:
            self._names = tuple(self.jit.arg_names)
            self._constants = tuple(p.name for p in self.jit.params if p.is_constexpr)
            self._others = tuple(p.name for p in self.jit.params if not p.is_constexpr)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        if is_tracing():
            return partial(self._trace, grid)
        return partial(self._launch, grid) if self.is_direct else self.jit[grid]

    def _trace(self, grid: tuple[int, ...], /, *positional: Any, **arguments: Any) -> None:
        arguments.update(zip(self.jit.arg_names, positional, strict=False))
        arguments.pop("maxnreg", None)  # which the compiler does not know
        torch.library.wrap_triton(self.jit)[grid](**arguments)

    def _first_launch(self, grid: tuple[int, ...], /, *positional: Any, **arguments: Any) -> None:
        arguments.update(zip(self._names, positional, strict=False))
        tensors = {name for name in self._others if isinstance(arguments[name], Tensor)}
        self._launch = partial(self._written(tensors), self)
        self._launch(grid, **arguments)

    def _written(self, tensors: Container[str]) -> Callable[..., None]:
        """A function that launches the version for its arguments; `tensors` are their names.

        It is made as source, since a loop over forty arguments takes longer than the launch. Its
        key has all properties that Triton compiles a kernel for.
        """
        key, values = ["_device", *_OPTIONS, *self._constants], []
        for name in self._others:
            if name in tensors:
                values.append(f"_at_{name}")
                key.append(f"{name}.dtype if {name}.is_cuda else None")
                key.append(f"({values[-1]} := {name}.data_ptr()) & 15 == 0")
                continue
            values.append(name)
            if name in self._unspecialised:
                key.append(f"{name} < {2**31}")
            else:
                of_integer = f"1 if {name} == 1 else {name} & 15 == 0 and 16"
                key.append(f"{of_integer} if type({name}) is int else type({name})")
                key.append(f"-{2**31} <= {name} < {2**31}")
        options = [f"{name}=None" for name in _OPTIONS]
        every = [f"{name!r}: {name}" for name in (*self._names, *_OPTIONS)]
        source = f"""
def launch(_kernel, _grid, /, {", ".join([*self._names, *options])}):
    _device = current_device()
    _key = ({", ".join(key)})
    _run = _kernel._compiled.get(_key)
    if _run is None or is_observed():
        _run = _kernel._compile(_grid, {{{", ".join(every)}}}, _device)
        if _run is None:  # Triton has launched it
            return
        _kernel._compiled[_key] = _run
    _run(_grid, raw_stream(_device), ({", ".join(values)},))
"""
        made: dict[str, Any] = {}
        exec(compile(source, f"<launch of {self.jit.fn.__name__}>", "exec"), globals(), made)
        return cast(Callable[..., None], made["launch"])

    def compiled_for(
        self, grid: tuple[int, ...], values: Sequence[Any], constants: dict[str, Any], device: int
    ) -> _Launch | None:
        """The launch of the version for these arguments; None if it was launched already."""
        return self._compile(grid, constants | dict(zip(self._names, values, strict=False)), device)

    def compiled_for_kinds(
        self, kinds: Sequence[torch.dtype | int], constants: dict[str, Any], device: int
    ) -> driver.Launcher | None:
        """The version for tensors of these types, and for numbers; None if `driver` cannot launch
        it. May be called on several threads."""
        waiting_for(f"compiling the kernel {self.jit.fn.__name__.strip('_')}")
        with torch.cuda.device(device):
            compiled = self.jit.warmup(*kinds, grid=(1,), **constants)
        if not driver.can_launch(compiled, self._others, device):
            return None
        return driver.Launcher(compiled, self._others, device)

    def _compile(
        self, grid: tuple[int, ...], arguments: dict[str, Any], device: int
    ) -> _Launch | None:
        """Compile the kernel for these arguments; None if Triton has to launch it every time."""
        for name in _OPTIONS:
            if arguments.get(name) is None:  # Triton's default
                arguments.pop(name, None)
        on_host = any(isinstance(v, Tensor) and not v.is_cuda for v in arguments.values())
        if on_host or is_observed():  # Triton checks memory and tells profilers
            self.jit[grid](**arguments)
            return None
        waiting_for(f"compiling the kernel {self.jit.fn.__name__.strip('_')}")
        compiled = self.jit.run(grid=grid, warmup=True, **arguments)
        if driver.can_launch(compiled, self._others, device):
            return driver.Launcher(compiled, self._others, device)
        return self._by_triton(compiled, arguments)

    def _by_triton(self, compiled: Any, arguments: dict[str, Any]) -> _Launch:
        """A launch by Triton's own launcher, which ignores the values of constants."""
        constants = {name: arguments[name] for name in self._constants}

        def launch(grid: Sequence[int], stream: int, values: Sequence[int | float]) -> None:
            given = constants | dict(zip(self._others, values, strict=True))
            compiled.run(
                *(*grid, 1, 1)[:3], stream, compiled.function, compiled.packed_metadata,
                None, None, None, *[given[name] for name in self._names],
            )  # fmt: skip

        return launch


class PreparedKernel:
    """A kernel with its constants, for tensors of the same dtypes at every launch.

    Its numbers must be declared as `unspecialised`, and come, like its tensors, before constants.
    """

    def __init__(self, kernel: Kernel, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self.is_direct = kernel.is_direct
        self._compiled: dict[int, _Launch] = {}

    def __call__(self, grid: tuple[int, ...], *arguments: Any) -> None:
        kernel = self._kernel
        if is_tracing() or not kernel.is_direct or is_observed():
            kernel[grid](*arguments, **self._constants)
            return
        values, low_bits = [], 0
        for argument in arguments:
            if type(argument) is not int:
                argument = argument.data_ptr()
                low_bits |= argument
            values.append(argument)
        if low_bits & 15:  # rare; another version of the kernel
            kernel[grid](*arguments, **self._constants)
            return
        device = current_device()
        launch = self._compiled.get(device)
        if launch is None:
            launch = kernel.compiled_for(grid, arguments, self._constants, device)
            if launch is None:
                return
            self._compiled[device] = launch
        launch(grid, raw_stream(device), values)

    def launcher(self, kinds: Sequence[torch.dtype | int], device: int) -> driver.Launcher | None:
        """The launch for tensors of these types; None if `driver` cannot do it."""
        return self._kernel.compiled_for_kinds(kinds, self._constants, device)
