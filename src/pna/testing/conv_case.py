"""A case of `pna.nn.PNAConv` for `fuzz`. The definition makes every message.

Results are compared graph by graph, in norm. The allowed error is a multiple of the change that the
definition shows when inputs, weights and every product move by a unit in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import pna
import pna.nn
from pna import aggregators as table
from pna.testing import definition
from pna.testing.aggregate_case import draw_aggregator, drawn_aggregators
from pna.testing.definition import Graph
from pna.testing.draw import Draw, draw_batch, draw_values, halves, literal, rounder
from pna.testing.settings import BACKENDS, Settings
from pna.testing.tolerance import PICKS, Bound

_SAMPLES, _TIMES = 3, 32

#: Messages may tie that differ by at most so often what samples show.
_NEAR = 8

_SCALERS = {
    "identity": ("power", 0.0),
    "amplification": ("power", 1.0),
    "attenuation": ("power", -1.0),
    "linear": ("linear", 1.0),
    "inverse_linear": ("linear", -1.0),
}


@dataclass(frozen=True)
class ConvCase:
    graph: Graph
    owner: Tensor  # (nodes,): to which graph a node belongs
    x: Tensor
    form: str  # of edge_attr: "none", "dense" or "table"
    edge: tuple[Tensor, ...]
    dtype: torch.dtype
    aggregators: tuple[Any, ...]
    scalers: tuple[str, ...]
    options: dict[str, Any]  # of PNAConv
    histogram: Tensor
    upstream: Tensor
    mode: str
    device: str

    def layer(self) -> Any:
        torch.manual_seed(0)
        layer = pna.nn.PNAConv(
            self.x.shape[1],
            self.upstream.shape[1],
            list(self.aggregators),
            list(self.scalers),
            pna.DegreeStats.from_histogram(self.histogram),
            **self.options,
        )
        return layer.to(self.device, self.dtype)

    def run(self) -> dict[str, Tensor]:
        layer = self.layer()
        x = self.x.to(self.device, self.dtype).requires_grad_()
        leaves = {"x": x, **dict(layer.named_parameters())}
        edge: Any = None
        if self.form != "none":
            leaves["edge"] = self.edge[0].to(self.device, self.dtype).requires_grad_()
            edge = leaves["edge"]
        if self.form == "table":
            edge = (edge, self.edge[1].to(self.device))
        index = torch.stack([self.graph.senders, self.graph.receivers]).to(self.device)
        if self.mode in BACKENDS:
            with pna.backend(BACKENDS[self.mode]):
                out = layer(x, index, edge)
        elif self.mode == "compile":
            out = _compiled(layer)(dict(layer.named_parameters()), x, index)
        else:  # one member of a population of one
            parameters = {k: v[None] for k, v in layer.named_parameters()}
            out = torch.vmap(
                lambda own: torch.func.functional_call(layer, own, (x, index, edge)),
            )(parameters)[0]
        given = list(leaves.values())
        upstream = self.upstream.to(self.device, self.dtype)
        gradients = torch.autograd.grad(out, given, upstream, allow_unused=True)
        results = {"out": out}
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            results[name] = torch.zeros_like(leaf) if gradient is None else gradient
        return {name: value.detach().double().cpu() for name, value in results.items()}

    def define(
        self, unit: float, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Output and gradients by the formulas, with all numbers moved by `unit`; and the messages
        of which an aggregator picks one."""
        layer = self.layer().double().cpu()

        def moved(values: Tensor, size: Tensor | None = None) -> Tensor:
            draw = torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1
            return values + unit * draw * (values if size is None else size).detach()

        leaves = {"x": moved(self.x)} | {k: moved(v) for k, v in layer.named_parameters()}
        if self.form != "none":
            leaves["edge"] = moved(self.edge[0])
        leaves = {k: v.detach().requires_grad_() for k, v in leaves.items()}

        def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            out = inputs @ weight.t() + bias
            if unit:
                out = moved(out, inputs.abs() @ weight.abs().t() + bias.abs())
                out.register_hook(moved)  # what is summed in the backward pass is rounded too
            return out

        picked_from: list[Tensor] = []
        out = self._formula(layer, leaves, linear, picked_from)
        gradients = torch.autograd.grad(
            out, list(leaves.values()), self.upstream, allow_unused=True
        )
        results = {"out": out.detach()}
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            results[name] = torch.zeros_like(leaf) if gradient is None else gradient
        return results, picked_from

    def _formula(
        self, layer: Any, leaves: dict[str, Tensor], linear: Any, picked_from: list[Tensor]
    ) -> Tensor:
        x, graph = leaves["x"], self.graph
        towers = layer.towers
        width = x.shape[1] // towers if layer.divide_input else x.shape[1]
        features = None
        if self.form != "none":
            features = leaves["edge"] if self.form == "dense" else leaves["edge"][self.edge[1]]
            if layer.edge_encoder is not None:
                weights = (leaves[f"edge_encoder.{n}"] for n in ("weight", "bias"))
                features = linear(features, *weights)
        chosen = []
        for a in self.aggregators:
            is_std = a == "std"
            chosen.append(table.Std(clamp=self.options.get("std") == "pyg") if is_std else a)
        swapped = [
            self.options.get("swap_extrema", False) and isinstance(a, table.Max | table.Min)
            for a in chosen
        ]
        outs = []
        for tower in range(towers):
            own = x[:, tower * width : (tower + 1) * width] if layer.divide_input else x
            at_receiver, at_sender = own[graph.receivers], own[graph.senders]
            columns: list[Tensor] = []
            for aggregator, is_swapped in zip(chosen, swapped, strict=True):
                ends = (at_sender, at_receiver) if is_swapped else (at_receiver, at_sender)
                inputs = torch.cat([*ends, *([] if features is None else [features])], 1)
                messages = self._layers(layer, "pre", leaves, linear, tower, inputs)
                if isinstance(aggregator, PICKS):
                    picked_from.append(messages.detach())
                columns.append(definition.aggregate(graph, messages, [aggregator])[:, 0])
            together = torch.cat([own, *self._scaled(layer, leaves, columns)], 1)
            outs.append(self._layers(layer, "post", leaves, linear, tower, together))
        out = torch.cat(outs, 1)
        if layer.lin is None:
            return out
        return linear(out, leaves["lin.weight"], leaves["lin.bias"])

    @staticmethod
    def _layers(
        layer: Any, which: str, leaves: dict[str, Tensor], linear: Any, tower: int, inputs: Tensor
    ) -> Tensor:
        for k in range(len(getattr(layer, which))):
            inputs = inputs.relu() if k > 0 else inputs
            weight, bias = (leaves[f"{which}.{k}.{name}"][tower] for name in ("weight", "bias"))
            inputs = linear(inputs, weight, bias)
        return inputs

    def _scaled(self, layer: Any, leaves: dict[str, Tensor], columns: list[Tensor]) -> list[Tensor]:
        """Scaler by scaler, all aggregates."""
        degree = self.graph.in_degree()
        degrees = torch.arange(len(self.histogram)).double()
        nodes = self.histogram.sum()
        mean = (degrees * self.histogram).sum() / nodes
        mean_log = ((degrees + 1).log() * self.histogram).sum() / nodes
        scaled = []
        for name in self.scalers:
            kind, alpha = _SCALERS[name]
            delta = mean if kind == "linear" else mean_log
            key = "mean_degree" if kind == "linear" else "mean_log_degree"
            delta = leaves.get(f"neighbourhood.{key}", delta)
            factor = definition.scaler(kind, degree, torch.tensor(alpha).double(), delta)
            scaled += [factor[:, None] * column for column in columns]
        return scaled

    def expected(self) -> tuple[ConvCase, dict[str, Bound]]:
        generator = torch.Generator().manual_seed(0)
        wants, messages = self.define(0.0, generator)
        work = torch.float64 if self.dtype == torch.float64 else torch.float32
        coarse = self.dtype not in (torch.float64, torch.float32)
        unit = torch.finfo(self.dtype if coarse else work).eps / 2
        samples = [self.define(unit, generator) for _ in range(_SAMPLES)]
        doubt = self._near_ties(messages, [picked_from for _, picked_from in samples])
        bounds = {}
        for name, want in wants.items():
            if (coarse or doubt) and name != "out":
                continue
            changes = [(s[name] - want) for s, _ in samples]
            local = name in ("out", "x")
            bounds[name] = self._bound(want, changes, unit, local)
        return self, bounds

    def _near_ties(self, messages: list[Tensor], moved: list[list[Tensor]]) -> bool:
        """Whether rounding may decide which message an aggregator picks."""
        owner = self.graph.receivers
        for i, exact in enumerate(messages):
            changes = torch.stack([(sample[i] - exact).abs() for sample in moved]).amax(0)
            at = owner[:, None].expand_as(changes)
            reach = changes.new_zeros(self.graph.num_receivers, changes.shape[1])
            reach = _NEAR * reach.scatter_reduce(0, at, changes, "amax")
            by_value = exact.argsort(0)
            order = by_value.gather(0, owner[by_value].argsort(dim=0, stable=True))
            values, own = exact.gather(0, order), owner[order]
            apart, same = values.diff(dim=0), own.diff(dim=0) == 0
            if (same & (apart > 0) & (apart <= reach.gather(0, own)[1:])).any():
                return True
        return False

    def _bound(self, want: Tensor, changes: list[Tensor], unit: float, local: bool) -> Bound:
        """Within a graph every number may be off by as much as their norm is."""
        error, settled = torch.zeros_like(want), torch.ones_like(want, dtype=torch.bool)
        parts = [self.owner == g for g in self.owner.unique()] if local else [slice(None)]
        # beyond this, a power or a product may overflow
        order = max([2, *(a.order for a in self.aggregators if isinstance(a, table.Moment))])
        work = torch.float64 if self.dtype == torch.float64 else torch.float32
        limit = torch.finfo(work).max ** (1 / (order + 1))
        for part in parts:
            size = max([float(c[part].norm()) for c in changes], default=0.0)
            whole = float(want[part].norm())
            inside, upstream = (v[part] if local else v for v in (self.x, self.upstream))
            # what is exactly 0 in truth may be far below the rounding of its terms
            least = (
                0.01 * unit * (1 + float(inside.detach().norm())) * float(upstream.norm()) + 1e-30
            )
            error[part] = _TIMES * (size + unit * whole) + least
            large = bool((inside.abs() > limit).any()) or not whole < torch.finfo(work).max
            settled[part] = not large
        return Bound(want, error, settled, self.dtype)

    def simpler(self) -> Iterator[ConvCase]:
        if self.mode in ("vmap", "compile"):
            yield replace(self, mode="triton" if self.device == "cuda" else "c")
        for name in list(self.options):
            if name not in ("edge_dim", "towers"):
                yield replace(self, options={k: v for k, v in self.options.items() if k != name})
        if self.form != "none":
            options = {k: v for k, v in self.options.items() if k != "edge_dim"}
            yield replace(self, form="none", edge=(), options=options)
        for i in range(len(self.aggregators)):
            if len(self.aggregators) > 1:
                yield replace(self, aggregators=self.aggregators[:i] + self.aggregators[i + 1 :])
        for i in range(len(self.scalers)):
            if len(self.scalers) > 1:
                yield replace(self, scalers=self.scalers[:i] + self.scalers[i + 1 :])
        if not any(isinstance(getattr(a, "weight", None), Tensor) for a in self.aggregators):
            for keep in halves(len(self.graph.senders)):
                yield self._with_edges(keep)
        graph, used = self.graph, torch.cat([self.graph.senders, self.graph.receivers]).unique()
        if len(used) < graph.num_senders:
            ends = [torch.searchsorted(used, e) for e in (graph.senders, graph.receivers)]
            yield replace(
                self,
                graph=Graph(ends[0], ends[1], len(used), len(used)),
                x=self.x[used],
                owner=self.owner[used],
                upstream=self.upstream[used],
            )
        for x in rounder(self.x, self.dtype):
            yield replace(self, x=x)

    def _with_edges(self, keep: list[int]) -> ConvCase:
        graph = self.graph
        edge = self.edge
        if self.form == "dense":
            edge = (edge[0][keep],)
        elif self.form == "table":
            edge = (edge[0], edge[1][keep])
        graph = replace(graph, senders=graph.senders[keep], receivers=graph.receivers[keep])
        return replace(self, graph=graph, edge=edge)

    def script(self, bounds: dict[str, Bound]) -> str:
        aggregators = "[" + ", ".join(repr(a) for a in self.aggregators) + "]"
        ends = torch.stack([self.graph.senders, self.graph.receivers])
        lines = ["import torch", "from torch import tensor", "import pna"]
        lines += ["from pna.aggregators import *", "", "torch.manual_seed(0)"]
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        lines.append(
            f"conv = pna.nn.PNAConv({self.x.shape[1]}, {self.upstream.shape[1]}, {aggregators}, "
            f"{list(self.scalers)}, pna.DegreeStats.from_histogram({self.histogram.tolist()})"
            f"{options}).to({self.dtype})"
        )
        lines.append(f"x = {literal(self.x, self.dtype)}.requires_grad_()")
        lines.append(f"edge_index = {literal(ends)}")
        edge = "None"
        if self.form != "none":
            lines.append(f"edge = {literal(self.edge[0], self.dtype)}.requires_grad_()")
            edge = "edge" if self.form == "dense" else f"(edge, {literal(self.edge[1])})"
        if self.mode in BACKENDS:
            lines.append(f"with pna.backend({BACKENDS[self.mode]!r}):")
        else:
            lines.append(f"if True:  # under {self.mode}")
        lines.append(f"    out = conv(x, edge_index, {edge})")
        lines.append(f"    out.backward({literal(self.upstream, self.dtype)})")
        for name, bound in bounds.items():
            got = "out.detach()" if name == "out" else f"{name}.grad"
            if name not in ("out", "x", "edge"):
                got = f"dict(conv.named_parameters())[{name!r}].grad"
            lines.append(f"print({name!r}, {got})")
            lines.append(f"# expected: {bound.value.tolist()}")
        return "\n".join(lines)


