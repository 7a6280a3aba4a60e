"""A case of `pna.aggregate` for `fuzz`: drawn, run, compared, made simpler and written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

import pna
from pna import aggregators as table
from pna.testing.definition import Graph
from pna.testing.draw import (
    DTYPES,
    LAYOUTS,
    VALUES,
    Draw,
    draw_batch,
    draw_values,
    halves,
    lay_out,
    literal,
    rounder,
)
from pna.testing.settings import BACKENDS, Settings
from pna.testing.tolerance import Arithmetic, Bound, Problem, Statistic, analyse

_FORMS = ("none", "dense", "table", "coefficients")

#: What is compiled: each list takes minutes the first time, so there are few.
_COMPILED = (
    ("none", (table.Mean(), table.Std(), table.Max(), table.Min())),
    ("table", (table.Var(), table.Softmax(), table.NormalisedMean(), table.Min())),
    ("dense", (table.Moment(3), table.KthSmallest(2), table.Sum(), table.Max())),
)


def every_aggregator() -> list[type]:
    """The classes of `pna.aggregators`."""
    found = [c for c in vars(table).values() if isinstance(c, type)]
    return [c for c in found if issubclass(c, table.Aggregator) and c is not table.Aggregator]


def drawn_aggregators(mode: str, settings: Settings) -> list[type]:
    """Those to draw from: all, but for var and std of kernels where "spread" is left out."""
    spread = "spread" not in settings.without or mode == "reference"
    return [c for c in every_aggregator() if spread or c not in (table.Var, table.Std)]


def draw_aggregator(draw: Draw, kind: type, edges: int, features: int, dtype: Any) -> Any:
    """One of a class, with options; its tensors are float64 numbers that `dtype` can hold."""
    if kind is table.Std:
        return table.Std(draw.one_of([1e-5, 1e-5, 1e-3]), draw.chance(0.4))
    if kind is table.Moment:
        return table.Moment(draw.whole(3, 6), draw.one_of([1e-5, 1e-3]), draw.chance(0.3))
    if kind is table.KthSmallest:
        return table.KthSmallest(draw.whole(1, 5))
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


@dataclass(frozen=True)
class AggregateCase:
    graph: Graph
    x: Tensor  # (senders, features), float64, as are all numbers here
    dtype: torch.dtype
    form: str
    edge: tuple[Tensor, ...]  # (e,), (table, index) or (coefficients, basis)
    edge_dtype: torch.dtype
    aggregators: tuple[Any, ...]
    upstream: Tensor  # (receivers, aggregators, features)
    layout: str
    mode: str
    members: int  # that vmap maps over
    device: str

    @property
    def result_dtype(self) -> torch.dtype:
        return (
            self.dtype if self.form == "none" else torch.promote_types(self.dtype, self.edge_dtype)
        )

    def leaves(self) -> dict[str, tuple[Tensor, torch.dtype]]:
        """Whatever has a gradient, by name: numbers and type."""
        found = {"x": (self.x, self.dtype)}
        names = {"dense": ("edge",), "table": ("table",), "coefficients": ("coefficients", "basis")}
        for name, values in zip(names.get(self.form, ()), self.edge, strict=False):
            found[name] = (values, self.edge_dtype)
        for i, aggregator in enumerate(self.aggregators):
            for name in ("temperature", "weight"):
                own = getattr(aggregator, name, None)
                if isinstance(own, Tensor):
                    found[f"{name}_{i}"] = (own, _work(self.result_dtype))
        return found

    def run(self) -> dict[str, Tensor]:
        """What pna gives: "out", and the gradient of every leaf, in float64."""
        leaves = {
            name: lay_out(values.to(dtype).to(self.device), self.layout if name == "x" else "plain")
            for name, (values, dtype) in self.leaves().items()
        }
        if self.layout != "plain" and "edge" in leaves:
            leaves["edge"] = lay_out(leaves["edge"], self.layout)
        for name in leaves:
            leaves[name] = leaves[name].detach().requires_grad_()
        out = self._forward(leaves)
        upstream = self.upstream.to(self.result_dtype).to(self.device)
        upstream = lay_out(upstream, "plain" if self.layout == "expanded" else self.layout)
        gradients = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
        results = {"out": out, **dict(zip(leaves, gradients, strict=True))}
        return {
            name: torch.zeros_like(leaves[name]).double().cpu()
            if value is None
            else value.detach().double().cpu()
            for name, value in results.items()
        }

    def _forward(self, leaves: dict[str, Tensor]) -> Tensor:
        index = torch.stack([self.graph.senders, self.graph.receivers]).to(self.device)
        sizes = (self.graph.num_senders, self.graph.num_receivers)
        at = self.edge[1].to(self.device) if self.form == "table" else None

        def call(index: Tensor, leaves: dict[str, Tensor], at: Tensor | None) -> Tensor:
            adjacency = pna.Adjacency.from_edge_index(index, sizes)
            return self._aggregate(adjacency, leaves, at)

        if self.mode in BACKENDS:
            with pna.backend(BACKENDS[self.mode]):
                return call(index, leaves, at)
        if self.mode == "compile":
            return _compiled(self)(index, leaves, at, *sizes)
        return self._vmapped(pna.Adjacency.from_edge_index(index, sizes), leaves, at)

    def _aggregate(
        self, adjacency: pna.Adjacency, leaves: dict[str, Tensor], at: Tensor | None
    ) -> Tensor:
        edge: Any = leaves.get("edge")
        if self.form == "table":
            edge = (leaves["table"], at)
        elif self.form == "coefficients":
            edge = (leaves["coefficients"], leaves["basis"])
        chosen = []
        for i, aggregator in enumerate(self.aggregators):
            names = [n for n in ("temperature", "weight") if f"{n}_{i}" in leaves]
            chosen.append(replace(aggregator, **{n: leaves[f"{n}_{i}"] for n in names}))
        return pna.aggregate(leaves["x"], adjacency, chosen, edge)

    def _vmapped(
        self, adjacency: pna.Adjacency, leaves: dict[str, Tensor], at: Tensor | None
    ) -> Tensor:
        """Features divided among members, each of which sees its own alone."""
        width = self.x.shape[1]
        folded, dims = {}, {}
        for name, leaf in leaves.items():
            split = leaf.dim() > 0 and leaf.shape[-1] == width and not name.startswith("weight")
            split = split and name != "coefficients"
            shape = (*leaf.shape[:-1], self.members, width // self.members)
            folded[name] = leaf.reshape(shape) if split else leaf
            dims[name] = leaf.dim() - 1 if split else None
        out = torch.vmap(
            lambda own: self._aggregate(adjacency, own, at), in_dims=(dims,), out_dims=2
        )(folded)
        return out.flatten(2)

    def arithmetic(self) -> Arithmetic:
        if self.form == "coefficients":
            steps = 2 + len(self.edge[1])
        else:
            steps = 0 if self.form == "none" else 1
        many = self.mode in ("reference", "compile") or self.dtype == torch.float64

        def growth(n: int) -> float:
            return 8 + (n if many else 4 * math.sqrt(n))

        return Arithmetic(self.result_dtype, growth, steps)

    def messages(self) -> tuple[Tensor, Tensor]:
        """Of every edge, and the sizes of what they are made from."""
        sent = self.x[self.graph.senders]
        if self.form == "none":
            return sent, sent.abs()
        if self.form == "coefficients":
            coefficients, basis = self.edge
            size = coefficients.abs() @ basis.abs()
            return sent + coefficients @ basis, sent.abs() + size
        term = self.edge[0] if self.form == "dense" else self.edge[0][self.edge[1]]
        return sent + term, sent.abs() + term.abs()

    def expected(self) -> tuple[AggregateCase, dict[str, Bound]]:
        """What the definition gives, and the case without gradients that are in doubt."""
        messages, size = self.messages()
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
        arithmetic = self.arithmetic()
        at_edges = self.upstream[graph.receivers]  # (edges, aggregators, features)
        total = _Terms.zeros(graph.senders.shape[0], width)
        for i, statistic in enumerate(found):
            total.add(at_edges[:, i], statistic.message)
        results = {"x": total.summed(graph.senders, graph.num_senders)}
        if self.form == "dense":
            results["edge"] = total
        elif self.form == "table":
            results["table"] = total.summed(self.edge[1], len(self.edge[0]))
        elif self.form == "coefficients":
            coefficients, basis = self.edge
            results["coefficients"] = total.times(basis, "ef,df->ed", width)
            results["basis"] = total.times(coefficients, "ef,ed->df", len(coefficients))
        for i, (statistic, aggregator) in enumerate(zip(found, self.aggregators, strict=True)):
            t, w = (getattr(aggregator, n, None) for n in ("temperature", "weight"))
            if isinstance(w, Tensor):
                terms = _Terms.zeros(len(graph.senders), width)
                terms.add(at_edges[:, i], statistic.weight)
                results[f"weight_{i}"] = terms.all_in(1)
            if isinstance(t, Tensor):
                terms = _Terms.zeros(graph.num_receivers, width)
                terms.add(self.upstream[:, i], statistic.temperature)
                terms = terms.all_in(0)
                results[f"temperature_{i}"] = terms if t.dim() else terms.all_in(0)
        return {
            name: terms.bound(arithmetic, self.leaves()[name][1]) for name, terms in results.items()
        }

    def simpler(self) -> Iterator[AggregateCase]:
        """Cases with less in them, those with much less first."""
        if self.mode in ("vmap", "compile"):
            plain = "triton" if self.device == "cuda" else "c"
            yield replace(self, mode=plain)
        if self.layout != "plain":
            yield replace(self, layout="plain")
        yield from self._without_idle_nodes()
        for i in range(len(self.aggregators)):
            if len(self.aggregators) > 1:
                left = [k for k in range(len(self.aggregators)) if k != i]
                yield replace(
                    self,
                    aggregators=tuple(self.aggregators[k] for k in left),
                    upstream=self.upstream[:, left],
                )
        if self.form != "none":
            yield replace(self, form="none", edge=())
        for keep in halves(self.x.shape[1]):
            if self.members == 1 or len(keep) % self.members == 0:
                yield self._with_features(keep)
        for keep in halves(len(self.graph.senders)):
            yield self._with_edges(keep)
        for other in rounder(self.x, self.dtype):
            yield replace(self, x=other)
        for other in rounder(self.upstream, self.result_dtype):
            yield replace(self, upstream=other)

    def _with_features(self, keep: list[int]) -> AggregateCase:
        edge = self.edge
        if self.form in ("dense", "table"):
            edge = (edge[0][:, keep], *edge[1:])
        elif self.form == "coefficients":
            edge = (edge[0], edge[1][:, keep])
        chosen = []
        for a in self.aggregators:
            t = getattr(a, "temperature", None)
            if isinstance(t, Tensor) and t.dim() > 0:
                a = replace(a, temperature=t[keep])
            chosen.append(a)
        return replace(
            self,
            x=self.x[:, keep],
            edge=edge,
            aggregators=tuple(chosen),
            upstream=self.upstream[..., keep],
        )

    def _with_edges(self, keep: list[int]) -> AggregateCase:
        graph = replace(
            self.graph, senders=self.graph.senders[keep], receivers=self.graph.receivers[keep]
        )
        edge = self.edge
        if self.form in ("dense", "coefficients"):
            edge = (edge[0][keep], *edge[1:])
        elif self.form == "table":
            edge = (edge[0], edge[1][keep])
        chosen = []
        for a in self.aggregators:
            weighted = isinstance(getattr(a, "weight", None), Tensor)
            chosen.append(replace(a, weight=a.weight[keep]) if weighted else a)
        return replace(self, graph=graph, edge=edge, aggregators=tuple(chosen))

    def _without_idle_nodes(self) -> Iterator[AggregateCase]:
        graph = self.graph
        senders, receivers = graph.senders.unique(), graph.receivers.unique()
        if (len(senders), len(receivers)) == (graph.num_senders, graph.num_receivers):
            return
        smaller = Graph(
            torch.searchsorted(senders, graph.senders),
            torch.searchsorted(receivers, graph.receivers),
            len(senders),
            len(receivers),
        )
        yield replace(self, graph=smaller, x=self.x[senders], upstream=self.upstream[receivers])

    def script(self, bounds: dict[str, Bound]) -> str:
        """Lines of Python that run this case and print each result beside the definition's."""
        graph, dtype = self.graph, self.dtype
        lines = ["import torch", "import pna", "from pna.aggregators import *", ""]
        ends = torch.stack([graph.senders, graph.receivers])
        sizes = (graph.num_senders, graph.num_receivers)
        lines.append(f"adj = pna.Adjacency.from_edge_index({literal(ends)}, {sizes})")
        lines.append(f"x = {literal(self.x, dtype)}.requires_grad_()")
        edge = {"none": "None", "dense": "edge", "table": "(table, index)"}
        for name, (values, kind) in self.leaves().items():
            if name != "x":
                lines.append(f"{name} = {literal(values, kind)}.requires_grad_()")
        if self.form == "table":
            lines.append(f"index = {literal(self.edge[1])}")
        chosen = ", ".join(_written(a, i) for i, a in enumerate(self.aggregators))
        form = edge.get(self.form, "(coefficients, basis)")
        if self.layout != "plain":
            lines.append(f"# x lies in memory as pna.testing.draw.lay_out(x, {self.layout!r})")
        if self.mode in BACKENDS:
            lines.append(f"with pna.backend({BACKENDS[self.mode]!r}):")
        else:
            lines.append(f"if True:  # under {self.mode}, of {self.members} members")
        lines.append(f"    out = pna.aggregate(x, adj, [{chosen}], {form})")
        lines.append(f"    out.backward({literal(self.upstream, self.result_dtype)})")
        for name, bound in bounds.items():
            got = "out.detach()" if name == "out" else f"{name}.grad"
            lines.append(f"print({name!r}, {got}.tolist())")
            lines.append(f"# expected: {bound.value.tolist()}")
        text = "\n".join(lines)
        return (
            text
            if self.device == "cpu"
            else "# on a GPU: torch.set_default_device('cuda')\n" + text
        )


