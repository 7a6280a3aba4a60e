"""The layer beside PyG's of the same name and weights: time, memory and errors.

    for case in cases("cpu"):
        results = measure_case(case, "cpu")

x, all parameters and the table of edge types need gradients. The Adjacency is made beforehand,
unless a case gives a fresh edge_index at every call.
Both sides compute in float32, without TF32.
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.bench.measure import Log, check_device, collect, peak_memory, time_by_name, try_call
from pna.nn import PNAConv

AGGREGATORS = ["mean", "std", "max", "min"]
SCALERS = ["identity", "amplification", "attenuation"]
EDGE_DIM = 50  # width in which edge types are embedded

BOTH, FORWARD = "forward+backward", "forward"
OURS, PYG, COMPILED = "pna", "PyG", "PyG, compiled"

INSTALL_PYG = "PyG not found, so pna is measured alone: pip install 'pna[pyg]'"

# Bytes of both passes, to predict what fits: PyG takes 7 kB per edge at 128 features.
_PYG_PER_EDGE = 55  # times features and towers
_OURS_PER_NODE, _OURS_PER_EDGE = 100, 64  # the first times features and towers
_USABLE = 0.8  # of the memory that is free

_DRAWS = 9  # of features and weights, on which errors are taken


@dataclass(frozen=True)
class Case:
    """A random graph, and a layer as wide at its output as at its input."""

    name: str
    nodes: int
    edges: int
    features: int
    towers: int = 1  # undivided
    edge_types: int = 0  # embedded in EDGE_DIM; 0: edges without features
    compiled: bool = False  # beside PyG's layer under torch.compile as well
    fresh: bool = False  # a new edge_index at every call, as a DataLoader gives it
    alone: bool = False  # PyG needs more memory than there is
    errors: bool = False  # against PyG's layer in float64, instead of time and memory

    @property
    def size(self) -> str:
        towers = f", {self.towers} towers" if self.towers > 1 else ""
        types = f", {self.edge_types} edge types" if self.edge_types else ""
        fresh = ", fresh edge_index" if self.fresh else ""
        sizes = f"{self.nodes:,} nodes, {self.edges:,} edges, F = {self.features}"
        return f"{sizes}{towers}{types}{fresh}"

    def result(self, contender: str, work: str, **values: Any) -> LayerResult:
        sizes = (self.nodes, self.edges, self.features, self.towers)
        return LayerResult(self.name, contender, work, *sizes, **values)


@dataclass(frozen=True)
class LayerResult:
    """One row; times in milliseconds, memory in MiB, None where not measured: `note` says why."""

    case: str
    contender: str
    work: str
    nodes: int
    edges: int
    features: int
    towers: int
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    mib: float | None = None
    error: float | None = None
    note: str | None = None


#: A batch of 128 molecules, and one alone.
MOLECULES = (
    Case("molecules", 3_000, 6_500, 64),
    Case("molecules, fresh edges", 3_000, 6_500, 64, fresh=True),
    Case("molecule, fresh edges", 24, 52, 64, fresh=True),
)
CASES = {
    "cuda": (
        Case("layer", 100_000, 1_600_000, 128, compiled=True),
        Case("many edges", 200_000, 10_000_000, 128),
        Case("towers", 100_000, 1_000_000, 75, towers=5, edge_types=4),
        Case("large", 1_000_000, 100_000_000, 128, alone=True),
        *MOLECULES,
        Case("errors", 2_000, 32_000, 128, errors=True),
    ),
    "cpu": (
        Case("layer", 10_000, 100_000, 64, compiled=True),
        Case("many edges", 20_000, 320_000, 128),
        *MOLECULES,
        Case("errors", 2_000, 32_000, 128, errors=True),
    ),
}
#: One of each kind, on any device, under names of their own: no result of these replaces another.
SMALL = (
    Case("small layer", 200, 2_000, 16, compiled=True),
    Case("small towers", 100, 1_000, 15, towers=5, edge_types=4),
    Case("small fresh", 200, 2_000, 16, fresh=True),
    Case("small alone", 200, 2_000, 16, alone=True),
    Case("small errors", 200, 2_000, 16, errors=True),
)


def cases(device: torch.device | str, small: bool = False) -> tuple[Case, ...]:
    """Cases that are measured on a device."""
    kind = check_device(device)
    return SMALL if small else CASES[kind]


def has_pyg() -> bool:
    return find_spec("torch_geometric") is not None


def measure_case(
    case: Case,
    device: torch.device | str = "cpu",
    seconds: float = 1.0,
    compiled: bool = True,
    status: Log = print,
    log: Log = print,
) -> list[LayerResult]:
    """All rows of a case: ours, PyG's if it is installed, and, if `compiled`, PyG's compiled.

    What fails, for want of memory for example, becomes a row whose note is the error. `status` is
    called with what is being measured now, `log` with what a reader of the results must know.
    """
    device = torch.device(device)
    case = _fitting(case, device, log)
    if case.errors:
        rows = _errors(case, device, status)
    else:
        rows = _compare(case, device, seconds, compiled, status)
    return collect(rows, lambda problem: case.result("all", "set-up", note=problem))


def free_memory(device: torch.device) -> int:
    """Bytes free on a GPU; half of what a machine has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def our_step(case: Case, device: torch.device) -> Callable[[], None]:
    """Forward and backward pass of our layer alone, at each call."""
    given = _inputs(replace(case, alone=True), device)
    layer = PNAConv(**_arguments(case, given.adjacency), std="pyg").to(device)
    return _Contender(OURS, layer, given).both


