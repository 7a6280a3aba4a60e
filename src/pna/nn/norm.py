"""Batch normalisation that leaves padding out, and spans the processes of a run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.nn.current import rows
from pna.ops.across import processes, sum_of_all


class BatchNorm(nn.Module):
    """As `torch.nn.BatchNorm1d`, over the real rows of the batch at hand, in all processes.

    `level` says whether a row is of a "node" or of a "graph". A batch of one row is normalised
    with the running statistics, in training too, since its own variance is no variance.
    """

    running_mean: Tensor
    running_var: Tensor
    changing = ("running_mean", "running_var")  # each member of a population has its own

    def __init__(
        self, width: int, level: str = "node", eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.level, self.eps, self.momentum = level, eps, momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to (rows, width)."""
        dtype, x = x.dtype, x.to(self.weight.dtype)
        if rows(self.level).real is None and processes() == 1 and x.shape[0] > 1:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias,
                self.training, self.momentum, self.eps,
            ).to(dtype)  # fmt: skip
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = self._statistics(x)
        scale = self.weight * (var + self.eps).rsqrt()
        return torch.addcmul(self.bias - mean * scale, x, scale).to(dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the batch, which move the running ones."""
        real = rows(self.level).real
        mask = None if real is None else real[:, None].to(x.dtype)
        count = x.new_full((), float(x.shape[0])) if mask is None else mask.sum()
        total = sum_of_all(torch.cat([(x if mask is None else x * mask).sum(0), count[None]]))
        sums, count = total[:-1], total[-1]
        mean = sums / count.clamp(min=1)
        centred = (x - mean) if mask is None else (x - mean) * mask
        squares = sum_of_all((centred * centred).sum(0))
        var = squares / count.clamp(min=1)
        several = count > 1
        with torch.no_grad():
            share = self.momentum * several.to(x.dtype)
            unbiased = squares / (count - 1).clamp(min=1)
            self.running_mean += share * (mean - self.running_mean)
            self.running_var += share * (unbiased - self.running_var)
        return (
            torch.where(several, mean, self.running_mean),
            torch.where(several, var, self.running_var),
        )

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, level={self.level!r}"
