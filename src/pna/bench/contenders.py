"""Who takes part in `pna bench layer`: a table of implementations of one layer, with equal weights.

    setup = Setup.of(case, device)
    contenders = [entry.make(setup) for entry in chosen(case, device, compiled=True, peers=True)]

A new entry says when it is measured, what it needs, which cases it cannot run, and how it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from pna.bench import peers
from pna.bench.layer_cases import Case, Inputs, Precision, has_pyg, inputs, layer_arguments
from pna.bench.measure import peak_memory
from pna.nn import PNAConv

BOTH, FORWARD, FORCES = "forward+backward", "forward", "training on forces"

OURS, PYG, SCATTER = "pna", "PyG", "PyG with torch-scatter"
OURS_COMPILED, PYG_COMPILED = "pna, compiled", "PyG, compiled"
OURS_RECORDED, PYG_RECORDED = "pna, reduce-overhead", "PyG, reduce-overhead"
JAX, SPARSE, CUDNN = "JAX segment operations", "torch.sparse.mm", "cuDNN agg_simple"

#: Largest differences of output and gradient from our layer in norm, relative. The gradient of a
#: maximum may go to another edge where two messages differ only in their last bits. PyG's variance
#: of bfloat16 numbers is a difference of two rounded ones.
_DIFFERS = {"float32": (1e-4, 1e-2), "bfloat16": (0.1, 0.5), "autocast": (0.1, 0.5)}


class LayerContender(Protocol):
    """An implementation with its inputs, ready to be called."""

    def step(self, work: str) -> Callable[[], Any]:
        """The call that is timed: of both passes, of the forward pass, or a step on forces."""

    def output_and_gradient(self) -> tuple[Tensor, Tensor]:
        """The output, and the gradient of x."""

    def peak_bytes(self, work: str) -> int | None:
        """The most memory of a call, with all that was made beforehand for this contender alone.

        None if it keeps its memory between calls, as recorded CUDA graphs do."""


@dataclass(frozen=True)
class Setup:
    """A case with inputs and weights: our layer, and PyG's if it is installed."""

    case: Case
    given: Inputs
    ours: PNAConv
    pyg: nn.Module | None

    @staticmethod
    def of(case: Case, device: torch.device) -> Setup:
        given = inputs(case, device)
        if not has_pyg():
            ours = PNAConv(**layer_arguments(case, given.adjacency), std="pyg").to(given.x)
            return Setup(case, given, ours, None)
        pyg = pyg_layer(case, given)
        return Setup(case, given, PNAConv.from_pyg(pyg), pyg)


@dataclass(frozen=True)
class ContenderEntry:
    """A row of the table of contenders."""

    name: str
    when: Literal["always", "compiled", "recorded", "peers"]  # flags of a case, or the option
    missing: Callable[[torch.device], str | None]  # what must be installed; None if nothing
    unfit: Callable[[Case], str | None]  # why it cannot run a case; None if it can
    make: Callable[[Setup], LayerContender]


@dataclass(frozen=True)
class TorchContender:
    """A torch module. `call` applies it to the inputs."""

    layer: nn.Module
    given: Inputs
    call: Callable[[nn.Module, Inputs], Tensor]
    made: Any = None  # a dataclass of tensors made beforehand
    keeps_memory: bool = False  # between calls

    @property
    def leaves(self) -> list[Tensor]:
        """All that need gradients."""
        inputs = (self.given.x, self.given.table, self.given.position)
        return [*[leaf for leaf in inputs if leaf is not None], *self.layer.parameters()]

    def forward(self) -> Tensor:
        if not self.given.autocast:
            return self.call(self.layer, self.given)
        with torch.autocast(self.given.x.device.type, torch.bfloat16):
            return self.call(self.layer, self.given)

    def both(self) -> None:
        """A training step but for the optimizer; no gradient is left behind."""
        try:
            out = self.forward()
            out.backward(self.given.upstream.to(out.dtype))
        finally:
            for leaf in self.leaves:
                leaf.grad = None

    def forces(self) -> None:
        """A training step but for the optimizer, whose loss is a function of −∂E/∂position."""
        position = self.given.position
        assert position is not None
        energy = (self.call(self.layer, self.given.moved()) * self.given.upstream).sum()
        try:
            (slope,) = torch.autograd.grad(energy, position, create_graph=True)
            slope.square().sum().backward()
        finally:
            for leaf in self.leaves:
                leaf.grad = None

    def step(self, work: str) -> Callable[[], Any]:
        return {BOTH: self.both, FORWARD: self.forward, FORCES: self.forces}[work]

    def output_and_gradient(self) -> tuple[Tensor, Tensor]:
        output = self.forward()
        upstream = self.given.upstream.to(output.dtype)
        (gradient,) = torch.autograd.grad(output, self.given.x, upstream)
        return output.detach(), gradient

    def peak_bytes(self, work: str) -> int | None:
        if self.keeps_memory:
            return None
        return peak_memory(self.step(work), self.given.x.device) + bytes_of(self.made)


