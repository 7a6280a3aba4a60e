"""A population: models of one shape with stacked weights, which run in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pna.data.batch import Batch
from pna.nn.architectures import Prediction
from pna.ops.streams import DeferredJoins

#: Parameters of a model from which the members of a population run one after another on a CPU.
_APART = 2**16


class Population:
    """K models of one shape, the members, with the same input and separate weights.

    All parameters are in one tensor `flat` (members, parameters). Buffers that training changes,
    such as running statistics, are stacked; modules list them in `changing`. Other buffers, such
    as δ, are those of the first model.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if len(models) == 0:
            raise ValueError("got no models, expected at least one member")
        self.model = models[0]
        # kept at fixed addresses for captured steps
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self.shapes = {name: p.shape for name, p in self.model.named_parameters()}
        uses = Counter(id(p) for _, p in self.model.named_parameters(remove_duplicate=False))
        self._is_tied = max(uses.values(), default=1) > 1
        self._untied = [name for name, p in self.model.named_parameters() if uses[id(p)] == 1]
        rows = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models]
        self.flat = torch.stack(rows).requires_grad_()
        self.buffers = {
            name: torch.stack([dict(m.named_buffers())[name] for m in models])
            for name in changing_buffers(self.model)
        }

    def __len__(self) -> int:
        return self.flat.shape[0]

    @property
    def device(self) -> torch.device:
        return self.flat.device

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Population:
        """Move the population, in place."""
        self.model.to(device, dtype)
        self._known.clear()
        self.flat = self.flat.detach().to(device, dtype).requires_grad_()
        self.buffers = {
            name: b.to(device, dtype if b.is_floating_point() else None)
            for name, b in self.buffers.items()
        }
        return self

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)

    def parameters_from(
        self, flat: Tensor, later: DeferredJoins | None = None
    ) -> dict[str, Tensor]:
        """Every parameter as (members, *shape), from a tensor like `flat`. Gradients are read after
        the streams of `later` are joined."""
        members = flat.shape[0]
        packed = _Repacked.apply(flat, *self._orders(members)) if members > 1 else flat.flatten()
        sizes = [members * shape.numel() for shape in self.shapes.values()]
        parts = packed.split(sizes) if later is None else _Split.apply(packed, sizes, later)
        return {
            name: part.view(members, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    @property
    def is_apart(self) -> bool:
        """Whether members run one after another instead of in one pass. On a CPU this is faster for
        all but small models, whose operations take less time than their calls."""
        return self.device.type == "cpu" and self.flat.shape[1] >= _APART

    def _of_row(self, row: Tensor) -> dict[str, Tensor]:
        """Every parameter of one member, from its row of `flat`."""
        parts = row.split([shape.numel() for shape in self.shapes.values()])
        return {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Every parameter as (members, *shape), as `parameters_from`, on any device and without
        gradients."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], 1)
        return {
            name: part.reshape(len(flat), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _orders(self, members: int) -> tuple[Tensor, Tensor]:
        """The permutation from (members, parameters) to one parameter after another, and its
        inverse."""
        if members not in self._known:
            sizes = [shape.numel() for shape in self.shapes.values()]
            numbers = torch.arange(members * sum(sizes), device=self.device).view(members, -1)
            order = torch.cat([part.flatten() for part in numbers.split(sizes, 1)])
            back = torch.empty_like(order).index_copy(0, order, numbers.flatten())
            self._known[members] = (order, back)
        return self._known[members]

    def apply(
        self,
        batch: Batch,
        measure: Callable[[Prediction], Tensor],
        flat: Tensor | None = None,
        buffers: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """`measure` of the prediction of each member, stacked: (members, …).

        Weights and buffers are those of the population, or others of the same shapes.
        """
        flat = self.flat if flat is None else flat
        buffers = self.buffers if buffers is None else buffers

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            own = {**parameters, **buffers}
            # searching for tied weights takes 1 ms
            return measure(functional_call(self.model, own, (batch,), tie_weights=self._is_tied))

        if self.is_apart:
            return torch.stack([
                one(self._of_row(row), {name: b[k] for name, b in buffers.items()})
                for k, row in enumerate(flat.unbind())
            ])  # fmt: skip
        later = DeferredJoins()
        parameters = self.parameters_from(flat, later)
        if len(self) == 1:  # without the overhead of vmap
            # the gradient of squeeze is a view; that of p[0] is a copy
            alone = {name: p.squeeze(0) for name, p in parameters.items()}
            later.own(alone[name] for name in self._untied)
            with later:
                return one(alone, {name: b[0] for name, b in buffers.items()})[None]
        return vmap(one, randomness="error")(parameters, buffers)

    def member(self, k: int) -> dict[str, Tensor]:
        """The state dictionary of one member."""
        stacked = {**self.parameters_from(self.flat.detach()), **self.buffers}
        return {name: tensor[k].clone() for name, tensor in stacked.items()}

    def keep(self, rows: Tensor) -> None:
        """Drop all members but these."""
        self.flat = self.flat.detach()[rows].clone().requires_grad_()
        self.buffers = {name: b[rows].clone() for name, b in self.buffers.items()}


class _Repacked(torch.autograd.Function):
    """A permutation and, for gradients, its inverse: one kernel each."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.shape = flat.shape
        return flat.flatten()[order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        return grad[back].view(ctx.shape), None, None


class _Split(torch.autograd.Function):
    """`Tensor.split`; gradients are read after the streams that compute them are joined."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, sizes: list[int], later: DeferredJoins) -> Any:
        ctx.later = later
        return packed.split(sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.later.join()
        return torch.cat(grads), None, None


def changing_buffers(model: nn.Module) -> list[str]:
    """Names of the buffers that training changes."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "changing", ())
    ]