@dataclass
class _Terms:
    """Numbers that are sums: their value, allowed error, sum without signs, and length."""

    value: Tensor
    error: Tensor
    size: Tensor
    defined: Tensor
    length: Tensor

    @staticmethod
    def zeros(*shape: int) -> _Terms:
        nothing = torch.zeros(shape, dtype=torch.float64)
        return _Terms(nothing, nothing, nothing, torch.ones(shape, dtype=torch.bool), nothing)

    def add(self, upstream: Tensor, slopes: Any) -> None:
        self.value = self.value + upstream * slopes.value
        self.error = self.error + (upstream * slopes.error).abs().nan_to_num(0, torch.inf)
        self.size = self.size + (upstream * slopes.value).abs()
        self.defined = self.defined & slopes.defined
        self.length = self.length + 1

    def _each(self, change: Callable[[Tensor], Tensor]) -> _Terms:
        undefined = change((~self.defined).double()) > 0
        return _Terms(
            change(self.value), change(self.error), change(self.size), ~undefined,
            change(self.length),
        )  # fmt: skip

    def summed(self, rows: Tensor, count: int) -> _Terms:
        return self._each(lambda v: v.new_zeros((count, v.shape[1])).index_add(0, rows, v))

    def all_in(self, dim: int) -> _Terms:
        return self._each(lambda v: v.sum(dim))

    def times(self, factors: Tensor, equation: str, length: int) -> _Terms:
        ones = torch.ones_like(factors)
        size = factors.abs()
        return _Terms(
            torch.einsum(equation, self.value, factors),
            torch.einsum(equation, self.error, size),
            torch.einsum(equation, self.size, size),
            torch.einsum(equation, (~self.defined).double(), ones) == 0,
            torch.einsum(equation, self.length, ones).clamp(max=length),
        )

    def bound(self, arithmetic: Arithmetic, dtype: torch.dtype) -> Bound:
        finfo = torch.finfo(dtype)
        growth = torch.as_tensor(
            [arithmetic.growth(int(n)) for n in self.length.flatten().unique()]
        )
        growth = growth.max() if len(growth) else torch.ones(())
        rounded = 0.0 if arithmetic.dtype == arithmetic.work else 2 * arithmetic.last_place
        error = self.error + (growth * arithmetic.unit + rounded) * self.size
        error = error + 1.5 * finfo.eps * self.value.abs() + finfo.tiny * finfo.eps
        return Bound(self.value, error, self.defined, dtype)


