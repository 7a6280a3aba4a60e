"""A case of `pna.scale` for `fuzz`: aggregates times functions of the degree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import pna
from pna.degree import Linear, Power
from pna.testing import shrink
from pna.testing.definition import scaler
from pna.testing.draw import DTYPES, Draw, draw_values
from pna.testing.script import leaf, literal, on_device, write
from pna.testing.settings import Settings
from pna.testing.tolerance import Bound, sum_type


@dataclass(frozen=True)
class ScaleCase:
    aggregates: Tensor  # (receivers, aggregators, features), float64, as are all numbers here
    degree: Tensor
    kinds: tuple[str, ...]  # "power" or "linear"
    alpha: Tensor  # (scalers,)
    delta: Tensor  # (scalers,)
    upstream: Tensor
    dtype: torch.dtype
    device: str

    @property
    def work(self) -> torch.dtype:
        return sum_type(self.dtype)

    def run(self) -> dict[str, Tensor]:
        given = self.aggregates.to(self.device, self.dtype).requires_grad_()
        alpha, delta = (
            [v.to(self.device, self.work).requires_grad_() for v in values.unbind()]
            for values in (self.alpha, self.delta)
        )
        makers = {"power": Power, "linear": Linear}
        each = zip(self.kinds, alpha, delta, strict=True)
        scalers = [makers[kind](a, d) for kind, a, d in each]
        out = pna.scale(given, self.degree.to(self.device), scalers)
        upstream = self.upstream.to(self.device, self.dtype)
        grad, *rest = torch.autograd.grad(out, [given, *alpha, *delta], upstream)
        count = len(alpha)
        results = {
            "out": out,
            "aggregates": grad,
            "alpha": torch.stack(rest[:count]),
            "delta": torch.stack(rest[count:]),
        }
        return {name: value.detach().double().cpu() for name, value in results.items()}

    def expected(self) -> tuple[ScaleCase, dict[str, Bound]]:
        """Every factor is off by some units in the last place, times its exponent."""
        each_scaler = zip(self.kinds, self.alpha, self.delta, strict=True)
        columns = [scaler(kind, self.degree, a, d) for kind, a, d in each_scaler]
        factor = torch.stack(columns, 1)  # (receivers, scalers)
        exponent = float(factor.log().abs().amax()) if factor.numel() else 0.0
        unit = torch.finfo(self.work).eps * (16 + 2 * exponent + 8 * float(self.alpha.abs().max()))
        last = 3 * torch.finfo(self.dtype).eps
        factors = factor[:, :, None, None]
        out = factors * self.aggregates[:, None]
        terms = self.upstream * factors
        bounds = {
            "out": self._bound(out, out.abs(), unit + last),
            "aggregates": self._bound(terms.sum(1), terms.abs().sum(1), 4 * unit + last),
        }
        per_factor = (self.upstream * self.aggregates[:, None]).sum((2, 3))
        size = (self.upstream * self.aggregates[:, None]).abs().sum((2, 3))
        growth = 1 + math.sqrt(max(self.aggregates.numel(), 1))
        for name in ("alpha", "delta"):
            value, most = torch.zeros_like(self.alpha), torch.zeros_like(self.alpha)
            for i, kind in enumerate(self.kinds):  # of this factor alone, receiver by receiver
                a, d = self.alpha[i], self.delta[i]
                f = factor[:, i]
                base = scaler(kind, self.degree, torch.ones(()).double(), d)
                each = f * base.log() if name == "alpha" else -a * f / d
                near = f * (1 + base.log().abs()) if name == "alpha" else each.abs()
                value[i] = (each * per_factor[:, i]).sum()
                most[i] = (near * size[:, i]).sum()
            bounds[name] = self._bound(value, most, growth * unit + last)
        return self, bounds

    def _bound(self, value: Tensor, size: Tensor, relative: float) -> Bound:
        tiny = torch.finfo(self.dtype).tiny * (1 + size)
        return Bound(
            value.detach(),
            (relative * size + tiny).detach(),
            torch.ones_like(value, dtype=torch.bool),
            self.dtype if value.dim() > 1 else self.work,
        )

    def simpler(self) -> Iterator[ScaleCase]:
        for left in shrink.all_but_one(len(self.kinds)):
            yield replace(
                self,
                kinds=tuple(self.kinds[k] for k in left),
                alpha=self.alpha[left],
                delta=self.delta[left],
                upstream=self.upstream[:, left],
            )
        for rows in shrink.halves(len(self.degree)):
            yield replace(
                self,
                degree=self.degree[rows],
                aggregates=self.aggregates[rows],
                upstream=self.upstream[rows],
            )
        for columns in shrink.halves(self.aggregates.shape[2]):
            yield replace(
                self,
                aggregates=self.aggregates[..., columns],
                upstream=self.upstream[..., columns],
            )

    def script(self, bounds: dict[str, Bound]) -> str:
        names = {"power": "Power", "linear": "Linear"}
        scalers = ", ".join(f"{names[k]}(alpha[{i}], delta[{i}])" for i, k in enumerate(self.kinds))
        setup = [
            "from pna.degree import Linear, Power",
            *on_device(self.device),
            leaf("alpha", self.alpha, self.work),
            leaf("delta", self.delta, self.work),
            leaf("aggregates", self.aggregates, self.dtype),
        ]
        call = f"pna.scale(aggregates, {literal(self.degree)}, [{scalers}])"
        return write(setup, None, call, literal(self.upstream, self.dtype), bounds)


def draw_case(draw: Draw, settings: Settings) -> Any:
    rows, count, width = draw.whole(0, 20), draw.whole(1, 4), draw.whole(1, 9)
    dtype = draw.one_of(DTYPES)
    scalers = draw.whole(1, 4)
    kind = draw.one_of(["normal", "zeros", "offset", "tiny"])
    aggregates = draw_values(draw, kind, rows, count * width, dtype).view(rows, count, width)
    return ScaleCase(
        aggregates,
        draw.below(draw.one_of([3, 30, 100_000]), rows),
        tuple(draw.one_of(["power", "linear"]) for _ in range(scalers)),
        draw.normal(scalers).clamp(-1, 1).float().double(),
        (draw.normal(scalers).abs() + 0.3).float().double(),
        draw.normal(rows, scalers, count, width).to(dtype).double(),
        dtype,
        settings.device,
    )
