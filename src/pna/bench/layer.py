"""The layer beside PyG's of the same name and weights: time, memory and errors.

    for case in cases("cpu"):
        results = measure_case(case, "cpu")

x, all parameters and the table of edge types need gradients. The Adjacency is made beforehand,
unless a case gives a fresh edge_index at every call. All compute in float32, without TF32.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pna.bench.contenders import (
    BOTH,
    FORCES,
    FORWARD,
    OURS,
    PYG,
    ContenderEntry,
    LayerContender,
    Setup,
    TorchContender,
    call_ours,
    call_pyg,
    chosen,
    difference,
    left_out,
    pyg_layer,
    relative,
)
from pna.bench.layer_cases import (
    Case,
    LayerResult,
    has_pyg,
    inputs,
    layer_arguments,
)
from pna.bench.measure import Log, collect, time_by_name, try_call
from pna.machine import free_memory
from pna.nn import PNAConv

# Bytes of both passes, to predict what fits: PyG takes 7 kB per edge at 128 features.
_PYG_PER_EDGE = 55  # times features and towers
_OURS_PER_NODE, _OURS_PER_EDGE = 100, 64  # the first times features and towers
_USABLE = 0.8  # of the memory that is free

_DRAWS = 9  # of features and weights, on which errors are taken


def measure_case(
    case: Case,
    device: torch.device | str = "cpu",
    seconds: float = 1.0,
    compiled: bool = True,
    peers: bool = False,
    status: Log = print,
    log: Log = print,
) -> list[LayerResult]:
    """All rows of a case: ours, PyG's if it is installed, both compiled if `compiled`, and `peers`.

    What fails, for want of memory for example, becomes a row whose note is the error. `status` is
    called with what is being measured now, `log` with what a reader of the results must know.
    """
    device = torch.device(device)
    case = _fitting(case, device, log)
    if case.errors:
        rows = _errors(case, device, status)
    else:
        for line in left_out(device, case) if peers else ():
            log(line)
        entries = list(chosen(case, device, compiled, peers))
        rows = _compare(case, device, entries, seconds, status)
    return collect(rows, lambda problem: case.result("all", "set-up", note=problem))


def our_step(case: Case, device: torch.device) -> Callable[[], None]:
    """Forward and backward pass of our layer alone, at each call."""
    given = inputs(replace(case, alone=True), device)
    layer = PNAConv(**layer_arguments(case, given.adjacency), std="pyg").to(device)
    return TorchContender(layer, given, call_ours).both


def _compare(
    case: Case, device: torch.device, entries: list[ContenderEntry], seconds: float, status: Log
) -> Iterator[LayerResult]:
    """Time and memory of all contenders, for each kind of work.

    Contenders that fail, or whose results differ from ours, are not timed.
    """
    status(f"{case.name}: making the graph, {case.size}")
    setup = Setup.of(case, device)
    contenders, problems = _checked(case, setup, entries, status)
    works = (FORCES,) if case.forces else (BOTH,) if case.alone else (BOTH, FORWARD)
    for work in works:
        notes = dict(problems)
        steps = {}
        for name, contender in contenders.items():
            status(f"{case.name}: {work}, first call of {name}")
            step, notes[name] = try_call(_called, contender, work)
            if step is not None:
                steps[name] = step
        status(f"{case.name}: {work}, timing {' / '.join(steps)}")
        timings = time_by_name(steps, device, seconds) if steps else {}
        for entry in entries:
            name, values = entry.name, {}
            timing, note = timings.get(name, (None, notes[name]))
            if timing is not None:
                values = timing.in_ms()
                peak, note = try_call(contenders[name].peak_bytes, work)
                if peak is not None:
                    values["mib"] = peak / 2**20
            yield case.result(name, work, **values, note=note)
    if case.alone and has_pyg():
        gib = 2 * 4 * case.edges * case.features * case.towers / 2**30
        note = f"not run: x_i and x_j of all edges side by side take {gib:.3g} GiB at once"
        yield case.result(PYG, BOTH, note=note)


def _checked(
    case: Case, setup: Setup, entries: list[ContenderEntry], status: Log
) -> tuple[dict[str, LayerContender], dict[str, str | None]]:
    """Contenders whose output and gradient agree with ours, and what is wrong with the others."""
    good: dict[str, LayerContender] = {}
    problems: dict[str, str | None] = {}
    expected: tuple[Tensor, Tensor] | None = None
    for entry in entries:
        is_compiled = entry.when in ("compiled", "recorded")
        hint = ", which may compile for a minute" if is_compiled else ""
        status(f"{case.name}: checking {entry.name}{hint}")
        contender, problem = try_call(entry.make, setup)
        if contender is not None:
            got, problem = try_call(contender.output_and_gradient)
            expected = got if entry.name == OURS else expected
            if got is not None and expected is not None:
                problem = difference(got, expected, case.precision)
            if problem is None:
                good[entry.name] = contender
        problems[entry.name] = problem
    return good, problems


def _called(contender: LayerContender, work: str) -> Callable[[], object]:
    """The step of a kind of work, after its first call."""
    step = contender.step(work)
    step()
    return step


def _errors(case: Case, device: torch.device, status: Log) -> Iterator[LayerResult]:
    """Relative errors in norm of the output and of the gradient of x; nothing without PyG.

    They are medians over some draws of features and weights: if two messages differ only in their
    last bits, the gradient of a maximum may go to the other one, which outweighs all rounding.
    """
    if not has_pyg():
        return
    errors: dict[str, list[tuple[float, ...]]] = {OURS: [], PYG: []}
    for draw in range(_DRAWS):
        status(f"{case.name}: draw {draw + 1} of {_DRAWS}, {case.size}")
        given = inputs(case, device, seed=draw)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(draw)
            conv = pyg_layer(case, given)
        exact = TorchContender(copy.deepcopy(conv).double(), given.in_float64(), call_pyg)
        truth = exact.output_and_gradient()
        ours = TorchContender(PNAConv.from_pyg(conv), given, call_ours)
        for name, contender in ((OURS, ours), (PYG, TorchContender(conv, given, call_pyg))):
            got = contender.output_and_gradient()
            errors[name].append(tuple(map(relative, got, truth)))
    for name, drawn in errors.items():
        for what, values in zip(("output", "gradient"), zip(*drawn, strict=True), strict=True):
            yield case.result(name, f"error of {what}", error=statistics.median(values))


def _fitting(case: Case, device: torch.device, log: Log) -> Case:
    """The case, halved until it fits in memory."""
    usable = _USABLE * free_memory(device)
    fits = case
    while _need(fits) > usable and fits.nodes > 1:
        fits = replace(fits, nodes=fits.nodes // 2, edges=fits.edges // 2)
    if fits != case:
        log(
            f"{case.name}: {case.size} need about {_need(case) / 2**30:.1f} GiB, of which there "
            f"are {usable / 2**30:.1f} to use; measured instead: {fits.size}"
        )
    return fits


def _need(case: Case) -> int:
    """Estimate of the bytes that the largest contender needs for both passes."""
    width = case.features * case.towers
    ours = _OURS_PER_NODE * case.nodes * width + _OURS_PER_EDGE * case.edges
    if case.alone or not has_pyg():
        return ours
    times = 3 if case.errors else 2 if case.forces else 1  # in float64 too, with float32 beside it
    return max(ours, times * _PYG_PER_EDGE * case.edges * width)
