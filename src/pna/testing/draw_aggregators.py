"""Random aggregators for `fuzz`."""

from __future__ import annotations

from typing import Any

import torch

from pna import aggregators as table
from pna.testing.draw import Draw
from pna.testing.settings import Settings


def every_aggregator() -> list[type]:
    """The classes of `pna.aggregators`."""
    found = [c for c in vars(table).values() if isinstance(c, type)]
    return [c for c in found if issubclass(c, table.Aggregator) and c is not table.Aggregator]


def drawn_aggregators(mode: str, settings: Settings) -> list[type]:
    """Those to draw from: all, but for var and std of kernels where "spread" is left out."""
    spread = "spread" not in settings.without or mode == "reference"
    return [c for c in every_aggregator() if spread or c not in (table.Var, table.Std)]


def draw_aggregator(draw: Draw, kind: type, edges: int, features: int, dtype: torch.dtype) -> Any:
    """One of a class, with options; its tensors are float64 numbers that `dtype` can hold."""
    if kind is table.Std:
        return table.Std(draw.signature.one_of([1e-5, 1e-5, 1e-3]), draw.signature.chance(0.4))
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
