"""Gradients in `fuzz`: sums of upstream gradient × slope, and their allowed errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.testing.tolerance import Arithmetic, Bound


@dataclass
class Terms:
    """Sums: their value, allowed error, sum of |terms|, and number of terms."""

    value: Tensor
    error: Tensor
    size: Tensor
    defined: Tensor
    length: Tensor

    @staticmethod
    def zeros(*shape: int) -> Terms:
        nothing = torch.zeros(shape, dtype=torch.float64)
        return Terms(nothing, nothing, nothing, torch.ones(shape, dtype=torch.bool), nothing)

    def add(self, upstream: Tensor, slopes: Bound) -> None:
        self.value = self.value + upstream * slopes.value
        self.error = self.error + (upstream * slopes.error).abs().nan_to_num(0, torch.inf)
        self.size = self.size + (upstream * slopes.value).abs()
        self.defined = self.defined & slopes.settled
        self.length = self.length + 1

    def each(self, change: Callable[[Tensor], Tensor]) -> Terms:
        defined = change((~self.defined).double()) == 0
        value, error, size, length = map(change, (self.value, self.error, self.size, self.length))
        return Terms(value, error, size, defined, length)

    def scatter(self, rows: Tensor, count: int) -> Terms:
        """Sums of the terms of each row, (count, features)."""
        return self.each(lambda v: v.new_zeros((count, v.shape[1])).index_add(0, rows, v))

    def sum(self, dim: int) -> Terms:
        return self.each(lambda v: v.sum(dim))

    def scaled(self, factors: Tensor, size: Tensor) -> Terms:
        """Terms times factors, whose sums of |terms| are `size`. A product with a factor that is
        not finite is not defined: its term may be 0."""
        defined = self.defined & factors.isfinite()
        factors, size = factors.nan_to_num(0, 0, 0), size.nan_to_num(0, 0, 0)
        error = self.error * size + 1e-44  # a product may underflow in float32
        return Terms(self.value * factors, error, self.size * size, defined, self.length)

    def times(self, factors: Tensor, equation: str, length: int) -> Terms:
        ones = torch.ones_like(factors)
        size = factors.abs()
        return Terms(
            torch.einsum(equation, self.value, factors),
            torch.einsum(equation, self.error, size),
            torch.einsum(equation, self.size, size),
            torch.einsum(equation, (~self.defined).double(), ones) == 0,
            torch.einsum(equation, self.length, ones).clamp(max=length),
        )

    def bound(self, arithmetic: Arithmetic, dtype: torch.dtype) -> Bound:
        finfo = torch.finfo(dtype)
        growth = max([arithmetic.growth(int(n)) for n in self.length.unique()], default=1.0)
        rounded = 0.0 if arithmetic.dtype == arithmetic.work else 2 * arithmetic.last_place
        error = self.error + (growth * arithmetic.unit + rounded) * self.size
        error = error + 1.5 * finfo.eps * self.value.abs() + finfo.tiny * finfo.eps
        # beyond the range of the type, parts of the sum may be infinite, of either sign
        return Bound(self.value, error, self.defined & (self.size <= finfo.max), dtype)
