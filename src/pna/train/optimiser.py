"""Adam for a population: every member has its own learning rate, weight decay and clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose

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
        if self.clip is not None:
            norm = grad.norm(dim=1, keepdim=True)
            grad = grad * (self.clip / norm.clamp(min=self.clip))
        by_kernel = weights.dtype == torch.float32 and choose(weights.device) == "triton"
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

    def state_dict(self) -> dict[str, Tensor]:
        """Its state: tensors with a row for each member."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}
