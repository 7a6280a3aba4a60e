"""Batch normalisation that ignores padding and spans all processes of a run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.nn.batch_context import Level, row_info
from pna.ops.backend import choose
from pna.population.all_reduce import world_size
from pna.population.batch_norm import Norm, batch_norm
from pna.torch_internals import is_batched


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d` over the rows that are not padding, in all processes.

    A batch of one row is normalised with the running statistics, also in training, because one row
    has no variance.

    Args:
        width: features of a row.
        level: whether a row belongs to a "node", a "graph" or an "edge".
        eps: added to the variance.
        momentum: weight of the batch in the running statistics.
        relu: apply a ReLU to the output, which costs nothing on a GPU.

    Shapes:
        - **x**: (rows, width), **factors**: (rows,), which multiply the rows of x first; optional
        - **output**: (rows, width)
    """

    running_mean: Tensor
    running_var: Tensor
    changing = ("running_mean", "running_var")  # each member of a population has its own

    def __init__(
        self,
        width: int,
        level: Level = "node",
        eps: float = 1e-5,
        momentum: float = 0.1,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.level, self.eps, self.momentum, self.relu = level, eps, momentum, relu
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor, factors: Tensor | None = None) -> Tensor:
        real = row_info(self.level).real
        state = self.weight, self.bias, self.running_mean, self.running_var
        own = real is not None or world_size() > 1 or x.shape[0] < 2
        if self.training and (own or _is_of_many(self.running_mean)):
            norm = Norm(*state, self.momentum, self.eps)
            return batch_norm(x, real, norm, self.relu, factors)
        weight, bias, mean, var = state
        x = x if factors is None else x * factors[:, None]
        given = x.to(weight.dtype)
        y = F.batch_norm(given, mean, var, weight, bias, self.training, self.momentum, self.eps)
        y = y.to(x.dtype)
        return torch.relu(y) if self.relu else y

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, level={self.level!r}{', relu' if self.relu else ''}"


def _is_of_many(state: Tensor) -> bool:
    """Whether this is vmap on a GPU with a state per member, where torch's gradients are slow."""
    batched = is_batched(state)
    return batched and choose(state.device) == "triton"