def chosen(
    case: Case, device: torch.device, compiled: bool, peers: bool
) -> Iterator[ContenderEntry]:
    """Entries that are measured in a case."""
    wanted = {"always": True, "peers": peers}
    wanted |= {"compiled": compiled and case.compiled, "recorded": compiled and case.recorded}
    for entry in CONTENDERS:
        if wanted[entry.when] and entry.missing(device) is None and entry.unfit(case) is None:
            yield entry


def left_out(device: torch.device | str, case: Case | None = None) -> Iterator[str]:
    """A line for each peer that is not measured on a device, or not in a case, and why."""
    device = torch.device(device)
    for entry in CONTENDERS:
        missing = entry.missing(device)
        reason = missing if case is None else entry.unfit(case) if missing is None else None
        if entry.when == "peers" and reason is not None:
            yield f"{entry.name} is left out{'' if case is None else f' of {case.name}'}: {reason}"


def difference(
    got: tuple[Tensor, Tensor], ours: tuple[Tensor, Tensor], precision: Precision = "float32"
) -> str | None:
    """What differs from our output and gradient by more than rounding; None if nothing does."""
    for name, limit, a, b in zip(
        ("output", "gradient"), _DIFFERS[precision], got, ours, strict=True
    ):
        found = relative(a, b)
        if not found <= limit:
            return f"not timed: its {name} differs from ours by {found:.1e}, at most {limit:.0e}"
    return None


def relative(got: Tensor, true: Tensor) -> float:
    return float((got.double() - true).norm() / true.norm())


def pyg_layer(case: Case, given: Inputs) -> nn.Module:
    from torch_geometric.nn import PNAConv as PyGConv

    return PyGConv(**layer_arguments(case, given.adjacency)).to(given.x)


def call_ours(layer: Callable[..., Tensor], given: Inputs) -> Tensor:
    if given.table is None:
        return layer(given.x, given.edges(ours=True), given.edge_attr)
    return layer(given.x, given.edges(ours=True), (given.table, given.types))


def call_pyg(layer: Callable[..., Tensor], given: Inputs) -> Tensor:
    """PyG with the operators of torch alone, whether torch-scatter is installed or not."""
    with _torch_scatter(False):
        return _call_pyg(layer, given)


def call_scatter(layer: Callable[..., Tensor], given: Inputs) -> Tensor:
    with _torch_scatter(True):
        return _call_pyg(layer, given)


def _call_pyg(layer: Callable[..., Tensor], given: Inputs) -> Tensor:
    if given.table is None:
        return layer(given.x, given.edges(ours=False), given.edge_attr)
    return layer(given.x, given.edges(ours=False), given.table[given.types])


@contextmanager
def _torch_scatter(used: bool) -> Iterator[None]:
    """Whether PyG calls torch-scatter: its functions read this flag at every call."""
    from torch_geometric import typing

    before = typing.WITH_TORCH_SCATTER
    typing.WITH_TORCH_SCATTER = used
    try:
        yield
    finally:
        typing.WITH_TORCH_SCATTER = before