@dataclass(frozen=True)
class _Inputs:
    """Inputs of both layers: PyG takes the edge_index, ours the Adjacency."""

    edge_index: Tensor | None  # None where PyG is not run
    adjacency: Adjacency
    x: Tensor
    table: Tensor | None  # of edge types
    types: Tensor | None
    upstream: Tensor  # the gradient of the result
    fresh: bool  # whether a call gets a new edge_index

    def edges(self, ours: bool) -> Tensor | Adjacency:
        """The edges for one call."""
        if self.fresh:
            assert self.edge_index is not None
            return self.edge_index.clone()
        return self.adjacency if ours or self.edge_index is None else self.edge_index


@dataclass(frozen=True)
class _Contender:
    name: str
    layer: nn.Module
    given: _Inputs

    @property
    def leaves(self) -> list[Tensor]:
        """All that need gradients."""
        table = [] if self.given.table is None else [self.given.table]
        return [self.given.x, *table, *self.layer.parameters()]

    @property
    def extra_bytes(self) -> int:
        """Bytes of what was made beforehand for this one only."""
        made = self.name == OURS and not self.given.fresh
        return _bytes(self.given.adjacency) if made else 0

    def forward(self) -> Tensor:
        return (_call_ours if self.name == OURS else _call_pyg)(self.layer, self.given)

    def both(self) -> None:
        """A training step but for the optimizer; no gradient is left behind."""
        try:
            self.forward().backward(self.given.upstream)
        finally:
            for leaf in self.leaves:
                leaf.grad = None

    def step(self, work: str) -> Callable[[], Any]:
        return self.both if work == BOTH else self.forward

    def output_and_gradient(self) -> tuple[Tensor, Tensor]:
        output = self.forward()
        (gradient,) = torch.autograd.grad(output, self.given.x, self.given.upstream)
        return output.detach(), gradient


def _compare(
    case: Case, device: torch.device, seconds: float, compiled: bool, status: Log
) -> Iterator[LayerResult]:
    """Time and memory of all contenders, for each kind of work."""
    status(f"{case.name}: making the graph, {case.size}")
    contenders = _contenders(case, device, compiled)
    for work in (BOTH,) if case.alone else (BOTH, FORWARD):
        notes: dict[str, str | None] = {}
        for contender in contenders:
            hint = ", which may compile for a minute" if contender.name == COMPILED else ""
            status(f"{case.name}: {work}, first call of {contender.name}{hint}")
            _, notes[contender.name] = try_call(contender.step(work))
        steps = {c.name: c.step(work) for c in contenders if notes[c.name] is None}
        status(f"{case.name}: {work}, timing {' / '.join(steps)}")
        timings = time_by_name(steps, device, seconds) if steps else {}
        for contender in contenders:
            name, values = contender.name, {}
            timing, note = timings.get(name, (None, notes[name]))
            if timing is not None:
                values = timing.in_ms()
                peak, note = try_call(peak_memory, steps[name], device)
                if peak is not None:
                    values["mib"] = (peak + contender.extra_bytes) / 2**20
            yield case.result(name, work, **values, note=note)
    if case.alone and has_pyg():
        gib = 2 * 4 * case.edges * case.features * case.towers / 2**30
        note = f"not run: x_i and x_j of all edges side by side take {gib:.3g} GiB at once"
        yield case.result(PYG, BOTH, note=note)


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
        given = _inputs(case, device, seed=draw)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(draw)
            conv = _pyg_layer(case, given.adjacency)
        exact = _in_float64(given)
        truth = _Contender(PYG, copy.deepcopy(conv).double(), exact).output_and_gradient()
        for name, layer in ((OURS, PNAConv.from_pyg(conv)), (PYG, conv)):
            got = _Contender(name, layer, given).output_and_gradient()
            errors[name].append(tuple(map(_relative, got, truth)))
    for name, drawn in errors.items():
        for what, values in zip(("output", "gradient"), zip(*drawn, strict=True), strict=True):
            yield case.result(name, f"error of {what}", error=statistics.median(values))


