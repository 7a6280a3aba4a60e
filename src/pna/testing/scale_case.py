"""A case of `pna.scale` for `fuzz`: aggregates times functions of the degree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import pna
from pna.degree import Linear, Power
from pna.testing import shrink
from pna.testing.definition import scaler
from pna.testing.draw import DTYPES, Draw, draw_values
from pna.testing.execution import FuzzSettings, output_and_gradients
from pna.testing.script import inputs, literal, write
from pna.testing.tolerance import Bound, sum_type


@dataclass(frozen=True)
class ScaleCase:
    aggregates: Tensor  # (receivers, aggregators, features), float64, as are all numbers here
    degree: Tensor
    scalers: tuple[type[Power | Linear], ...]
    alpha: Tensor  # (scalers,)
    delta: Tensor  # (scalers,)
    upstream: Tensor
    dtype: torch.dtype
    device: str

    def leaves(self) -> dict[str, tuple[Tensor, torch.dtype]]:
        """The tensors that have a gradient, and their types."""
        work = sum_type(self.dtype)
        return {
            "aggregates": (self.aggregates, self.dtype),
            "alpha": (self.alpha, work),
            "delta": (self.delta, work),
        }

    def run(self) -> dict[str, Tensor]:
        """What pna gives: "out", and the gradient of every leaf, in float64."""
        leaves = {
            name: values.to(self.device, dtype).requires_grad_()
            for name, (values, dtype) in self.leaves().items()
        }
        each = zip(self.scalers, leaves["alpha"], leaves["delta"], strict=True)
        scalers = [kind(alpha, delta) for kind, alpha, delta in each]
        out = pna.scale(leaves["aggregates"], self.degree.to(self.device), scalers)
        return output_and_gradients(out, leaves, self.upstream.to(self.device, self.dtype))

    def expected(self) -> tuple[ScaleCase, dict[str, Bound]]:
        """Every factor is off by some units in the last place, times its exponent."""
        one = torch.ones_like(self.alpha)
        base, factor = self._factors(one), self._factors(self.alpha)  # (receivers, scalers)
        exponent = float(factor.log().abs().amax()) if factor.numel() else 0.0
        unit = torch.finfo(sum_type(self.dtype)).eps
        unit = unit * (16 + 2 * exponent + 8 * float(self.alpha.abs().max()))
        growth = 1 + math.sqrt(max(self.aggregates.numel(), 1))
        factors = factor[:, :, None, None]
        out, terms = factors * self.aggregates[:, None], self.upstream * factors
        by_factor = self.upstream * self.aggregates[:, None]
        slopes, sizes = by_factor.sum((2, 3)), by_factor.abs().sum((2, 3))
        by_alpha, by_delta = factor * base.log(), -self.alpha * factor / self.delta
        near = factor * (1 + base.log().abs())
        return self, {
            "out": self._bound("aggregates", out, out.abs(), unit),
            "aggregates": self._bound("aggregates", terms.sum(1), terms.abs().sum(1), 4 * unit),
            "alpha": self._bound(
                "alpha", (by_alpha * slopes).sum(0), (near * sizes).sum(0), growth * unit
            ),
            "delta": self._bound(
                "delta", (by_delta * slopes).sum(0), (by_delta.abs() * sizes).sum(0), growth * unit
            ),
        }

    def _factors(self, alpha: Tensor) -> Tensor:
        each = zip(self.scalers, alpha, self.delta, strict=True)
        return torch.stack([scaler(kind, self.degree, a, d) for kind, a, d in each], 1)

    def _bound(self, leaf: str, value: Tensor, size: Tensor, relative: float) -> Bound:
        finfo = torch.finfo(self.dtype)
        error = (relative + 3 * finfo.eps) * size + finfo.tiny * (1 + size)
        return Bound(value, error, torch.ones_like(value, dtype=torch.bool), self.leaves()[leaf][1])

    def simpler(self) -> Iterator[ScaleCase]:
        """Cases with fewer scalers, receivers and features."""
        for left in shrink.all_but_one(len(self.scalers)):
            fewer = replace(self, scalers=tuple(self.scalers[k] for k in left))
            yield shrink.select(fewer, left, alpha=0, delta=0, upstream=1)
        for rows in shrink.halves(len(self.degree)):
            yield shrink.select(self, rows, degree=0, aggregates=0, upstream=0)
        for columns in shrink.halves(self.aggregates.shape[2]):
            yield shrink.select(self, columns, aggregates=2, upstream=3)

    def script(self, bounds: dict[str, Bound]) -> str:
        scalers = [f"{s.__name__}(alpha[{i}], delta[{i}])" for i, s in enumerate(self.scalers)]
        setup = ["from pna.degree import Linear, Power", *inputs(self.device, self.leaves())]
        call = f"pna.scale(aggregates, {literal(self.degree)}, [{', '.join(scalers)}])"
        return write(setup, None, call, literal(self.upstream, self.dtype), bounds)


def draw_case(draw: Draw, settings: FuzzSettings) -> ScaleCase:
    rows, count, width = draw.integer(0, 20), draw.integer(1, 4), draw.integer(1, 9)
    dtype = draw.one_of(DTYPES)
    scalers = draw.integer(1, 4)
    kind = draw.one_of(["normal", "zeros", "offset", "tiny"])
    aggregates = draw_values(draw, kind, rows, count * width, dtype).view(rows, count, width)
    return ScaleCase(
        aggregates,
        draw.below(draw.one_of([3, 30, 100_000]), rows),
        tuple(draw.one_of([Power, Linear]) for _ in range(scalers)),
        draw.normal(scalers).clamp(-1, 1).float().double(),
        (draw.normal(scalers).abs() + 0.3).float().double(),
        draw.normal(rows, scalers, count, width).to(dtype).double(),
        dtype,
        settings.device,
    )
