"""A case of `pna.aggregate` for `fuzz`: drawn, run, compared, simplified and printed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import pna
from pna import aggregators as table
from pna.ops.aggregate import Combine
from pna.ops.aggregators import FUSED
from pna.rows import SEGMENT
from pna.testing import shrink
from pna.testing.definition import EdgeList
from pna.testing.draw import (
    DTYPES,
    LAYOUTS,
    VALUES,
    Draw,
    draw_aggregator,
    draw_batch,
    draw_values,
    every_aggregator,
    lay_out,
)
from pna.testing.edge_term import EdgeTerm
from pna.testing.execution import BACKENDS, FuzzSettings, compiled, output_and_gradients
from pna.testing.script import inputs, literal, write
from pna.testing.terms import Terms
from pna.testing.tolerance import Arithmetic, Bound, Problem, Statistic, analyse, sum_type


@dataclass(frozen=True)
class AggregateCase:
    graph: EdgeList
    x: Tensor  # (senders, features), float64, as are all numbers here
    dtype: torch.dtype
    edge: EdgeTerm
    aggregators: tuple[Any, ...]
    upstream: Tensor  # (receivers, aggregators, features)
    layout: str
    mode: str
    members: int  # that vmap maps over
    device: str

    @property
    def result_dtype(self) -> torch.dtype:
        if self.edge.form == "none":
            return self.dtype
        return torch.promote_types(self.dtype, self.edge.dtype)

    def _parameters(self) -> Iterator[tuple[int, str, Tensor]]:
        """Temperatures and weights that are tensors: index of the aggregator, name, value."""
        for i, aggregator in enumerate(self.aggregators):
            for name in ("temperature", "weight"):
                value = getattr(aggregator, name, None)
                if isinstance(value, Tensor):
                    yield i, name, value

    def leaves(self) -> dict[str, tuple[Tensor, torch.dtype]]:
        """The tensors that have a gradient, and their types."""
        found = {"x": (self.x, self.dtype)}
        found |= {name: (value, self.edge.dtype) for name, value in self.edge.leaves().items()}
        work = sum_type(self.result_dtype)
        return found | {f"{name}_{i}": (value, work) for i, name, value in self._parameters()}

    def run(self) -> dict[str, Tensor]:
        """What pna gives: "out", and the gradient of every leaf, in float64."""
        leaves = {}
        for name, (values, dtype) in self.leaves().items():
            layout = self.layout if name in ("x", "edge") else "plain"
            placed = lay_out(values.to(dtype).to(self.device), layout)
            leaves[name] = placed.detach().requires_grad_()
        out = self._forward(leaves)
        upstream = self.upstream.to(self.result_dtype).to(self.device)
        upstream = lay_out(upstream, "plain" if self.layout == "expanded" else self.layout)
        return output_and_gradients(out, leaves, upstream)

    def _forward(self, leaves: dict[str, Tensor]) -> Tensor:
        ends, tensors = self.graph.edge_index.to(self.device), leaves | self.edge.index(self.device)
        if self.mode == "compile":  # one program for all sizes
            key = (self.edge.form, self.edge.combine, *(type(a) for a in self.aggregators))
            return compiled(key, self._from_edges)(ends, self.graph.sizes, tensors)
        if self.mode in BACKENDS:
            with pna.backend(BACKENDS[self.mode]):
                return self._from_edges(ends, self.graph.sizes, tensors)
        return self._vmapped(pna.Adjacency.from_edge_index(ends, self.graph.sizes), tensors)

    def _from_edges(
        self, ends: Tensor, sizes: tuple[int, int], tensors: dict[str, Tensor]
    ) -> Tensor:
        return self._aggregate(pna.Adjacency.from_edge_index(ends, sizes), tensors)

    def _aggregate(self, adjacency: pna.Adjacency, tensors: dict[str, Tensor]) -> Tensor:
        chosen = list(self.aggregators)
        for i, name, _ in self._parameters():
            chosen[i] = replace(chosen[i], **{name: tensors[f"{name}_{i}"]})
        edge, combine = self.edge.argument(tensors), self.edge.combine
        return pna.aggregate(tensors["x"], adjacency, chosen, edge, combine)

    def _vmapped(self, adjacency: pna.Adjacency, tensors: dict[str, Tensor]) -> Tensor:
        """Features divided among members, each of which sees only its own."""
        width = self.x.shape[1]
        folded, dims = {}, {}
        for name, value in tensors.items():
            split = value.dim() > 0 and value.shape[-1] == width and not name.startswith("weight")
            split = split and name not in ("coefficients", "index")
            shape = (*value.shape[:-1], self.members, width // self.members)
            folded[name] = value.reshape(shape) if split else value
            dims[name] = value.dim() - 1 if split else None
        call = torch.vmap(partial(self._aggregate, adjacency), in_dims=(dims,), out_dims=2)
        return call(folded).flatten(2)

    def arithmetic(self) -> Arithmetic:
        many = self.mode in ("reference", "compile") or self.dtype == torch.float64
        many = many or any(type(aggregator) not in FUSED for aggregator in self.aggregators)

        # Triton's kernels add up one by one within a segment, and C's only in blocks of 64
        triton = self.mode in ("triton", "interpreter") or self.device == "cuda"
        in_turn = SEGMENT if triton else 0

        def growth(n: int) -> float:
            return 8 + (n if many else min(n, in_turn) + 4 * math.sqrt(n))

        return Arithmetic(self.result_dtype, growth, self.edge.roundings)

    def expected(self) -> tuple[AggregateCase, dict[str, Bound]]:
        """The case with upstream gradients of 0 where they are in doubt, and its bounds."""
        messages, size = self.edge.messages(self.x[self.graph.senders])
        problem = Problem(self.graph, messages, size, self.arithmetic())
        found = [analyse(problem, aggregator) for aggregator in self.aggregators]
        doubt = torch.stack([f.doubt for f in found], 1)
        case = replace(self, upstream=torch.where(doubt, 0, self.upstream))
        parts = [[getattr(f.out, k) for f in found] for k in ("value", "error", "settled")]
        value, error, settled = (torch.stack(part, 1) for part in parts)
        out = Bound(value, error, settled, self.result_dtype)
        return case, {"out": out, **case._gradients(found)}

    def _gradients(self, found: list[Statistic]) -> dict[str, Bound]:
        """Sums over edges of upstream gradient × slope."""
        graph, width = self.graph, self.x.shape[1]
        at_edges = self.upstream[graph.receivers]  # (edges, aggregators, features)
        total = Terms.zeros(graph.senders.shape[0], width)
        for i, statistic in enumerate(found):
            total.add(at_edges[:, i], statistic.message)
        results = {"x": self.edge.of_senders(total).scatter(graph.senders, graph.num_senders)}
        results |= self.edge.gradients(total, self.x[graph.senders])
        for i, name, value in self._parameters():
            if name == "weight":
                terms = Terms.zeros(len(graph.senders), width)
                terms.add(at_edges[:, i], found[i].weight)
                results[f"weight_{i}"] = terms.sum(1)
            else:
                terms = Terms.zeros(graph.num_receivers, width)
                terms.add(self.upstream[:, i], found[i].temperature)
                terms = terms.sum(0)
                results[f"temperature_{i}"] = terms if value.dim() else terms.sum(0)
        arithmetic, leaves = self.arithmetic(), self.leaves()
        return {name: terms.bound(arithmetic, leaves[name][1]) for name, terms in results.items()}

    def simpler(self) -> Iterator[AggregateCase]:
        """Simpler cases, the simplest first."""
        yield from shrink.without_transform(self)
        if self.layout != "plain":
            yield replace(self, layout="plain")
        graph = self.graph
        senders, receivers = graph.senders.unique(), graph.receivers.unique()
        if (len(senders), len(receivers)) != graph.sizes:
            smaller = shrink.with_nodes(graph, senders, receivers)
            yield replace(self, graph=smaller, x=self.x[senders], upstream=self.upstream[receivers])
        for keep in shrink.all_but_one(len(self.aggregators)):
            left = tuple(self.aggregators[k] for k in keep)
            yield replace(self, aggregators=left, upstream=self.upstream[:, keep])
        if self.edge.form != "none":
            yield replace(self, edge=EdgeTerm())
        for keep in shrink.halves(self.x.shape[1]):
            if len(keep) % self.members == 0:
                edge, chosen = self.edge.with_features(keep), self._with("temperature", keep)
                fewer = replace(self, edge=edge, aggregators=chosen)
                yield shrink.select(fewer, keep, x=1, upstream=2)
        for keep in shrink.halves(len(graph.senders)):
            fewer = replace(self, aggregators=self._with("weight", keep))
            yield shrink.with_edges(fewer, keep)
        for other in shrink.rounder(self.x, self.dtype):
            yield replace(self, x=other)
        for other in shrink.rounder(self.upstream, self.result_dtype):
            yield replace(self, upstream=other)

    def _with(self, parameter: str, keep: list[int]) -> tuple[Any, ...]:
        """The aggregators with these entries of their temperatures or weights."""
        chosen = list(self.aggregators)
        for i, name, value in self._parameters():
            if name == parameter and value.dim() > 0:
                chosen[i] = replace(chosen[i], **{name: value[keep]})
        return tuple(chosen)

    def script(self, bounds: dict[str, Bound]) -> str:
        ends, sizes = literal(self.graph.edge_index), self.graph.sizes
        setup = [
            *inputs(self.device, self.leaves()),
            f"adj = pna.Adjacency.from_edge_index({ends}, {sizes})",
            *(f"{name} = {literal(value)}" for name, value in self.edge.index("cpu").items()),
        ]
        if self.layout != "plain":
            setup.append(f"# x lies in memory as pna.testing.draw.lay_out(x, {self.layout!r})")
        chosen = ", ".join(_written(a, i) for i, a in enumerate(self.aggregators))
        edge = f"{self.edge.written()}, {self.edge.combine!r}"
        call = f"pna.aggregate(x, adj, [{chosen}], {edge})"
        mode = f"vmap of {self.members} members" if self.mode == "vmap" else self.mode
        return write(setup, mode, call, literal(self.upstream, self.result_dtype), bounds)


def _written(aggregator: Any, i: int) -> str:
    """An aggregator as Python, with its tensors by name."""
    parts = []
    for field in fields(aggregator):
        value = getattr(aggregator, field.name)
        parts.append(f"{field.name}_{i}" if isinstance(value, Tensor) else repr(value))
    return f"{type(aggregator).__name__}({', '.join(parts)})"


#: The compiled cases. Each takes minutes the first time, so there are few.
_COMPILED: tuple[tuple[str, Combine, tuple[table.Aggregator, ...]], ...] = (
    ("none", "add", (table.Mean(), table.Std(), table.Max(), table.Min())),
    ("table", "mul", (table.Var(), table.Softmax(), table.NormalisedMean(), table.Min())),
    ("dense", "add", (table.Moment(3), table.KthSmallest(2), table.Sum(), table.Max())),
)


def draw_case(draw: Draw, settings: FuzzSettings) -> AggregateCase:
    signature = draw.signature
    mode = signature.one_of(*settings.modes())
    largest = "window" if mode == "compile" else "small" if mode == "interpreter" else "hub"
    batch = draw_batch(draw, largest=largest)
    edges = len(batch.graph.senders)
    width = signature.one_of([1, 2, 3, 5, 8, 17, 33, 70, 130], [3, 3, 3, 3, 2, 2, 1, 0.5, 0.3])
    if edges * width > 200_000 or mode == "interpreter":
        width = draw.integer(1, 3)
    dtype = signature.one_of(DTYPES, [3, 5, 1.5, 1.5])
    form = signature.one_of(("none", "dense", "table", "coefficients", "weights"), [4, 2, 3, 2, 2])
    combine: Combine = "add" if form == "none" else signature.one_of(("add", "mul"))
    chosen: tuple[table.Aggregator, ...] = ()
    if mode == "compile":
        form, combine, chosen = signature.one_of(_COMPILED)
        dtype = torch.float32
    members = signature.one_of([1, 2, 3]) if mode == "vmap" else 1
    width = width * members
    kind = draw.one_of(list(VALUES), list(VALUES.values()))
    if combine == "mul" and kind == "huge":  # products would overflow, but not in float64
        kind = "normal"
    x = draw_values(draw, kind, batch.graph.num_senders, width, dtype, batch.of_sender)
    edge_dtype = dtype if mode == "compile" or signature.chance(0.8) else signature.one_of(DTYPES)
    edge_kind = draw.one_of(["normal", "ties", "constant", kind])
    if edge_kind in ("huge", "scales"):
        edge_kind = "normal"
    edge = replace(_draw_edge(draw, form, edges, width, edge_dtype, edge_kind), combine=combine)
    result = dtype if form == "none" else torch.promote_types(dtype, edge_dtype)
    if not chosen:
        most = 3 if mode == "interpreter" else 6
        classes = signature.some_of(every_aggregator(), most)
        chosen = tuple(draw_aggregator(draw, c, edges, width, sum_type(result)) for c in classes)
    shape = (batch.graph.num_receivers, len(chosen), width)
    upstream = draw.normal(*shape).to(result).double()
    layout = "plain" if mode in ("vmap", "compile") else signature.one_of(LAYOUTS)
    return AggregateCase(
        batch.graph, x, dtype, edge, chosen, upstream, layout, mode, members, settings.device
    )


def _draw_edge(
    draw: Draw, form: str, edges: int, width: int, dtype: torch.dtype, kind: str
) -> EdgeTerm:
    values: tuple[Tensor, ...] = ()
    if form == "dense":
        values = (draw_values(draw, kind, edges, width, dtype),)
    elif form == "weights":
        values = (draw_values(draw, kind, edges, 1, dtype),)
    elif form == "table":
        types = draw.signature.one_of([1, 3, 5, 20])
        values = (draw_values(draw, "normal", types, width, dtype), draw.below(types, edges))
    elif form == "coefficients":
        depth = draw.signature.integer(1, 4)
        sizes = ((edges, depth), (depth, width))
        values = tuple(draw_values(draw, "normal", *size, dtype) for size in sizes)
    return EdgeTerm(form, values, dtype)