def _recorded(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A call of a layer that is replayed as a CUDA graph, each the first of a new step."""

    def marked(layer: Callable[..., Tensor], given: Inputs) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return call(layer, given)

    return marked


def _ours(setup: Setup) -> LayerContender:
    made = None if setup.given.fresh else setup.given.adjacency
    return TorchContender(setup.ours, setup.given, call_ours, made)


def _ours_compiled(setup: Setup) -> LayerContender:
    made = None if setup.given.fresh else setup.given.adjacency
    compiled: Any = torch.compile(setup.ours)
    return TorchContender(compiled, setup.given, call_ours, made)


def _ours_recorded(setup: Setup) -> LayerContender:
    compiled: Any = torch.compile(setup.ours, mode="reduce-overhead")
    return TorchContender(compiled, setup.given, _recorded(call_ours), keeps_memory=True)


def _pyg(setup: Setup) -> LayerContender:
    assert setup.pyg is not None
    return TorchContender(setup.pyg, setup.given, call_pyg)


def _pyg_scatter(setup: Setup) -> LayerContender:
    assert setup.pyg is not None
    return TorchContender(setup.pyg, setup.given, call_scatter)


def _pyg_compiled(setup: Setup) -> LayerContender:
    assert setup.pyg is not None
    compiled: Any = torch.compile(setup.pyg)
    return TorchContender(compiled, setup.given, call_pyg)


def _pyg_recorded(setup: Setup) -> LayerContender:
    assert setup.pyg is not None
    compiled: Any = torch.compile(setup.pyg, mode="reduce-overhead")
    return TorchContender(compiled, setup.given, _recorded(call_pyg), keeps_memory=True)


def _jax(setup: Setup) -> LayerContender:
    return peers.JaxContender(setup.case, setup.given, setup.ours)


def _sparse(setup: Setup) -> LayerContender:
    layer = peers.ReducedLayer(setup.ours)
    made = None if setup.given.fresh else peers.csr_of(setup.given)
    call = peers.with_reductions(peers.SparseReductions, made)
    return TorchContender(layer, setup.given, call, made)


def _cudnn(setup: Setup) -> LayerContender:
    layer = peers.ReducedLayer(setup.ours)
    made = None if setup.given.fresh else peers.csr_of(setup.given)
    call = peers.with_reductions(peers.CudnnReductions, made)
    return TorchContender(layer, setup.given, call, made)


def _nothing(_: Any) -> None:
    return None


def _needs_pyg(device: torch.device) -> str | None:
    return None if has_pyg() else "PyG is not installed: pip install 'pna[pyg]'"


def _needs_pyg_and_gpu(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "it replays CUDA graphs, and this is no GPU"
    return _needs_pyg(device)


def _needs_gpu(device: torch.device) -> str | None:
    return None if device.type == "cuda" else "it replays CUDA graphs, and this is no GPU"


def _needs_scatter(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "PyG calls torch-scatter on a GPU only"
    if find_spec("torch_scatter") is None:
        return "torch-scatter is not installed: pip install torch-scatter"
    return _needs_pyg(device)


def _no_messages(case: Case) -> str | None:
    return "it makes all messages, which do not fit in memory" if case.alone else None


def _no_edge_types(case: Case) -> str | None:
    has_edges = case.edge_types or case.edge_dim
    return "it reduces features of senders, not of edges" if has_edges else None


def _no_edge_features(case: Case) -> str | None:
    if case.edge_dim:
        return "it is written for edge types, not for features of every edge"
    return _no_messages(case)


def bytes_of(value: Any) -> int:
    """Memory of a tensor, or of the tensors in a dataclass, in bytes; 0 of anything else."""
    if isinstance(value, Tensor):
        return value.nbytes
    if not is_dataclass(value):
        return 0
    return sum(bytes_of(getattr(value, field.name)) for field in fields(value))


#: In the order of results.
CONTENDERS = (
    ContenderEntry(OURS, "always", _nothing, _nothing, _ours),
    ContenderEntry(PYG, "always", _needs_pyg, _no_messages, _pyg),
    ContenderEntry(OURS_COMPILED, "compiled", _nothing, _nothing, _ours_compiled),
    ContenderEntry(PYG_COMPILED, "compiled", _needs_pyg, _no_messages, _pyg_compiled),
    ContenderEntry(OURS_RECORDED, "recorded", _needs_gpu, _nothing, _ours_recorded),
    ContenderEntry(PYG_RECORDED, "recorded", _needs_pyg_and_gpu, _no_messages, _pyg_recorded),
    ContenderEntry(SCATTER, "peers", _needs_scatter, _no_messages, _pyg_scatter),
    ContenderEntry(JAX, "peers", peers.missing_jax, _no_edge_features, _jax),
    ContenderEntry(SPARSE, "peers", peers.missing_sparse, _no_edge_types, _sparse),
    ContenderEntry(CUDNN, "peers", peers.missing_cudnn, _no_edge_types, _cudnn),
)
