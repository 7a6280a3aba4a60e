"""The operation beside PyG's: four statistics of the same neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.bench.measure import Timing, peak_memory, time_calls
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import Aggregator, Std
from pna.ops.backend import backend

# PyG's convention of std, so that both sides compute the same function.
STATISTICS: list[str | Aggregator | type[Aggregator]] = ["mean", Std(clamp=True), "max", "min"]


@dataclass(frozen=True)
class Row:
    """One contender: the forward pass, both passes, and largest errors against float64."""

    name: str
    forward: Timing
    both: Timing
    forward_bytes: int
    both_bytes: int
    output_errors: tuple[float, ...]  # of mean, std, max and min
    gradient_error: float


def beside_pyg(
    device: torch.device | str = "cpu",
    num_nodes: int = 10_000,
    num_edges: int = 100_000,
    num_features: int = 64,
    seconds: float = 1.0,
) -> list[Row]:
    """Mean, std, max and min over a random graph: `pna.aggregate` first, then PyG.

    PyG gathers the messages and takes all four with its `MultiAggregation`, once with the edges
    as they come and once sorted by receiver, which is kinder to its caches. Sorting, like making
    the Adjacency, is done beforehand. Features are N(0, 1) in float32.
    """
    from torch_geometric.nn.aggr import MultiAggregation

    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=random).to(device)
    x = torch.randn(num_nodes, num_features, generator=random).to(device).requires_grad_()
    upstream = torch.randn(num_nodes, 4, num_features, generator=random).to(device)
    adj = Adjacency.from_edge_index(edge_index, num_nodes)
    by_receiver = edge_index[:, edge_index[1].argsort(stable=True)]
    four = MultiAggregation(["mean", "std", "max", "min"])

    def ours(x: Tensor) -> Tensor:
        return aggregate(x, adj, STATISTICS)

    def pyg(edge_index: Tensor) -> Callable[[Tensor], Tensor]:
        def gather_and_aggregate(x: Tensor) -> Tensor:
            out = four(x[edge_index[0]], edge_index[1], dim_size=num_nodes)
            return out.view(num_nodes, 4, num_features)

        return gather_and_aggregate

    with backend("reference"):
        truth = _output_and_gradient(ours, x.detach().double().requires_grad_(), upstream.double())
    contenders = {"pna": ours, "PyG": pyg(edge_index), "PyG, edges sorted": pyg(by_receiver)}
    forward = [partial(function, x) for function in contenders.values()]
    both = [partial(_output_and_gradient, f, x, upstream) for f in contenders.values()]
    forward_times = time_calls(forward, device, seconds)
    both_times = time_calls(both, device, seconds)
    return [
        Row(
            name,
            forward_times[i],
            both_times[i],
            peak_memory(forward[i], device),
            peak_memory(both[i], device),
            *_largest_errors(both[i](), truth),
        )
        for i, name in enumerate(contenders)
    ]


def _output_and_gradient(
    function: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor]:
    output = function(x)
    (gradient,) = torch.autograd.grad(output, x, upstream)
    return output.detach(), gradient


def _largest_errors(
    got: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]
) -> tuple[tuple[float, ...], float]:
    """Of each statistic's outputs, and of the gradient of all together."""
    output, gradient = ((a.double() - b).abs() for a, b in zip(got, truth, strict=True))
    return tuple(output.amax(dim=(0, 2)).tolist()), gradient.max().item()
