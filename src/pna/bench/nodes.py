"""Training steps on the nodes of one large graph, beside the same model made of PyG's layers.

    for case in cases("cpu"):
        results = measure_case(case, "cpu")

A step is a batch, a forward and a backward pass, and Adam. A sampled step includes the sampling.
All compute in float32, without TF32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.bench.contenders import OURS, PYG, bytes_of
from pna.bench.layer_cases import AGGREGATORS, SCALERS, LayerResult, has_pyg
from pna.bench.measure import Log, check_device, collect, peak_memory, time_by_name, try_call
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.neighbours import NeighbourBatches
from pna.data.node_benchmarks import node_benchmark
from pna.nn import PNAConv

LOADER = "PyG with NeighborLoader"
_POWER = 1.5  # of uniform numbers, for ends of edges with degrees of a power law


@dataclass(frozen=True)
class NodeCase:
    """A graph, and a model of some layers that classifies its nodes."""

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    hidden: int
    layers: int = 3
    known: float = 0.08  # share of the nodes to train on
    sample: tuple[int, ...] = ()  # fan-outs; none for a full batch
    seeds: int = 1024  # of a sampled batch
    alone: bool = False  # PyG needs more memory than there is
    data: str = ""  # name of a real graph; its own sizes count

    @property
    def steps(self) -> int:
        """Steps that are timed together: in a loop, a batch is sampled during the step before."""
        return 8 if self.sample else 1

    @property
    def work(self) -> str:
        fan_out = ",".join(map(str, self.sample))
        return f"{self.seeds:,} seeds, {fan_out}" if self.sample else "full batch"

    def result(self, contender: str, **values: Any) -> LayerResult:
        sizes = (self.nodes, self.edges, self.hidden, 1)
        return LayerResult(self.name, contender, self.work, *sizes, **values)


#: A random graph of the size of ogbn-products.
_PRODUCTS = NodeCase("products", 2_450_000, 124_000_000, 100, 47, hidden=128)
_SMALL = NodeCase("small nodes", 300, 2_000, 4, 3, hidden=8, known=0.5)
CASES: dict[str, tuple[NodeCase, ...]] = {
    "cuda": (
        replace(_PRODUCTS, alone=True),
        replace(_PRODUCTS, name="products, sampled", sample=(15, 10, 5)),
    ),
    "cpu": (NodeCase("tolokers", 11_758, 1_038_000, 10, 2, hidden=64, data="tolokers"),),
}
SMALL = (_SMALL, replace(_SMALL, name="small nodes, sampled", sample=(3, 2, 2), seeds=20))


def cases(device: torch.device | str, small: bool = False) -> tuple[NodeCase, ...]:
    """Cases that are measured on a device."""
    kind = check_device(device)
    return SMALL if small else CASES[kind]


def measure_case(
    case: NodeCase,
    device: torch.device | str = "cpu",
    seconds: float = 1.0,
    status: Log = lambda words: None,
) -> list[LayerResult]:
    """A row for each contender: time and memory of a step."""
    rows = _rows(case, torch.device(device), seconds, status)
    return collect(rows, lambda problem: case.result(OURS, note=problem))


def _rows(
    case: NodeCase, device: torch.device, seconds: float, status: Log
) -> Iterator[LayerResult]:
    status(f"{case.name}: making the graph")
    graphs = _real_graph(case.data) if case.data else random_graph(case, device)
    steps, notes, memory = dict[str, Callable[[], Any]](), dict[str, str](), dict[str, float]()
    for name, make in _contenders(case):
        status(f"{case.name}: first step of {name}")
        step, problem = try_call(make, case, graphs, device)
        if step is not None:
            _, problem = try_call(step)
        if problem is None and step is not None:
            peak, problem = try_call(peak_memory, step, device)
            memory[name] = ((peak or 0) + bytes_of(graphs)) / 2**20
        if problem is not None or step is None:
            notes[name] = problem or "not measured"
            continue
        steps[name] = step
    status(f"{case.name}: timing {' / '.join(steps)}")
    several = {name: partial(_repeat, step, case.steps) for name, step in steps.items()}
    times = time_by_name(several, device, seconds)
    for name, _ in _contenders(case):
        timing, problem = times.get(name, (None, notes.get(name)))
        values: dict[str, Any] = {} if timing is None else timing.in_ms(case.steps)
        yield case.result(name, **values, mib=memory.get(name), note=problem)


_Make = Callable[[NodeCase, GraphSet, torch.device], Callable[[], Any]]


def _contenders(case: NodeCase) -> Iterator[tuple[str, _Make]]:
    yield OURS, _ours
    if case.alone or not has_pyg():
        return
    yield PYG, _pyg
    if case.sample and (find_spec("pyg_lib") or find_spec("torch_sparse")):
        yield LOADER, _with_loader


def random_graph(case: NodeCase, device: torch.device) -> GraphSet:
    """One graph with degrees of a power law, made on the device."""
    generator = torch.Generator(device).manual_seed(0)
    edges = torch.empty((2, case.edges), dtype=torch.int32, device=device)
    names = torch.randperm(case.nodes, generator=generator, device=device).int()
    for row in edges:
        drawn = torch.rand(case.edges, generator=generator, device=device).pow_(_POWER)
        row.copy_(names[drawn.mul_(case.nodes).long().clamp_(max=case.nodes - 1)])
        del drawn
    adjacency = Adjacency.from_edge_index(edges, case.nodes)
    del edges
    x = torch.randn((case.nodes, case.features), generator=generator, device=device)
    y = torch.randint(case.classes, (case.nodes, 1), generator=generator, device=device).float()
    y[torch.rand(case.nodes, generator=generator, device=device) > case.known] = torch.nan
    return GraphSet(
        node_offsets=torch.tensor([0, case.nodes]), edge_offsets=torch.tensor([0, case.edges]),
        degree=adjacency.incoming.lengths, senders=adjacency.senders,
        out_degree=adjacency.outgoing.lengths, receivers=adjacency.outgoing.neighbours,
        out_ranks=adjacency.out_ranks, x=x, y_node=y, node_targets=("class",),
    )  # fmt: skip


def _real_graph(name: str) -> GraphSet:
    """The training part of a graph with given splits."""
    return node_benchmark(name).graph_set(0).split("train")


def adjacency_of(graphs: GraphSet) -> Adjacency:
    """The edges of the only graph."""
    nothing = graphs.degree.new_zeros(1, dtype=torch.int32)

    def starts(lengths: Tensor) -> Tensor:
        return torch.cat([nothing, lengths.cumsum(0, dtype=torch.int32)])

    transpose = (starts(graphs.out_degree), graphs.receivers.int(), graphs.out_ranks.int())
    return Adjacency.from_csr(starts(graphs.degree), graphs.senders.int(), transpose=transpose)


class NodeModel(nn.Module):
    """An embedding, layers with ReLU, and one linear layer for the classes."""

    def __init__(self, case: NodeCase, make: Callable[..., nn.Module], deg: Tensor) -> None:
        super().__init__()
        wide = case.hidden
        self.embed = nn.Linear(case.features, wide)
        self.layers = nn.ModuleList(
            make(wide, wide, AGGREGATORS, SCALERS, deg) for _ in range(case.layers)
        )
        self.head = nn.Linear(wide, case.classes)

    def full(self, x: Tensor, edges: Any, rows: Tensor) -> Tensor:
        """The classes of some rows, from the whole graph."""
        x = self.embed(x).relu()
        for layer in self.layers:
            x = layer(x, edges).relu()
        return self.head(x[rows])

    def sampled(self, batch: Batch, pairs: bool) -> Tensor:
        """The classes of the seeds. Layers take pairs (x_j, x_i), or compute rows of all senders,
        of which most are thrown away."""
        assert batch.x is not None
        x = self.embed(batch.x).relu()
        for layer, edges in zip(self.layers, batch.layers, strict=True):
            own = edges.adjacency.num_receivers
            if pairs:
                x = layer((x, x[:own]), edges.adjacency).relu()
            else:
                x = layer(x, edges.adjacency.edge_index.long())[:own].relu()
        return self.head(x)


def _ours(case: NodeCase, graphs: GraphSet, device: torch.device) -> Callable[[], Any]:
    return _trained(case, graphs, PNAConv, device)


def _pyg(case: NodeCase, graphs: GraphSet, device: torch.device) -> Callable[[], Any]:
    from torch_geometric.nn import PNAConv as Layer

    return _trained(case, graphs, Layer, device)


def _trained(
    case: NodeCase, graphs: GraphSet, layer: type[nn.Module], device: torch.device
) -> Callable[[], Any]:
    """A step of training. Both kinds of layers get batches of the same sampler."""
    model = NodeModel(case, layer, torch.bincount(graphs.degree.long()).cpu()).to(device)
    ours = layer is PNAConv
    if case.sample:
        batches = NeighbourBatches(graphs, case.sample, case.seeds)
        endless = itertools.chain.from_iterable(itertools.repeat(batches))

        def sampled() -> tuple[Tensor, Tensor]:
            batch = next(endless)
            assert batch.y_node is not None
            return model.sampled(batch, pairs=ours), batch.y_node[:, 0].long()

        return _step(model, sampled)
    assert graphs.x is not None and graphs.y_node is not None
    adjacency, x = adjacency_of(graphs), graphs.x
    edges = adjacency if ours else adjacency.edge_index.long()
    rows = (~graphs.y_node[:, 0].isnan()).nonzero()[:, 0]
    target = graphs.y_node[rows, 0].long()
    return _step(model, lambda: (model.full(x, edges, rows), target))


def _with_loader(case: NodeCase, graphs: GraphSet, device: torch.device) -> Callable[[], Any]:
    """PyG's layers and its loader, as its users write it."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import PNAConv as Layer

    assert graphs.x is not None and graphs.y_node is not None
    model = NodeModel(case, Layer, torch.bincount(graphs.degree.long()).cpu()).to(device)
    y = graphs.y_node[:, 0].cpu()
    data = Data(x=graphs.x.cpu(), edge_index=adjacency_of(graphs).edge_index.cpu().long(), y=y)
    loader = NeighborLoader(
        data, list(case.sample), input_nodes=~y.isnan(), batch_size=case.seeds, shuffle=True
    )
    endless = itertools.chain.from_iterable(itertools.repeat(loader))

    def loaded() -> tuple[Tensor, Tensor]:
        batch = next(endless).to(device)
        rows = torch.arange(batch.batch_size, device=device)
        return model.full(batch.x, batch.edge_index, rows), batch.y[: batch.batch_size].long()

    return _step(model, loaded)


def _repeat(step: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        step()


def _step(model: nn.Module, outputs: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(*outputs()).backward()
        optimiser.step()

    return step