def _contenders(case: Case, device: torch.device, compiled: bool) -> list[_Contender]:
    given = _inputs(case, device)
    if not has_pyg():
        ours = PNAConv(**_arguments(case, given.adjacency), std="pyg").to(device)
        return [_Contender(OURS, ours, given)]
    pyg = _pyg_layer(case, given.adjacency)
    layers: dict[str, Any] = {OURS: PNAConv.from_pyg(pyg)}
    if not case.alone:
        layers[PYG] = pyg
    if case.compiled and compiled:
        layers[COMPILED] = torch.compile(pyg)
    return [_Contender(name, layer, given) for name, layer in layers.items()]


def _inputs(case: Case, device: torch.device, seed: int = 1) -> _Inputs:
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=random)

    edges = uniform_edges(case.nodes, case.edges, device)
    table = types = None
    if case.edge_types:
        table = normal(case.edge_types, EDGE_DIM).requires_grad_()
        types = torch.randint(case.edge_types, (case.edges,), device=device, generator=random)
    return _Inputs(
        edge_index=None if case.alone and not case.fresh else edges.long(),
        adjacency=Adjacency.from_edge_index(edges, case.nodes),
        x=normal(case.nodes, case.features).requires_grad_(),
        table=table,
        types=types,
        upstream=normal(case.nodes, case.features),
        fresh=case.fresh,
    )


def uniform_edges(num_nodes: int, num_edges: int, device: torch.device | str) -> Tensor:
    """An edge_index whose senders and receivers are drawn from all nodes alike, in int32."""
    random = torch.Generator(device).manual_seed(0)
    shape = (2, num_edges)
    return torch.randint(num_nodes, shape, device=device, generator=random, dtype=torch.int32)


def _in_float64(given: _Inputs) -> _Inputs:
    return replace(
        given,
        x=given.x.detach().double().requires_grad_(),
        table=None if given.table is None else given.table.detach().double().requires_grad_(),
        upstream=given.upstream.double(),
    )


def _arguments(case: Case, adjacency: Adjacency) -> dict[str, Any]:
    """Arguments of both layers."""
    return {
        "in_channels": case.features,
        "out_channels": case.features,
        "aggregators": AGGREGATORS,
        "scalers": SCALERS,
        "deg": torch.bincount(adjacency.degree.cpu()),
        "edge_dim": EDGE_DIM if case.edge_types else None,
        "towers": case.towers,
    }


def _pyg_layer(case: Case, adjacency: Adjacency) -> nn.Module:
    from torch_geometric.nn import PNAConv as PyGConv

    return PyGConv(**_arguments(case, adjacency)).to(adjacency.device)


def _call_ours(layer: Callable[..., Tensor], given: _Inputs) -> Tensor:
    if given.table is None:
        return layer(given.x, given.edges(ours=True))
    return layer(given.x, given.edges(ours=True), (given.table, given.types))


def _call_pyg(layer: Callable[..., Tensor], given: _Inputs) -> Tensor:
    if given.table is None:
        return layer(given.x, given.edges(ours=False))
    return layer(given.x, given.edges(ours=False), given.table[given.types])


def _relative(got: Tensor, true: Tensor) -> float:
    return float((got.double() - true).norm() / true.norm())


def _bytes(value: Any) -> int:
    """Memory of a dataclass of tensors, in bytes."""
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(_bytes(getattr(value, field.name)) for field in fields(value))


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
    times = 3 if case.errors else 1  # in float64 too, with float32 beside it
    return max(ours, times * _PYG_PER_EDGE * case.edges * width)
