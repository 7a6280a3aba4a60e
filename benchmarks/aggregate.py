"""`pna.aggregate` side by side with its peers; all results go to one CSV file.

    python benchmarks/aggregate.py [--device cpu|cuda] [--small] [--seconds 1] [--out FILE]

Rows measured before on the same hardware are replaced, those of other hardware are kept.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pna
from pna.adjacency import Adjacency
from pna.bench.layer_cases import uniform_edges
from pna.bench.measure import peak_memory, time_calls
from pna.bench.results import write
from pna.machine import machine
from pna.ops.aggregators import Std

RESULTS = Path(__file__).parent / "results" / "aggregate.csv"
FOUR = ["mean", "std", "max", "min"]
#: The same with PyG's convention of std, so that both sides compute one function.
STATISTICS = ["mean", Std(clamp=True), "max", "min"]

Step = Callable[[], Any]


@dataclass(frozen=True)
class Result:
    """One row of the file; times in milliseconds, memory in MiB, empty where not measured."""

    case: str
    contender: str
    work: str
    nodes: int
    edges: int
    features: int
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    mib: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Graph:
    """A graph to measure on: x needs gradients, the Adjacency is made beforehand."""

    case: str
    edge_index: Tensor
    x: Tensor
    adjacency: Adjacency

    def result(self, contender: str, work: str, **values: float | None) -> Result:
        nodes, features = self.x.shape
        edges = self.adjacency.num_edges
        return Result(self.case, contender, work, nodes, edges, features, **values)


def graph(case: str, edge_index: Tensor, num_nodes: int, features: int) -> Graph:
    random = torch.Generator(edge_index.device).manual_seed(1)
    x = torch.randn(num_nodes, features, device=edge_index.device, generator=random)
    adjacency = Adjacency.from_edge_index(edge_index, num_nodes)
    return Graph(case, edge_index, x.requires_grad_(), adjacency)


def hub_edges(leaves: int, device: str) -> Tensor:
    """A hub that sends to and hears from all leaves, and a ring through all nodes."""
    leaf = torch.arange(1, leaves + 1, device=device)
    hub = torch.zeros_like(leaf)
    ring = torch.arange(leaves + 1, device=device)
    senders = torch.cat([leaf, hub, ring])
    receivers = torch.cat([hub, leaf, (ring + 1) % (leaves + 1)])
    return torch.stack([senders, receivers])


def regular_edges(num_nodes: int, num_edges: int, device: str) -> Tensor:
    """As many edges, spread evenly: each node sends to the ones after it."""
    edge = torch.arange(num_edges, device=device)
    sender = edge % num_nodes
    return torch.stack([sender, (sender + 1 + edge // num_nodes) % num_nodes])


def measure(
    of: Graph, work: str, contenders: dict[str, Step], seconds: float, memory: bool = True
) -> Iterator[Result]:
    """Time the contenders in turns, then the most memory each takes beyond what is there."""
    device = of.x.device
    timings = time_calls(list(contenders.values()), device, seconds)
    for (name, step), timing in zip(contenders.items(), timings, strict=True):
        yield of.result(
            name,
            work,
            ms=timing.median * 1e3,
            ms_low=timing.low * 1e3,
            ms_high=timing.high * 1e3,
            mib=peak_memory(step, device) / 2**20 if memory else None,
        )


def ours(of: Graph, aggregators: Any, x: Tensor | None = None) -> Tensor:
    return pna.aggregate(of.x if x is None else x, of.adjacency, aggregators)


def pyg(of: Graph, edge_index: Tensor, x: Tensor | None = None) -> Tensor:
    """PyG's four aggregations of the gathered messages."""
    from torch_geometric.nn.aggr import MultiAggregation

    x = of.x if x is None else x
    out = MultiAggregation(FOUR)(x[edge_index[0]], edge_index[1], dim_size=x.shape[0])
    return out.view(x.shape[0], 4, -1)


def both(forward: Callable[[], Tensor], leaves: Tensor | list[Tensor], upstream: Tensor) -> Any:
    return torch.autograd.grad(forward(), leaves, upstream)


def beside_pyg(of: Graph, seconds: float) -> Iterator[Result]:
    """Four statistics, forward and with the backward pass, beside PyG; and the error of each."""
    index = of.edge_index.long()
    by_receiver = index[:, index[1].argsort(stable=True)]
    forward: dict[str, Callable[..., Tensor]] = {
        "pna": partial(ours, of, STATISTICS),
        "PyG": partial(pyg, of, index),
        "PyG, edges sorted": partial(pyg, of, by_receiver),
    }
    upstream = torch.randn(of.x.shape[0], 4, of.x.shape[1], device=of.x.device)
    yield from measure(of, "forward", dict(forward), seconds)
    steps = {name: partial(both, step, of.x, upstream) for name, step in forward.items()}
    yield from measure(of, "forward+backward", dict(steps), seconds)
    build = partial(Adjacency.from_edge_index, of.edge_index, of.x.shape[0])
    yield from measure(of, "build", {"pna.Adjacency": build}, seconds)


