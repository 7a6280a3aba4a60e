"""The degree-scaled product: what its kernels are given, and its definition in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.ops.request import wide_type


@dataclass(frozen=True)
class Product:
    """Σ_r factors[i, r] · (z_i + shift) W_r in every tower, as `degree_linear` describes it."""

    z: Tensor  # (receivers, A, towers, K)
    weight: Tensor  # (R, towers, A·K, outputs)
    factors: Tensor  # (receivers, R), equal at receivers of equal degree
    shift: Tensor | None  # (receivers, towers, K)
    times: Sequence[int]  # for each of A: 0, 1, or 2 for as many times as there are neighbours
    indptr: Tensor  # (receivers + 1,) first edge of every receiver
    by_degree: Tensor  # (receivers,) sorted by degree

    def shifted_z(self) -> Tensor:
        return shifted(self.z, self.shift, self.times, self.indptr.diff())


def definition(z: Tensor, weight: Tensor, factors: Tensor, base: Tensor | None = None) -> Tensor:
    """`degree_linear` of shifted z in plain torch, one product for each factor.

    factors may also be (receivers, R, towers), where each tower has its own."""
    factors = factors.to(z.dtype)
    factors = factors[:, :, None] if factors.dim() == 2 else factors
    total = base
    for r in range(weight.shape[0]):
        scaled = factors[:, r, :, None] * through(z, weight[r])
        total = scaled if total is None else total + scaled
    assert total is not None
    return total


def shifted(z: Tensor, shift: Tensor | None, times: Sequence[int], degree: Tensor) -> Tensor:
    """z with `shift` added as often as `times` says: never, once, or (2) for each neighbour."""
    if shift is None or not any(times):
        return z
    degree = degree.to(wide_type(z.dtype))  # which half precision may not hold
    often = (torch.zeros_like(degree), torch.ones_like(degree), degree)
    added = torch.stack([often[n] for n in times], 1)[:, :, None, None] * shift[:, None]
    return z + added.to(z.dtype)


def through(z: Tensor, weight: Tensor) -> Tensor:
    """z (n, A, towers, K) through weight (towers, A·K, outputs): (n, towers, outputs)."""
    if weight.shape[0] == 1:
        return (z.flatten(1) @ weight[0])[:, None]
    return torch.bmm(z.permute(2, 0, 1, 3).flatten(2), weight).transpose(0, 1)
