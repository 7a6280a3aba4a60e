"""The cases of `pna bench layer`: random graphs, the layer's arguments, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.bench.measure import check_device

AGGREGATORS = ["mean", "std", "max", "min"]
SCALERS = ["identity", "amplification", "attenuation"]
EDGE_DIM = 50  # width in which edge types are embedded

INSTALL_PYG = "PyG not found, so pna is measured alone: pip install 'pna[pyg]'"


Precision = Literal["float32", "bfloat16", "autocast"]


@dataclass(frozen=True)
class Case:
    """A random graph, and a layer as wide at its output as at its input."""

    name: str
    nodes: int
    edges: int
    features: int
    towers: int = 1  # undivided
    edge_types: int = 0  # embedded in EDGE_DIM; 0: edges without types
    edge_dim: int = 0  # features of every edge, which need no gradient; 0: none
    compiled: bool = False  # both layers under torch.compile as well
    recorded: bool = False  # and with mode="reduce-overhead", on a GPU
    fresh: bool = False  # a new edge_index at every call, as a DataLoader gives it
    alone: bool = False  # PyG needs more memory than there is
    forces: bool = False  # a training step on forces, instead of the passes
    errors: bool = False  # against PyG's layer in float64, instead of time and memory
    power_law: bool = False  # few receivers have most of the edges
    precision: Precision = "float32"  # of x and the weights; or autocast, to bfloat16

    @property
    def size(self) -> str:
        towers = f", {self.towers} towers" if self.towers > 1 else ""
        types = f", {self.edge_types} edge types" if self.edge_types else ""
        types += f", {self.edge_dim} edge features" if self.edge_dim else ""
        fresh = ", fresh edge_index" if self.fresh else ""
        fresh += ", power law" if self.power_law else ""
        fresh += f", {self.precision}" if self.precision != "float32" else ""
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
    Case("molecules", 3_000, 6_500, 64, compiled=True, recorded=True),
    Case("molecules, fresh edges", 3_000, 6_500, 64, compiled=True, recorded=True, fresh=True),
    Case("molecule, fresh edges", 24, 52, 64, fresh=True),
    Case("bond features, fresh edges", 3_000, 6_500, 64, edge_dim=8, fresh=True),
)
#: Widths, degrees and edges other than those of "layer", and its numbers of fewer bits.
SHAPES = (
    Case("200 features", 50_000, 500_000, 200),
    Case("96 features, power law", 100_000, 800_000, 96, power_law=True),
    Case("32 features", 200_000, 2_000_000, 32),
    Case("bfloat16", 100_000, 1_600_000, 128, precision="bfloat16"),
    Case("autocast", 100_000, 1_600_000, 128, precision="autocast"),
    Case("wide edges", 100_000, 1_000_000, 64, edge_dim=64),
)
#: Energies whose edge features are functions of the positions.
FORCES = (
    Case("forces of molecules", 3_000, 6_500, 64, edge_dim=16, forces=True),
    Case("forces", 10_000, 100_000, 64, edge_dim=16, forces=True),
)
CASES = {
    "cuda": (
        Case("layer", 100_000, 1_600_000, 128, compiled=True),
        Case("many edges", 200_000, 10_000_000, 128),
        Case("towers", 100_000, 1_000_000, 75, towers=5, edge_types=4),
        Case("large", 1_000_000, 100_000_000, 128, alone=True),
        *SHAPES,
        *MOLECULES,
        *FORCES,
        Case("errors", 2_000, 32_000, 128, errors=True),
    ),
    "cpu": (
        Case("layer", 10_000, 100_000, 64, compiled=True),
        Case("many edges", 20_000, 320_000, 128),
        Case("wide edges", 10_000, 100_000, 64, edge_dim=64),
        *MOLECULES,
        *FORCES,
        Case("errors", 2_000, 32_000, 128, errors=True),
    ),
}
#: One of each kind, on any device, under names of their own: no result of these replaces another.
SMALL = (
    Case("small layer", 200, 2_000, 16, compiled=True, recorded=True),
    Case("small towers", 100, 1_000, 15, towers=5, edge_types=4),
    Case("small wide edges", 100, 1_000, 16, edge_dim=20),
    Case("small fresh", 200, 2_000, 16, fresh=True),
    Case("small power law", 200, 2_000, 16, power_law=True),
    Case("small bfloat16", 200, 2_000, 16, precision="bfloat16"),
    Case("small autocast", 200, 2_000, 16, precision="autocast"),
    Case("small forces", 100, 1_000, 16, edge_dim=4, forces=True),
    Case("small alone", 200, 2_000, 16, alone=True),
    Case("small errors", 200, 2_000, 16, errors=True),
)


def cases(device: torch.device | str, small: bool = False) -> tuple[Case, ...]:
    """Cases that are measured on a device."""
    kind = check_device(device)
    return SMALL if small else CASES[kind]


def has_pyg() -> bool:
    return find_spec("torch_geometric") is not None


@dataclass(frozen=True)
class Inputs:
    """Inputs of all contenders. Ours takes the Adjacency, PyG the edge_index."""

    edge_index: Tensor | None  # None where PyG is not run
    adjacency: Adjacency
    x: Tensor
    table: Tensor | None  # of edge types
    types: Tensor | None
    edge_attr: Tensor | None
    position: Tensor | None  # (nodes, 3), if edge features are a function of it
    upstream: Tensor  # the gradient of the result
    fresh: bool  # whether a call gets a new edge_index
    autocast: bool  # whether the layer is called under autocast, to bfloat16

    def edges(self, ours: bool) -> Tensor | Adjacency:
        """The edges for one call."""
        if self.fresh:
            assert self.edge_index is not None
            return self.edge_index.clone()
        return self.adjacency if ours or self.edge_index is None else self.edge_index

    def moved(self) -> Inputs:
        """The same with edge features that are recorded as a function of the positions."""
        assert self.position is not None and self.edge_index is not None
        assert self.edge_attr is not None
        senders, receivers = self.edge_index
        apart = (self.position[senders] - self.position[receivers]).square().sum(1, keepdim=True)
        centres = torch.linspace(0, 4, self.edge_attr.shape[1], device=apart.device)
        return replace(self, edge_attr=torch.exp(-((apart - centres) ** 2)))

    def in_float64(self) -> Inputs:
        table = None if self.table is None else self.table.detach().double().requires_grad_()
        x = self.x.detach().double().requires_grad_()
        edge_attr = None if self.edge_attr is None else self.edge_attr.double()
        upstream = self.upstream.double()
        return replace(self, x=x, table=table, edge_attr=edge_attr, upstream=upstream)


def inputs(case: Case, device: torch.device, seed: int = 1) -> Inputs:
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=random)

    edges = uniform_edges(case.nodes, case.edges, device)
    if case.power_law:
        edges = torch.stack([edges[0], _receivers_of_a_power_law(case, device)])
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    table = types = None
    if case.edge_types:
        table = normal(case.edge_types, EDGE_DIM).requires_grad_()
        types = torch.randint(case.edge_types, (case.edges,), device=device, generator=random)
    return Inputs(
        edge_index=None if case.alone and not case.fresh else edges.long(),
        adjacency=Adjacency.from_edge_index(edges, case.nodes),
        x=normal(case.nodes, case.features).to(dtype).requires_grad_(),
        table=table,
        types=types,
        edge_attr=normal(case.edges, case.edge_dim) if case.edge_dim else None,
        position=normal(case.nodes, 3).requires_grad_() if case.forces else None,
        upstream=normal(case.nodes, case.features).to(dtype),
        fresh=case.fresh,
        autocast=case.precision == "autocast",
    )


def _receivers_of_a_power_law(case: Case, device: torch.device | str) -> Tensor:
    """Receivers of all edges, in int32. The probability of node i falls as 1 / √(i + 1)."""
    random = torch.Generator(device).manual_seed(2)
    share = torch.rand(case.edges, device=device, generator=random, dtype=torch.float64)
    return (share.square() * case.nodes).int()  # the inverse of the distribution function


def uniform_edges(num_nodes: int, num_edges: int, device: torch.device | str) -> Tensor:
    """An edge_index whose senders and receivers are drawn from all nodes alike, in int32."""
    random = torch.Generator(device).manual_seed(0)
    shape = (2, num_edges)
    return torch.randint(num_nodes, shape, device=device, generator=random, dtype=torch.int32)


def layer_arguments(case: Case, adjacency: Adjacency) -> dict[str, Any]:
    """Arguments of ours and of PyG's layer."""
    return {
        "in_channels": case.features,
        "out_channels": case.features,
        "aggregators": AGGREGATORS,
        "scalers": SCALERS,
        "deg": torch.bincount(adjacency.degree.cpu()),
        "edge_dim": EDGE_DIM if case.edge_types else case.edge_dim or None,
        "towers": case.towers,
    }