def errors(of: Graph) -> Iterator[Result]:
    """Relative error in norm against the definition in float64, of outputs and gradients."""
    index = of.edge_index.long()
    upstream = torch.randn(of.x.shape[0], 4, of.x.shape[1], device=of.x.device)
    exact = of.x.detach().double().requires_grad_()
    with pna.backend("reference"):
        true = ours(of, STATISTICS, exact)
    (true_gradient,) = torch.autograd.grad(true, exact, upstream.double())
    for name, out in (("pna", ours(of, STATISTICS)), ("PyG", pyg(of, index))):
        (gradient,) = torch.autograd.grad(out, of.x, upstream)
        for i, kind in enumerate(FOUR):
            yield of.result(name, f"error of {kind}", error=_relative(out[:, i], true[:, i]))
        yield of.result(name, "error of gradient", error=_relative(gradient, true_gradient))


def _relative(got: Tensor, true: Tensor) -> float:
    return float((got.detach().double() - true.detach()).norm() / true.detach().norm())


def beside_sum(of: Graph, seconds: float) -> Iterator[Result]:
    """Four statistics forward beside kernels that only sum the same rows; then both passes."""
    from sum_kernel import sum_of_rows

    x, adjacency = of.x.detach(), of.adjacency
    offsets = adjacency.indptr[:-1]
    forward: dict[str, Step] = {
        "pna": partial(ours, of, FOUR),
        "pna, sum alone": partial(ours, of, ["sum"]),
        "sum, one program a row": partial(sum_of_rows, x, adjacency, x.shape[1]),
        "sum, 32 features a program": partial(sum_of_rows, x, adjacency, 32),
        "torch embedding_bag": partial(
            torch.nn.functional.embedding_bag, adjacency.senders, x, offsets, mode="sum"
        ),
    }
    yield from measure(of, "forward", forward, seconds)
    upstream = torch.randn(of.x.shape[0], 4, of.x.shape[1], device=of.x.device)
    step = partial(both, partial(ours, of, FOUR), of.x, upstream)
    yield from measure(of, "forward+backward", {"pna": step}, seconds)
    build = partial(Adjacency.from_edge_index, of.edge_index, of.x.shape[0])
    yield from measure(of, "build", {"pna.Adjacency": build}, seconds)


def beside_messages(of: Graph, types: int, seconds: float) -> Iterator[Result]:
    """Products with a row for each type of edges, as in NBFNet and ULTRA: beside messages that are
    made for every edge, and beside a pass of ours for each of four statistics."""
    x, adjacency, device = of.x, of.adjacency, of.x.device
    table = torch.randn(types, x.shape[1], device=device, requires_grad=True)
    kinds = torch.randint(types, (adjacency.num_edges,), device=device)
    senders, receivers = of.edge_index.long()

    def one_pass() -> Tensor:
        return pna.aggregate(x, adjacency, FOUR, (table, kinds), combine="mul")

    def four_passes() -> Tensor:
        passes = [("sum", x, table), ("sum", x**2, table**2), ("max", x, table), ("min", x, table)]
        found = [pna.aggregate(n, adjacency, [k], (e, kinds), combine="mul") for k, n, e in passes]
        return torch.cat(found, 1)

    def made() -> Tensor:
        from torch_geometric.nn.aggr import MultiAggregation

        messages = x.index_select(0, senders) * table.index_select(0, kinds)
        return MultiAggregation(FOUR)(messages, receivers, dim_size=len(x)).view(len(x), 4, -1)

    forward = {"pna": one_pass, "pna, four passes": four_passes, "PyG": made}
    yield from measure(of, "forward", dict(forward), seconds)
    upstream = torch.randn(x.shape[0], 4, x.shape[1], device=device)
    steps = {name: partial(both, step, [x, table], upstream) for name, step in forward.items()}
    yield from measure(of, "forward+backward", dict(steps), seconds)


