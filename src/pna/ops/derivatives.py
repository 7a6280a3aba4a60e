"""Gradients inside a backward pass, which autograd can differentiate again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pna.torch_internals import in_transform, is_batch_of_gradients


def gradients_of(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Any],
    needs: Sequence[bool],
    upstream: Sequence[Tensor | None],
    create_graph: bool,
) -> tuple[Sequence[Tensor], list[Tensor | None]]:
    """Return ``function(*inputs)``, and the gradients of the inputs, None if they need none.

    `upstream` are the gradients of the results. With `create_graph`, results and gradients are
    recorded as functions of the inputs and of `upstream`.
    """
    places = [place for place, need in enumerate(needs) if need]

    def run(*wanted: Tensor) -> tuple[Tensor, ...]:
        given = list(inputs)
        for place, tensor in zip(places, wanted, strict=True):
            given[place] = tensor
        return tuple(function(*given))

    wanted = [inputs[place] for place in places]
    differentiate = _by_transform if in_transform() else _by_autograd
    results, found = differentiate(run, wanted, upstream, create_graph)
    gradients: list[Tensor | None] = [None] * len(inputs)
    for place, gradient in zip(places, found, strict=True):
        gradients[place] = gradient
    return results, gradients


_Derived = tuple[Sequence[Tensor], Sequence[Tensor | None]]


def _by_autograd(
    run: Callable[..., tuple[Tensor, ...]],
    wanted: list[Tensor],
    upstream: Sequence[Tensor | None],
    create_graph: bool,
) -> _Derived:
    with torch.enable_grad():
        # aliases: an input may be a function of another one, whose gradient must not reach that
        wanted = [t.view_as(t) for t in wanted]
        results = run(*wanted)
    pairs = zip(results, upstream, strict=True)
    known = [(y, grad) for y, grad in pairs if grad is not None and y.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(wanted)
    if known and wanted:
        outputs, grads = zip(*known, strict=True)
        found = torch.autograd.grad(
            outputs, wanted, grads, create_graph=create_graph, allow_unused=True
        )
    return results if create_graph else [y.detach() for y in results], found


def _by_transform(
    run: Callable[..., tuple[Tensor, ...]],
    wanted: list[Tensor],
    upstream: Sequence[Tensor | None],
    create_graph: bool,
) -> _Derived:
    """The same inside `torch.func`, whose batches autograd does not see into."""
    found: Any = torch.func.vjp(run, *wanted)
    results, pull = found
    pairs = zip(results, upstream, strict=True)
    return results, pull(tuple(torch.zeros_like(y) if g is None else g for y, g in pairs))


def refuse_batch(grads: Sequence[Tensor | None], of: str) -> None:
    """Raise if an upstream gradient is a batch of gradients, as torch's older vmap makes it."""
    if any(is_batch_of_gradients(grad) for grad in grads if grad is not None):
        raise RuntimeError(
            f"got a batch of gradients (vectorize=True or is_grads_batched=True), which {of} does "
            "not take; torch.func.jacrev and torch.func.vjp with vmap do the same"
        )


def no_autocast(device: torch.device) -> Any:
    """A context without autocast, whose kernels take one dtype."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
