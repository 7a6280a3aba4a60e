"""Adam for a population: every member has its own learning rate, weight decay and clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.population import adam_cpu

_BETAS, _EPS = (0.9, 0.999), 1e-8


class Adam:
    """Adam on weights (members, parameters), in place; with `decoupled` decay it is AdamW.

    All state is tensors on the device, so that a step can be captured.
    """

    def __init__(self, weights: Tensor, clip: float | None, decoupled: bool) -> None:
        self.clip, self.decoupled = clip, decoupled
        self.mean = torch.zeros_like(weights, requires_grad=False)
        self.square = torch.zeros_like(weights, requires_grad=False)
        self.steps = torch.zeros_like(self.mean[:, 0])

    @torch.no_grad()
    def step(
        self,
        weights: Tensor,
        grad: Tensor,
        lr: Tensor,
        weight_decay: Tensor,
        loss: Tensor,
        alive: Tensor,
        broken: Tensor,
    ) -> None:
        """One step of the members that are `alive`, (members,) bool, with rates `lr` (members,).

        A member whose `loss` (members, losses) or next weights are not finite keeps its weights;
        it becomes `broken` and not `alive`, in place.
        """
        clipped = None
        if self.clip is not None:
            clipped = self.clip / grad.norm(dim=1).clamp(min=self.clip)
        backend = choose(weights.device)
        if backend == "cpu" and adam_cpu.takes(weights) and fast_paths.is_on("adam"):
            goes = alive & loss.isfinite().all(1)
            numbers = self._numbers(lr, weight_decay, clipped)
            adam_cpu.step(weights, grad, self.mean, self.square, numbers, goes)
            self.steps += goes
            broken |= alive > goes
            alive &= goes
            return
        if clipped is not None:
            grad = grad * clipped[:, None]
        by_kernel = weights.dtype == torch.float32 and backend == "triton"
        if by_kernel and fast_paths.is_on("adam"):
            from pna.population.triton import adam

            moments = adam.Moments(self.mean, self.square, self.steps)
            settings = adam.AdamSettings(lr, weight_decay, _BETAS, _EPS, self.decoupled)
            loss = loss.to(weights.dtype)
            adam.step(weights, grad, moments, settings, loss, alive, broken)
            return
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
        goes = alive & loss.isfinite().all(1) & moved.isfinite().all(1)
        rows = goes[:, None]
        weights.copy_(torch.where(rows, moved, weights))
        self.mean.copy_(torch.where(rows, mean, self.mean))
        self.square.copy_(torch.where(rows, square, self.square))
        self.steps.copy_(torch.where(goes, steps, self.steps))
        broken |= alive > goes
        alive &= goes

    def _numbers(self, lr: Tensor, decay: Tensor, clipped: Tensor | None) -> Tensor:
        """What adam.c needs to know of each member, (members, 8)."""
        lr, decay, steps = lr.double(), decay.double(), self.steps.double() + 1
        one, (first, second) = torch.ones_like(lr), _BETAS
        return torch.stack(
            [
                one if clipped is None else clipped.double(),
                one * 0 if self.decoupled else decay,
                1 - lr * decay if self.decoupled else one,
                lr / (1 - first**steps),
                1 / (1 - second**steps),
                *(one * (1 - beta) for beta in _BETAS),
                one * _EPS,
            ],
            1,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Its state: tensors with a row for each member."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}
