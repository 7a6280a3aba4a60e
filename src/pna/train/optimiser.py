"""Adam for a population: every member with its own learning rate, decay and norm."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.ops.backend import choose

_BETAS, _EPS = (0.9, 0.999), 1e-8


class Adam:
    """Moves rows of weights (members, parameters) down their gradients, in place.

    `decoupled` takes the decay out of the gradient, as AdamW. Everything is a tensor on the
    device, so that a step can be captured.
    """

    def __init__(self, weights: Tensor, clip: float | None, decoupled: bool) -> None:
        self.clip, self.decoupled = clip, decoupled
        self.mean = torch.zeros_like(weights, requires_grad=False)
        self.square = torch.zeros_like(weights, requires_grad=False)
        self.steps = torch.zeros_like(self.mean[:, 0])

    @torch.no_grad()
    def step(
        self, weights: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, allowed: Tensor
    ) -> Tensor:
        """One step with these rates (members,); members that are not `allowed`, or whose weights
        would not be finite, stay put. Says which of them did move, (members,)."""
        if self.clip is not None:
            norm = grad.norm(dim=1, keepdim=True)
            grad = grad * (self.clip / norm.clamp(min=self.clip))
        if weights.dtype == torch.float32 and choose(weights.device) == "triton":
            return self._step_in_kernels(weights, grad, lr, weight_decay, allowed)
        decay = weight_decay[:, None]
        if not self.decoupled:
            grad = torch.addcmul(grad, weights, decay)
        steps = self.steps + 1
        first, second = _BETAS
        mean = torch.lerp(self.mean, grad, 1 - first)
        square = torch.lerp(self.square, grad * grad, 1 - second)
        rate = (lr / (1 - first**steps))[:, None]
        root = (square / (1 - second**steps)[:, None]).sqrt()
        moved = weights - rate * mean / (root + _EPS)
        if self.decoupled:
            moved = moved - (lr[:, None] * decay) * weights
        allowed = allowed & moved.isfinite().all(1)
        rows = allowed[:, None]
        weights.copy_(torch.where(rows, moved, weights))
        self.mean.copy_(torch.where(rows, mean, self.mean))
        self.square.copy_(torch.where(rows, square, self.square))
        self.steps.copy_(torch.where(allowed, steps, self.steps))
        return allowed

    def _step_in_kernels(
        self, weights: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, allowed: Tensor
    ) -> Tensor:
        """The same step, where a kernel for each operation would cost more than the step."""
        from pna.ops.triton import adam

        moments = (self.mean, self.square, self.steps)
        rates = (lr, weight_decay, allowed)
        return adam.step(weights, grad, *moments, *rates, _BETAS, _EPS, self.decoupled)

    def state(self) -> dict[str, Tensor]:
        """What is to be kept of it: tensors with a row for each member."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}
