"""The degree-scaled product: the arguments of its kernels, and its definition in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.ops.request import wide_type


@dataclass(frozen=True)
class Product:
    """Σ_r factors[i, r] · (z_i + shift_i) W_r in every tower, see `degree_linear`."""

    z: Tensor  # (receivers, A, towers, K)
    weight: Tensor  # (R, towers, A·K, outputs)
    factors: Tensor  # (receivers, R), each monotone in the order by_degree
    shift: Tensor | None  # (receivers, towers, K)
    times: Sequence[int]  # how often each of A is shifted: 0, 1, or 2 for once per neighbour
    indptr: Tensor  # (receivers + 1,) first edge of every receiver
    by_degree: Tensor  # (receivers,) sorted by what the factors are a function of

    def shifted_z(self) -> Tensor:
        return shifted(self.z, self.shift, self.times, self.indptr.diff())


def definition(z: Tensor, weight: Tensor, factors: Tensor, base: Tensor | None = None) -> Tensor:
    """`degree_linear` of shifted z in plain torch, one product per factor.

    factors may also be (receivers, R, towers), if each tower has its own."""
    factors = factors.to(z.dtype)
    factors = factors[:, :, None] if factors.dim() == 2 else factors
    total = base
    for r in range(weight.shape[0]):
        scaled = factors[:, r, :, None] * through(z, weight[r])
        total = scaled if total is None else total + scaled
    assert total is not None
    return total


def shifted(z: Tensor, shift: Tensor | None, times: Sequence[int], lengths: Tensor) -> Tensor:
    """z with `shift` added: never (times = 0), once (1), or once per neighbour (2)."""
    if shift is None or not any(times):
        return z
    lengths = lengths.to(wide_type(z.dtype))  # half precision may not represent it
    often = (torch.zeros_like(lengths), torch.ones_like(lengths), lengths)
    added = torch.stack([often[n] for n in times], 1)[:, :, None, None] * shift[:, None]
    return z + added.to(z.dtype)


def through(z: Tensor, weight: Tensor) -> Tensor:
    """Multiply z (n, A, towers, K) by weight (towers, A·K, outputs): (n, towers, outputs)."""
    if weight.shape[0] == 1:
        return (z.flatten(1) @ weight[0])[:, None]
    return torch.bmm(z.permute(2, 0, 1, 3).flatten(2), weight).transpose(0, 1)
