"""Random graphs, numbers and aggregators for `fuzz`, ordinary and extreme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pna import aggregators as table
from pna.testing.definition import FORMULAS, EdgeList

T = TypeVar("T")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Draw:
    """A stream of random choices that depends only on a seed and the number of a case.

    `signature` is the stream of choices for which kernels are compiled: types, widths, aggregators.
    Cases with equal signatures share kernels, so its choices must not depend on others. By default
    it is the stream itself.
    """

    def __init__(self, *seeds: int, signature: Draw | None = None) -> None:
        self.rng = np.random.default_rng(seeds)
        self.signature = signature or self

    def one_of(self, choices: Sequence[T], weights: Sequence[float] | None = None) -> T:
        p = None if weights is None else np.array(weights) / sum(weights)
        return choices[int(self.rng.choice(len(choices), p=p))]

    def some_of(self, choices: Sequence[T], most: int) -> list[T]:
        count = int(self.rng.integers(1, most + 1))
        return [self.one_of(choices) for _ in range(count)]

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape))

    def below(self, high: int, count: int) -> Tensor:
        return torch.from_numpy(self.rng.integers(0, max(high, 1), count))


@dataclass(frozen=True)
class DrawnBatch:
    """Several graphs as one, and the graph of every sender."""

    graph: EdgeList
    of_sender: Tensor


def draw_batch(draw: Draw, *, square: bool = False, largest: str = "hub") -> DrawnBatch:
    """One to three graphs. `largest` limits their size: "small", "hub" or "window".

    Triton compiles a kernel again if a count is 1 or a multiple of 16. To share kernels, four of
    five signatures avoid such counts.
    """
    common = draw.signature is not draw and draw.signature.chance(0.8)
    for _ in range(5 if common else 1):
        batch = _draw_batch(draw, square, largest)
        graph = batch.graph
        counts = (len(graph.senders), graph.num_senders, graph.num_receivers)
        if all(n == 0 or (n > 1 and n % 16 > 0) for n in counts):
            break
    return batch


def _draw_batch(draw: Draw, square: bool, largest: str) -> DrawnBatch:
    count = draw.one_of([1, 2, 3], [4, 4, 1])
    parts = []
    for i in range(count):
        kinds = ["none", "one", "isolated", "few", "ring", "random", "degrees"]
        weights = [1.0, 1, 1, 3, 1, 6, 2]
        if not square and count == 1:
            kinds, weights = [*kinds, "bipartite"], [*weights, 2.0]
        if i == 0 and largest != "small":
            kinds += ["hub", "hub out", "window", "long hub"]
            weights += [1, 1, 0.15, 0.05] if largest == "hub" else [1, 1, 5, 0]
        parts.append(_draw_graph(draw, draw.one_of(kinds, weights)))
    sizes = torch.tensor([part.sizes for part in parts])  # (graphs, 2)
    before = (sizes.cumsum(0) - sizes)[:, :, None]
    ends = torch.cat([p.edge_index + b for p, b in zip(parts, before, strict=True)], 1)
    senders, receivers = ends[:, torch.from_numpy(draw.rng.permutation(ends.shape[1]))]
    graph = EdgeList(senders, receivers, *sizes.sum(0).tolist())
    return DrawnBatch(graph, torch.repeat_interleave(torch.arange(count), sizes[:, 0]))


def _draw_graph(draw: Draw, kind: str) -> EdgeList:
    """Random ends also give self-loops and repeated edges."""
    n = draw.integer(1, 12)
    if kind in ("none", "one", "isolated"):
        n = {"none": 0, "one": 1, "isolated": n}[kind]
        loops = torch.zeros(draw.integer(0, 3) if kind == "one" else 0, dtype=torch.int64)
        return EdgeList(loops, loops, n, n)
    if kind == "ring":
        nodes = torch.arange(n)
        return EdgeList(nodes, (nodes + 1) % n, n, n)
    if kind == "degrees":  # 0, 1, 2, 3, … messages: kernels take several at a time
        receivers = torch.repeat_interleave(torch.arange(n), torch.arange(n))
        return EdgeList(draw.below(n, len(receivers)), receivers, n, n)
    if kind == "bipartite":
        s, r = draw.integer(0, 9), draw.integer(0, 9)
        edges = draw.integer(0, 30) if s * r > 0 else 0
        return EdgeList(draw.below(s, edges), draw.below(r, edges), s, r)
    if kind in ("hub", "hub out", "long hub"):  # 255 is the longest row that is not cut
        n = draw.integer(2, 60)
        length = 255**2 + draw.integer(1, 300) if kind == "long hub" else draw.integer(200, 900)
        ends, hub = draw.below(n, length), draw.below(n, 1).expand(length)
        more = [draw.below(n, 2 * n) for _ in range(2)]
        first, second = (hub, ends) if kind == "hub out" else (ends, hub)
        return EdgeList(torch.cat([first, more[0]]), torch.cat([second, more[1]]), n, n)
    if kind == "window":  # rows are sorted by degree in windows of 4096
        n = draw.integer(4000, 9000)
        edges = draw.integer(n, 2 * n)
        return EdgeList(draw.below(n, edges), draw.below(n, edges), n, n)
    edges = draw.integer(0, 4) if kind == "few" else draw.integer(0, 6 * n)
    return EdgeList(draw.below(n, edges), draw.below(n, edges), n, n)


#: The kinds of numbers, and the weights with which they are drawn.
VALUES = {
    "normal": 6.0,
    "constant": 1.0,
    "rows alike": 0.7,
    "ties": 2.0,
    "offset": 1.0,
    "tiny": 0.5,
    "denormal": 0.3,
    "zeros": 0.5,
    "scales": 3.0,  # a different scale in every graph, up to 1e30
    "huge": 0.5,
    "odd": 1.0,  # with NaN and infinities
}


def draw_values(
    draw: Draw, kind: str, rows: int, width: int, dtype: torch.dtype, owner: Tensor | None = None
) -> Tensor:
    """(rows, width) in float64, with values that `dtype` represents exactly."""
    most = torch.finfo(dtype).max
    values = draw.normal(rows, width)
    if kind == "constant":
        values = values * 0 + draw.one_of([0.1, -3.0, 1e4 + 0.3, 1e-3])
    elif kind == "rows alike":
        values = values[:1].expand(rows, width) if rows else values
    elif kind == "ties":
        values = values.round()
    elif kind == "offset":
        values = values + draw.one_of([1e2, 1e4, -1e4])
    elif kind == "tiny":
        values = values * draw.one_of([1e-3, 1e-5, 1e-20])
    elif kind == "denormal":
        values = values * torch.finfo(dtype).tiny / 16
    elif kind == "zeros":
        values = values * 0
    elif kind == "scales" and owner is not None:
        scales = [draw.one_of([1.0, 1.0, 1e2, 1e4, 1e8, 1e15, 1e30]) for _ in range(3)]
        values = values * torch.tensor(scales, dtype=torch.float64)[owner][:, None]
    elif kind == "huge":
        values = values.sign() * min(most, 1e290) * draw.one_of([0.3, 0.7, 1.0])
    elif kind == "odd" and values.numel() > 0:
        values = values.clone()
        flat = values.view(-1)
        for index in draw.below(len(flat), draw.integer(1, 3)):
            flat[index] = draw.one_of([math.nan, math.inf, -math.inf])
    values = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return values.to(dtype).double()


#: Memory layouts of a tensor.
LAYOUTS = ("plain", "transposed", "columns", "rows", "unaligned", "expanded")


def lay_out(values: Tensor, layout: str) -> Tensor:
    """The same numbers in another memory layout; "expanded" only if all rows are equal."""
    if values.dim() < 2 or values.numel() == 0:
        return values
    if layout == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "columns":
        wide = values.new_full((*values.shape[:-1], values.shape[-1] + 3), math.nan)
        wide[..., 1:-2] = values
        return wide[..., 1:-2]
    if layout == "rows":
        tall = values.new_full((2 * values.shape[0], *values.shape[1:]), math.nan)
        tall[::2] = values
        return tall[::2]
    if layout == "unaligned":
        flat = values.new_empty(values.numel() + 1)
        flat[1:] = values.reshape(-1)
        return flat[1:].view(values.shape)
    if layout == "expanded" and bool((values == values[:1]).all()):
        return values[:1].clone().expand(values.shape)
    return values


def every_aggregator() -> list[type]:
    """Those that the fuzz has a formula for: all with a kernel, and others."""
    return sorted(FORMULAS, key=lambda kind: kind.__name__)


def draw_aggregator(draw: Draw, kind: type, edges: int, features: int, dtype: torch.dtype) -> Any:
    """An aggregator of a class, with random options. Its tensors are float64, exact in `dtype`."""
    if kind is table.Std:
        return table.Std(draw.signature.one_of([1e-5, 1e-5, 1e-3]), draw.signature.chance(0.4))
    if kind is table.Moment:
        return table.Moment(draw.integer(3, 6), draw.one_of([1e-5, 1e-3]), draw.chance(0.3))
    if kind is table.KthSmallest:
        return table.KthSmallest(draw.integer(1, 5))
    if issubclass(kind, table.Softmax):
        t: Any = draw.one_of([1.0, 0.0, -1.5, 5.0])
        if draw.chance(0.5):
            t = draw.normal(*([features] if draw.chance(0.5) else [])).to(dtype).double()
        weight = None
        if draw.chance(0.4):
            weight = draw.normal(edges).abs().to(dtype).double()
            if draw.chance(0.3):
                weight = torch.where(draw.normal(edges) > 0, weight, 0)
        return kind(t, weight)
    return kind()
