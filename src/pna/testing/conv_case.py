"""A case of `pna.nn.PNAConv` for `fuzz`. The definition computes every message.

Results are compared graph by graph, in norm. The allowed error is a multiple of the change of the
definition when inputs, weights and every product move by a unit in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import pna
import pna.nn
from pna import aggregators as table
from pna.degree import Linear, Power
from pna.testing import definition, shrink
from pna.testing.definition import EdgeList
from pna.testing.draw import Draw, draw_aggregator, draw_batch, draw_values, every_aggregator
from pna.testing.edge_term import EdgeTerm
from pna.testing.execution import BACKENDS, FuzzSettings, compiled, output_and_gradients
from pna.testing.script import inputs, literal, write
from pna.testing.tolerance import PICKS, Bound, sum_type

_SAMPLES, _TIMES = 3, 32

#: Messages may tie if they differ by at most this multiple of the change in samples.
_NEAR = 8

#: Gradients of softmax are not compared if samples move an exponent by more.
_EXPONENT = 1e-3

SCALERS = {
    "identity": (Power, 0.0),
    "amplification": (Power, 1.0),
    "attenuation": (Power, -1.0),
    "linear": (Linear, 1.0),
    "inverse_linear": (Linear, -1.0),
}


@dataclass(frozen=True)
class _Decisive:
    """Messages from which aggregators pick one, and exponents of softmax: (edges, features)."""

    picks: list[Tensor] = field(default_factory=list)
    exponents: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class ConvCase:
    graph: EdgeList
    owner: Tensor  # (nodes,): to which graph a node belongs
    x: Tensor
    edge: EdgeTerm  # edge_attr: none, dense or a table
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
        leaves = {"x": self.x} | self.edge.leaves()
        leaves = {k: v.to(self.device, self.dtype).detach() for k, v in leaves.items()}
        for value in leaves.values():
            value.requires_grad_()
        x, edge = leaves["x"], self.edge.argument(leaves | self.edge.index(self.device))
        parameters = dict(layer.named_parameters())
        ends = self.graph.edge_index.to(self.device)

        def call(own: dict[str, Tensor], *inputs: Any) -> Tensor:
            return torch.func.functional_call(layer, own, inputs)

        if self.mode in BACKENDS:
            with pna.backend(BACKENDS[self.mode]):
                out = layer(x, ends, edge)
        elif self.mode == "compile":  # one program for layers that differ in weights alone
            out = compiled(str(layer), call)(parameters, x, ends)
        else:  # one member of a population of one
            population = {k: v[None] for k, v in parameters.items()}
            out = torch.vmap(lambda own: call(own, x, ends, edge))(population)[0]
        upstream = self.upstream.to(self.device, self.dtype)
        return output_and_gradients(out, leaves | parameters, upstream)

    def define(
        self, unit: float, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], _Decisive]:
        """Output and gradients by the formulas, with all numbers moved by `unit`; and the
        values that decide where gradients go."""
        layer = self.layer().double().cpu()

        def moved(values: Tensor, size: Tensor | None = None) -> Tensor:
            draw = torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1
            return values + unit * draw * (values if size is None else size).detach()

        leaves = {"x": self.x, **dict(layer.named_parameters()), **self.edge.leaves()}
        leaves = {k: moved(v).detach().requires_grad_() for k, v in leaves.items()}

        def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            out = inputs @ weight.t() + bias
            if unit:
                out = moved(out, inputs.abs() @ weight.abs().t() + bias.abs())
                out.register_hook(moved)  # what is summed in the backward pass is rounded too
            return out

        decisive = _Decisive()
        out = self._formula(layer, leaves, linear, decisive)
        return output_and_gradients(out, leaves, self.upstream), decisive

    def _formula(
        self, layer: Any, leaves: dict[str, Tensor], linear: Any, decisive: _Decisive
    ) -> Tensor:
        x, graph = leaves["x"], self.graph
        towers = layer.towers
        width = x.shape[1] // towers if layer.divide_input else x.shape[1]
        features = self.edge.argument(leaves | self.edge.index("cpu"))
        if self.edge.form == "table":
            features = features[0][features[1]]
        if features is not None and layer.edge_encoder is not None:
            features = linear(features, *(leaves[f"edge_encoder.{n}"] for n in ("weight", "bias")))
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
                    decisive.picks.append(messages.detach())
                elif isinstance(aggregator, table.Softmax):
                    temperature = torch.as_tensor(aggregator.temperature).detach().cpu()
                    decisive.exponents.append(temperature * messages.detach())
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
        """All aggregates, times each scaler in turn."""
        degree = self.graph.in_degree()
        degrees = torch.arange(len(self.histogram)).double()
        nodes = self.histogram.sum()
        mean = (degrees * self.histogram).sum() / nodes
        mean_log = ((degrees + 1).log() * self.histogram).sum() / nodes
        scaled = []
        for name in self.scalers:
            kind, alpha = SCALERS[name]
            key, delta = ("mean_degree", mean) if kind is Linear else ("mean_log_degree", mean_log)
            delta = leaves.get(f"neighbourhood.{key}", delta)
            factor = definition.scaler(kind, degree, alpha, delta)
            scaled += [factor[:, None] * column for column in columns]
        return scaled

    def expected(self) -> tuple[ConvCase, dict[str, Bound]]:
        generator = torch.Generator().manual_seed(0)
        wants, decisive = self.define(0.0, generator)
        coarse = self.dtype not in (torch.float64, torch.float32)
        unit = torch.finfo(self.dtype).eps / 2
        samples = [self.define(unit, generator) for _ in range(_SAMPLES)]
        moved = [d for _, d in samples]
        doubt = self._near_ties(decisive.picks, [d.picks for d in moved])
        for i, exponent in enumerate(decisive.exponents):
            by = torch.stack([d.exponents[i] for d in moved]) - exponent
            doubt = doubt or bool((by.abs() > _EXPONENT).any())
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
        """The error of each number may be as large as that of the norm over its graph."""
        error, settled = torch.zeros_like(want), torch.ones_like(want, dtype=torch.bool)
        parts = [self.owner == g for g in self.owner.unique()] if local else [slice(None)]
        # beyond this, a power or a product may overflow
        order = max([2, *(a.order for a in self.aggregators if isinstance(a, table.Moment))])
        work = sum_type(self.dtype)
        limit = torch.finfo(work).max ** (1 / (order + 1))
        spread = any(a == "std" or isinstance(a, table.Std | table.Var) for a in self.aggregators)
        for part in parts:
            size = max([float(c[part].norm()) for c in changes], default=0.0)
            result_norm = float(want[part].norm())
            inside, upstream = (v[part] if local else v for v in (self.x, self.upstream))
            # what is exactly 0 in truth may be far below the rounding of its terms; those of std
            # and var are up to 16 times what is left of them: deviations may be taken from 0
            terms = (1 + float(inside.detach().norm())) * float(upstream.norm())
            least = (1 if spread else 0.01) * unit * terms + 1e-30
            error[part] = _TIMES * (size + unit * result_norm) + least
            large = bool((inside.abs() > limit).any()) or not result_norm < torch.finfo(work).max
            settled[part] = not large
        return Bound(want, error, settled, self.dtype)

    def simpler(self) -> Iterator[ConvCase]:
        yield from shrink.without_transform(self)
        for name in list(self.options):
            if name not in ("edge_dim", "towers"):
                yield replace(self, options={k: v for k, v in self.options.items() if k != name})
        if self.edge.form != "none":
            options = {k: v for k, v in self.options.items() if k != "edge_dim"}
            yield replace(self, edge=EdgeTerm(), options=options)
        for keep in shrink.all_but_one(len(self.aggregators)):
            yield replace(self, aggregators=tuple(self.aggregators[k] for k in keep))
        for keep in shrink.all_but_one(len(self.scalers)):
            yield replace(self, scalers=tuple(self.scalers[k] for k in keep))
        graph = self.graph
        if not any(isinstance(getattr(a, "weight", None), Tensor) for a in self.aggregators):
            for keep in shrink.halves(len(graph.senders)):
                yield shrink.with_edges(self, keep)
        used = torch.cat([graph.senders, graph.receivers]).unique()
        if len(used) < graph.num_senders:
            fewer = replace(self, graph=shrink.with_nodes(graph, used, used))
            yield shrink.select(fewer, used.tolist(), x=0, owner=0, upstream=0)
        for x in shrink.rounder(self.x, self.dtype):
            yield replace(self, x=x)

    def script(self, bounds: dict[str, Bound]) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        leaves = {"x": self.x} | self.edge.leaves()
        setup = [
            "torch.manual_seed(0)",
            f"conv = pna.nn.PNAConv({self.x.shape[1]}, {self.upstream.shape[1]}, "
            f"{list(self.aggregators)}, {list(self.scalers)}, "
            f"pna.DegreeStats.from_histogram({self.histogram.tolist()}){options})"
            f".to({self.device!r}, {self.dtype})",
            *inputs(self.device, {name: (values, self.dtype) for name, values in leaves.items()}),
            f"edge_index = {literal(self.graph.edge_index)}",
            *(f"{name} = {literal(value)}" for name, value in self.edge.index("cpu").items()),
        ]

        def gradient(name: str) -> str:
            return f"{name}.grad" if name in leaves else f"conv.get_parameter({name!r}).grad"

        call = f"conv(x, edge_index, {self.edge.written()})"
        return write(setup, self.mode, call, literal(self.upstream, self.dtype), bounds, gradient)


def draw_case(draw: Draw, settings: FuzzSettings) -> ConvCase:
    signature = draw.signature
    mode = signature.one_of(*settings.modes())
    batch = draw_batch(draw, square=True, largest="window" if mode == "compile" else "small")
    edges, nodes = len(batch.graph.senders), batch.graph.num_senders
    towers = signature.one_of([1, 2, 4], [3, 2, 1])
    width = towers * signature.one_of([1, 3, 5, 9])
    out = towers * signature.one_of([1, 4, 7])
    dtype = signature.one_of([torch.float64, torch.float32, torch.bfloat16], [2, 5, 1])
    if mode == "compile":
        dtype, width, out, towers = torch.float32, 6, 4, 2
    kind = draw.one_of(["normal", "scales", "offset"])
    x = draw_values(draw, kind, nodes, width, dtype, batch.of_sender)
    aggregators: list[Any] = []
    for cls in signature.some_of(every_aggregator(), 4):
        aggregator = draw_aggregator(draw, cls, edges, width, torch.float32)
        if isinstance(aggregator, table.Softmax):  # learned ones are cases of pna.aggregate
            aggregator = cls(draw.one_of([1.0, -1.5]), None)
        elif isinstance(aggregator, table.Moment):  # odd ones are decided by rounding at degree 2
            aggregator = table.Moment(draw.one_of([4, 6]))
        elif isinstance(aggregator, table.Std) and signature.chance(0.5):
            aggregator = "std"
        aggregators.append(aggregator)
    scalers = tuple(dict.fromkeys(signature.some_of(list(SCALERS), 3)))
    histogram = torch.bincount(batch.graph.in_degree(), minlength=2)
    histogram[1] += 1
    options: dict[str, Any] = {"towers": towers}
    form = signature.one_of(["none", "dense", "table"])
    if mode == "compile":
        form, aggregators = "none", ["std", table.Mean(), table.Max(), table.Softmax()]
        scalers, histogram = ("identity", "amplification"), torch.tensor([1, 2, 3])
    edge = EdgeTerm()
    if form != "none":
        edge_dim = signature.one_of([1, 4, 20])
        options["edge_dim"] = edge_dim
        if signature.chance(0.3):
            options["encode_edges"] = False
        types = signature.integer(1, 5)
        rows = edges if form == "dense" else types
        features = draw_values(draw, "normal", rows, edge_dim, dtype)
        index = () if form == "dense" else (draw.below(types, edges),)
        edge = EdgeTerm(form, (features, *index), dtype)
    if mode != "compile":
        choices = {
            "pre_layers": 2, "post_layers": 2, "divide_input": True, "train_norm": True,
            "std": "pyg", "swap_extrema": True, "mixing": False,
        }  # fmt: skip
        options |= {k: v for k, v in choices.items() if signature.chance(0.2)}
    upstream = draw.normal(nodes, out).to(dtype).double()
    return ConvCase(
        batch.graph, batch.of_sender, x, edge, dtype, tuple(aggregators), scalers, options,
        histogram, upstream, mode, settings.device,
    )  # fmt: skip