_programs: dict[str, Any] = {}


def _compiled(layer: Any) -> Callable[..., Tensor]:
    """One program for all layers that differ in nothing but their weights."""
    key = str(layer)
    if key not in _programs:

        def program(parameters: dict[str, Tensor], x: Tensor, index: Tensor) -> Tensor:
            return torch.func.functional_call(layer, parameters, (x, index))

        _programs[key] = torch.compile(program, dynamic=True)
    return _programs[key]


def draw_case(draw: Draw, settings: Settings) -> ConvCase:
    mode = draw.one_of(*settings.modes())
    batch = draw_batch(draw, square=True, largest="window" if mode == "compile" else "small")
    edges, nodes = len(batch.graph.senders), batch.graph.num_senders
    towers = draw.one_of([1, 2, 4], [3, 2, 1])
    width = towers * draw.one_of([1, 3, 5, 9])
    out = towers * draw.one_of([1, 4, 7])
    dtype = draw.one_of([torch.float64, torch.float32, torch.bfloat16], [2, 5, 1])
    if mode == "compile":
        dtype, width, out, towers = torch.float32, 6, 4, 2
    kinds = [k for k in ("normal", "scales", "offset") if k not in settings.without]
    x = draw_values(draw, draw.one_of(kinds), nodes, width, dtype, batch.of_sender)
    aggregators: list[Any] = []
    for kind in draw.some_of(drawn_aggregators(mode, settings), 4):
        aggregator = draw_aggregator(draw, kind, edges, width, torch.float32)
        if isinstance(aggregator, table.Softmax):  # learned ones are cases of pna.aggregate
            aggregator = kind(draw.one_of([1.0, -1.5]), None)
        elif isinstance(aggregator, table.Moment):  # odd ones are decided by rounding at degree 2
            aggregator = table.Moment(draw.one_of([4, 6]))
        elif isinstance(aggregator, table.Std) and draw.chance(0.5):
            aggregator = "std"
        aggregators.append(aggregator)
    scalers = tuple(dict.fromkeys(draw.some_of(list(_SCALERS), 3)))
    histogram = torch.bincount(batch.graph.in_degree(), minlength=2)
    histogram[1] += 1
    options: dict[str, Any] = {"towers": towers}
    form = draw.one_of(["none", "dense", "table"])
    if mode == "compile":
        form, aggregators = "none", ["std", table.Mean(), table.Max(), table.Softmax()]
        scalers, histogram = ("identity", "amplification"), torch.tensor([1, 2, 3])
    edge: tuple[Tensor, ...] = ()
    if form != "none":
        edge_dim = draw.one_of([1, 4, 20])
        options["edge_dim"] = edge_dim
        if draw.chance(0.3):
            options["encode_edges"] = False
        types = draw.whole(1, 5)
        rows = edges if form == "dense" else types
        edge = (draw_values(draw, "normal", rows, edge_dim, dtype),)
        edge += () if form == "dense" else (draw.below(types, edges),)
    if mode != "compile":
        choices = {
            "pre_layers": 2, "post_layers": 2, "divide_input": True, "train_norm": True,
            "std": "pyg", "swap_extrema": True, "mixing": False,
        }  # fmt: skip
        options |= {k: v for k, v in choices.items() if draw.chance(0.2)}
    upstream = draw.normal(nodes, out).to(dtype).double()
    return ConvCase(
        batch.graph, batch.of_sender, x, form, edge, dtype, tuple(aggregators), scalers, options,
        histogram, upstream, mode, settings.device,
    )  # fmt: skip