def _work(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _written(aggregator: Any, i: int) -> str:
    """An aggregator as Python, with its tensors by name."""
    parts = []
    for field in fields(aggregator):
        value = getattr(aggregator, field.name)
        parts.append(f"{field.name}_{i}" if isinstance(value, Tensor) else repr(value))
    return f"{type(aggregator).__name__}({', '.join(parts)})"


_programs: dict[Any, Any] = {}


def _compiled(case: AggregateCase) -> Callable[..., Tensor]:
    """One program for each list of aggregators and form of edges, whatever the sizes."""
    key = (case.form, *(type(a) for a in case.aggregators))
    if key not in _programs:

        def program(
            index: Tensor, leaves: dict[str, Tensor], at: Tensor | None, s: int, r: int
        ) -> Tensor:
            adjacency = pna.Adjacency.from_edge_index(index, (s, r))
            return case._aggregate(adjacency, leaves, at)

        _programs[key] = torch.compile(program, dynamic=True)
    return _programs[key]


def draw_case(draw: Draw, settings: Settings) -> AggregateCase:
    mode = draw.one_of(*settings.modes())
    largest = "window" if mode == "compile" else "small" if mode == "interpreter" else "hub"
    batch = draw_batch(draw, largest=largest)
    edges = len(batch.graph.senders)
    width = draw.one_of([1, 2, 3, 5, 8, 17, 33, 70, 130], [3, 3, 3, 3, 2, 2, 1, 0.5, 0.3])
    if edges * width > 200_000 or mode == "interpreter":
        width = draw.whole(1, 3)
    dtype = draw.one_of(DTYPES, [3, 5, 1.5, 1.5])
    form = draw.one_of(_FORMS, [4, 2, 2, 2])
    chosen: list[Any] | None = None
    if mode == "compile":
        form, listed = draw.one_of(_COMPILED)
        chosen, dtype = list(listed), torch.float32
    members = draw.one_of([1, 2, 3]) if mode == "vmap" else 1
    width = width * members if members > 1 else width
    kinds = [k for k in VALUES if k not in settings.without]
    kind = draw.one_of(kinds, [VALUES[k] for k in kinds])
    x = draw_values(draw, kind, batch.graph.num_senders, width, dtype, batch.of_sender)
    edge_dtype = dtype if mode == "compile" or draw.chance(0.8) else draw.one_of(DTYPES)
    edge: tuple[Tensor, ...] = ()
    edge_kind = draw.one_of(["normal", "ties", "constant", kind])
    if edge_kind in ("huge", "scales"):
        edge_kind = "normal"
    if form == "dense":
        edge = (draw_values(draw, edge_kind, edges, width, edge_dtype),)
    elif form == "table":
        types = draw.whole(1, 5)
        values = draw_values(draw, "normal", types, width, edge_dtype)
        edge = (values, draw.below(types, edges))
    elif form == "coefficients":
        depth = draw.whole(1, 4)
        edge = (
            draw_values(draw, "normal", edges, depth, edge_dtype),
            draw_values(draw, "normal", depth, width, edge_dtype),
        )
    result = dtype if form == "none" else torch.promote_types(dtype, edge_dtype)
    if chosen is None:
        most = 3 if mode == "interpreter" else 6
        kinds_of = draw.some_of(drawn_aggregators(mode, settings), most)
        chosen = [draw_aggregator(draw, c, edges, width, _work(result)) for c in kinds_of]
    shape = (batch.graph.num_receivers, len(chosen), width)
    upstream = draw.normal(*shape).to(result).double()
    layout = "plain" if mode in ("vmap", "compile") else draw.one_of(LAYOUTS)
    return AggregateCase(
        batch.graph, x, dtype, form, edge, edge_dtype, tuple(chosen), upstream, layout, mode,
        members, settings.device,
    )  # fmt: skip
