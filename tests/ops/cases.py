"""The graphs, features and tolerances on which backends are held against the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

import pna
from pna.ops.aggregate import Combine
from pna.ops.aggregators import Aggregator, KthSmallest, Moment, Softmax, Softmin, Std
from pna.ops.schemas import NestedParameter

Edge = Tensor | tuple[Tensor, Tensor] | None

#: What the fast backends take in one pass, in an order that is not theirs.
FUSED = ["std", "max", "mean", "min", "normalised_mean", "sum", "var"]

#: Every aggregator there is, those of the kernels and those of the definition mixed, some twice,
#: with three conventions of std.
EVERY = [
    "moment_3", "mean", Softmax(temperature=2.0), "std", Moment(5, published=True), "softmin",
    "max", KthSmallest(2), "normalised_mean", Std(clamp=True), "sum", "min", "var",
    Std(epsilon=1e-3), "moment_4", "mean", "softmax",
]  # fmt: skip

#: Objects of aggregators that have parameters.
EXAMPLES: dict[type[Aggregator], list[Aggregator]] = {
    Std: [Std(), Std(epsilon=0.1), Std(clamp=True), Std(clamp=True, epsilon=0.3)],
    # odd published ones jump at 0
    Moment: [Moment(3), Moment(4), Moment(5, epsilon=1e-2), Moment(6, published=True)],
    Softmax: [Softmax(), Softmax(temperature=-2.0)],
    Softmin: [Softmin(), Softmin(temperature=3.0)],
    KthSmallest: [KthSmallest(3), KthSmallest(1), KthSmallest(4)],
}


def examples(kind: type[Aggregator]) -> list[Aggregator]:
    return EXAMPLES.get(kind) or [kind()]


#: How far a result may be from that of the definition in float64, relative to the largest number
#: in it. Inputs are the same numbers, already rounded.
TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,  # one rounding of the result, one of a std that its gradient divides by
    torch.float16: 2**-10,
}

#: e absent, (edges, features), table[index], coefficients @ basis; and (edges, 1).
FORMS = ("none", "dense", "table", "coefficients")
EDGE_FORMS = (*FORMS[1:], "weights")


@dataclass(frozen=True)
class Graph:
    """Edges as they are given, in no order, and how many nodes send and receive."""

    edges: list[tuple[int, int]]
    nodes: int | tuple[int, int]

    def edge_index(self, device: Any = "cpu") -> Tensor:
        return torch.tensor(self.edges, dtype=torch.int64, device=device).reshape(-1, 2).t()

    def adjacency(self, device: Any = "cpu") -> pna.Adjacency:
        return pna.Adjacency.from_edge_index(self.edge_index(device), self.nodes)

    def exact_adjacency(self, device: Any) -> pna.Adjacency:
        """Without the spare long rows of an Adjacency that is built on a GPU: some kernels run only
        if it is known that no row is long, as in the batches of a GraphSet."""
        return self.adjacency().to(device)


def random_edges(count: int, senders: int, receivers: int, seed: int = 0) -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(n, (count,), generator=generator) for n in (senders, receivers)]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def into(receiver: int, count: int, senders: int, seed: int = 1) -> list[tuple[int, int]]:
    """`count` edges into one node."""
    return [(sender, receiver) for sender, _ in random_edges(count, senders, 1, seed)]


def out_of(sender: int, count: int, receivers: int, seed: int = 2) -> list[tuple[int, int]]:
    """`count` edges out of one node."""
    return [(sender, receiver) for _, receiver in random_edges(count, 1, receivers, seed)]


GRAPHS = {
    "no nodes": Graph([], 0),
    "no edges": Graph([], 3),
    "one node": Graph([], 1),
    "one node with a self-loop": Graph([(0, 0)], 1),
    # nothing reaches 0, 3 and 4, the first and last among them; 4 sends nothing either
    "isolated": Graph([(0, 1), (2, 1), (3, 2)], 5),
    "self-loops": Graph([(1, 1), (0, 1), (2, 2), (1, 0), (0, 0)], 3),
    # ties that are not ties of different nodes; 1 receives the same message three times
    "repeated edges": Graph([(0, 1), (2, 1), (0, 1), (1, 2), (0, 1), (1, 2)], 3),
    # a ring: every variance is 0
    "degree 1": Graph([(2, 0), (0, 1), (1, 2)], 3),
    # rows of 1 to 9 slots: kernels take four at a time
    "every small degree": Graph([(s % 4, d) for d in range(9) for s in range(d + 1)], 9),
    "random": Graph(random_edges(60, 12, 12), 12),
    "bipartite": Graph(random_edges(20, 7, 4), (7, 4)),
    "more receivers than senders": Graph(random_edges(20, 2, 40), (2, 40)),
    "nobody sends": Graph([], (0, 3)),
    "nobody receives": Graph([], (3, 0)),
    # a row of more than 255 slots is cut in segments: 600 = 255 + 255 + 90
    "hub that receives": Graph(into(3, 600, 60), 60),
    "hub that sends": Graph(out_of(3, 600, 60), 60),
    # the one hub a neighbour of the other, and of itself
    "hubs both ways": Graph(into(0, 256, 60) + [(4, 0), (0, 0)] + out_of(4, 700, 60), 60),
}


def features(rows: int, width: int, dtype: torch.dtype, device: Any, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).to(device, dtype)


def edge_term(form: str, edges: int, width: int, dtype: torch.dtype, device: Any) -> Edge:
    """Random e in one of these forms: with 4 types, of which one does not occur, or D = 2."""
    if form == "none":
        return None
    if form == "weights":
        return features(edges, 1, dtype, device, seed=1)
    if form == "dense":
        return features(edges, width, dtype, device, seed=1)
    if form == "table":
        index = torch.randint(3, (edges,), generator=torch.Generator().manual_seed(2))
        return features(4, width, dtype, device, seed=3), index.to(device)
    return features(edges, 2, dtype, device, seed=4), features(2, width, dtype, device, seed=5)


def outcome(
    x: Tensor,
    adjacency: pna.Adjacency,
    aggregators: Sequence[Any],
    edge: Edge = None,
    upstream: Tensor | None = None,
    combine: Combine = "add",
) -> list[Tensor]:
    """The output, then the gradients of x and of whatever real numbers `edge` is made of."""
    inputs = [x, *([edge] if isinstance(edge, Tensor) else edge or ())]
    inputs = [i.detach().requires_grad_(i.is_floating_point()) for i in inputs]
    leaves = [i for i in inputs if i.requires_grad]
    edge = None if edge is None else inputs[1] if len(inputs) == 2 else tuple(inputs[1:])
    out = pna.aggregate(inputs[0], adjacency, aggregators, edge, combine)
    if upstream is None:
        upstream = features(1, out.numel(), out.dtype, out.device, seed=6).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def definition(
    x: Tensor,
    adjacency: pna.Adjacency,
    aggregators: Sequence[Any],
    edge: Edge = None,
    upstream: Tensor | None = None,
    combine: Combine = "add",
) -> list[Tensor]:
    """The same by the definition in float64, from the same numbers."""

    def wide(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(wide(part) for part in value)
        return value.double() if value is not None and value.is_floating_point() else value

    if upstream is None:
        shape = (adjacency.num_receivers, len(aggregators), x.shape[1])
        count = shape[0] * shape[1] * shape[2]
        dtype = torch.promote_types(x.dtype, _dtype(edge, x.dtype))
        upstream = features(1, count, dtype, x.device, seed=6).reshape(shape)
    with pna.backend("reference"):
        return outcome(wide(x), adjacency, aggregators, wide(edge), wide(upstream), combine)


def _dtype(edge: Edge, otherwise: torch.dtype) -> torch.dtype:
    parts = [edge] if isinstance(edge, Tensor) else edge or ()
    return next((part.dtype for part in parts if part.is_floating_point()), otherwise)


def assert_near(
    got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float, at_least: float = 0.0
) -> None:
    """Outputs and gradients, each within `tolerance` of the largest number that it holds, or of
    `at_least`: the size of the terms whose difference it is, which may cancel to nothing."""
    names = ["out", "gradient of x", "first gradient of edge", "second gradient of edge"]
    assert len(got) == len(expected)
    for name, ours, theirs in zip(names, got, expected, strict=False):
        scale = max(at_least, float(theirs.abs().max())) if theirs.numel() > 0 else 0.0
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def widened(adjacency: pna.Adjacency) -> pna.Adjacency:
    """The same graph with all of its integers in 64 bits, as beyond 2³¹ edges."""

    def widen(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.long()
        return type(part)(*[widen(getattr(part, field.name)) for field in fields(part)])

    return cast(pna.Adjacency, widen(adjacency))


def pack(*values: Any) -> list[Any]:
    """Dataclasses and named tuples as schema arguments, to call an operator itself."""
    return [part for value in values for part in NestedParameter(type(value)).pack(value)]