def large(num_nodes: int, num_edges: int, features: int, seconds: float) -> Iterator[Result]:
    """Both passes where memory is what counts: everything on the device is in the figure."""
    torch.cuda.empty_cache()
    of = graph("large", uniform_edges(num_nodes, num_edges, "cuda"), num_nodes, features)
    before = torch.cuda.memory_allocated()
    upstream = torch.randn(num_nodes, 4, features, device="cuda")
    step = partial(both, partial(ours, of, FOUR), of.x, upstream)
    resident = torch.cuda.memory_allocated() / 2**20
    for result in measure(of, "forward+backward", {"pna": step}, seconds):
        total = resident + (result.mib or 0)
        yield of.result("pna", "forward+backward", **_times(result), mib=total)
    yield of.result("pna", "graph and features", mib=before / 2**20)


def _times(result: Result) -> dict[str, float | None]:
    return dict(ms=result.ms, ms_low=result.ms_low, ms_high=result.ms_high)


def hub(leaves: int, features: int, seconds: float, device: str) -> Iterator[Result]:
    """A hub of many leaves beside a regular graph with as many nodes and edges."""
    star = hub_edges(leaves, device)
    graphs = {
        "hub": graph("hub", star, leaves + 1, features),
        "regular": graph(
            "hub", regular_edges(leaves + 1, star.shape[1], device), leaves + 1, features
        ),
    }
    some = graphs["hub"]
    upstream = torch.randn(leaves + 1, 4, features, device=device)
    forward = {name: partial(ours, of, FOUR) for name, of in graphs.items()}
    yield from measure(some, "forward", dict(forward), seconds)
    results = {name: (step(), graphs[name].x) for name, step in forward.items()}
    backward: dict[str, Step] = {
        name: partial(torch.autograd.grad, out, x, upstream, retain_graph=True)
        for name, (out, x) in results.items()
    }
    yield from measure(some, "backward", backward, seconds)


def cpu_cases(seconds: float, small: bool) -> Iterator[Result]:
    nodes = 1_000 if small else 10_000
    of = graph("cpu", uniform_edges(nodes, 10 * nodes, "cpu"), nodes, 64)
    yield from beside_pyg(of, seconds)
    yield from errors(of)
    nodes = 300 if small else 3_000
    of = graph("relations", uniform_edges(nodes, 36 * nodes, "cpu"), nodes, 128)
    yield from beside_messages(of, 474, seconds)


def cuda_cases(seconds: float, small: bool) -> Iterator[Result]:
    shrink = 100 if small else 1
    nodes = 200_000 // shrink
    of = graph("four for one", uniform_edges(nodes, 50 * nodes, "cuda"), nodes, 128)
    yield from beside_sum(of, seconds)
    del of
    nodes = 100_000 // shrink
    of = graph("beside PyG", uniform_edges(nodes, 16 * nodes, "cuda"), nodes, 128)
    yield from beside_pyg(of, seconds)
    yield from errors(of)
    del of
    nodes = 15_000 // shrink  # the sizes of FB15k-237, with 16 queries of 64 features
    of = graph("relations", uniform_edges(nodes, 36 * nodes, "cuda"), nodes, 1024)
    yield from beside_messages(of, 474, seconds)
    del of
    yield from hub(1_000_000 // shrink, 128, seconds, "cuda")
    nodes = 1_000_000 // shrink
    yield from large(nodes, 100 * nodes, 128, seconds)


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    small: Annotated[bool, typer.Option("--small", help="Smaller graphs, to try it out.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to time each call.")] = 1.0,
    out: Annotated[Path, typer.Option(help="Results so far; this run's are put in.")] = RESULTS,
) -> None:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    console = Console()
    here = {"measured": datetime.date.today().isoformat(), **machine()}
    cases = {"cpu": cpu_cases, "cuda": cuda_cases}[device]
    results = []
    with console.status("measuring") as status:
        for result in cases(seconds, small):
            results.append(result)
            status.update(f"measured {result.case}: {result.contender}, {result.work}")
    console.print(table(results))
    if small:
        console.print("Small graphs: for trying it out; nothing was written.")
        return
    write(out, [{**asdict(result), "device": device, **here} for result in results])
    console.print(f"wrote {out}")


def table(results: list[Result]) -> Table:
    shown = Table(box=SIMPLE_HEAD)
    for name in ("case", "contender", "work", "nodes", "edges", "F", "ms", "MiB", "error"):
        shown.add_column(name)
    for r in results:
        ms = "" if r.ms is None else f"{r.ms:.3f}"
        mib = "" if r.mib is None else f"{r.mib:.1f}"
        error = "" if r.error is None else f"{r.error:.1e}"
        size = (f"{r.nodes:,}", f"{r.edges:,}", str(r.features))
        shown.add_row(r.case, r.contender, r.work, *size, ms, mib, error)
    return shown


if __name__ == "__main__":
    typer.run(main)
