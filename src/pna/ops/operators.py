"""How the operators of this package are made known to torch: gradients, also inside `torch.func`.

`torch.library.register_autograd` would do the same at three times the cost of a small call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from pna import torch_internals as internals

library = torch.library.Library("pna", "FRAGMENT")

INSTEAD = "run it inside `with pna.backend('reference'):`"


def no_forward_mode(ctx: Any, *_: Any) -> Any:
    """In place of the `jvp` of a function that has none."""
    raise RuntimeError(
        "got a derivative in forward mode (torch.func.jvp, jacfwd, hessian), which the fast "
        f"kernels do not have; {INSTEAD}"
    )


class Function(internals.SingleLevelFunction):
    """What gradients of an operator are derived from."""

    jvp = staticmethod(no_forward_mode)


def below_autograd(operator: Any, keyset: Any, inputs: Sequence[Any]) -> Any:
    """Run the operator itself from inside the `forward` of its `Function`.

    There nothing is recorded, which is meant for one level of derivatives: inside `torch.func` the
    levels around it are met on the way down, and would be taken for constant.
    """
    with contextlib.ExitStack() as around:
        if internals.in_transform():
            around.enter_context(torch.enable_grad())
            around.enter_context(internals.set_forward_mode(True))
        around.enter_context(internals.below_autograd())
        return operator.redispatch(keyset & internals.keys_after_autograd, *inputs)


def differentiate(name: str, function: type[Function]) -> None:
    """Give the operator the gradients of `function`, whose `forward` takes a keyset first.

    The transforms of `torch.func` hand one level at a time to a kernel that autograd dispatches
    to, which is all that is needed; the `apply` of a plain `torch.autograd.Function` refuses to
    run there.
    """

    run: Callable[..., Any] = function.apply  # type: ignore[attr-defined]

    def apply(keyset: Any, *inputs: Any) -> Any:
        if not internals.in_transform():
            return run(keyset, *inputs)
        with internals.single_level():
            return run(keyset, *inputs)

    library.impl(name, apply, "Autograd", with_keyset=True)


def differentiate_once(name: str, of: str) -> None:
    """Refuse the gradients of an operator that is itself a gradient, that `of` what is named."""

    class Once(Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, shape: Any, *flat: Any) -> Any:
            inputs = tree_unflatten(flat, shape)
            return below_autograd(getattr(torch.ops.pna, name).default, keyset, inputs)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(
                f"got a second derivative of {of}, which its fast kernels do not have; {INSTEAD}"
            )

    class Flat:
        """`Once` of tensors one by one: autograd sees into no list."""

        @staticmethod
        def apply(keyset: Any, *inputs: Any) -> Any:
            flat, shape = tree_flatten(inputs)
            run: Any = Once
            return run.apply(keyset, shape, *flat)

    differentiate(name, Flat)  # type: ignore[arg-type]


def one_by_one(name: str) -> Callable[..., Any]:
    """A vmap rule for gradients: met only where a derivative itself is vmapped, as in
    `torch.func.jacrev`."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        pairs = list(zip(arguments, in_dims, strict=True))
        results = [
            getattr(torch.ops.pna, name)(
                *[a.select(d, i).contiguous() if isinstance(d, int) else a for a, d in pairs]
            )
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(r) for r in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def fold(tensor: Tensor, dim: int | None, axis: int, batch: int) -> Tensor:
    """The members of a vmap joined to an axis, in front of what it holds; a view, if that has
    length 1."""
    if dim is None:
        shape = (*tensor.shape[:axis], batch, *tensor.shape[axis:])
        return tensor.unsqueeze(axis).expand(shape).flatten(axis, axis + 1)
    return tensor.movedim(dim, axis).flatten(axis, axis + 1)


def room(tensor: Tensor | None, needed: bool, like: Tensor) -> Tensor:
    """An empty gradient of `tensor`; of no length where none is needed."""
    if tensor is None or not needed:
        return like.new_empty(0)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
