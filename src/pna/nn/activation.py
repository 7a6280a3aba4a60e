"""Activations by name, as in PyG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pna.names import lookup

_ACTIVATIONS = {
    name.lower(): getattr(nn, name) for name in nn.modules.activation.__all__ if name[0].isupper()
}
_ACTIVATIONS["swish"] = nn.SiLU  # as PyG calls it


def activation(
    act: str | Callable[[Tensor], Tensor] | None, arguments: dict[str, Any] | None = None
) -> Callable[[Tensor], Tensor]:
    """An activation from its name, such as "relu", "leaky_relu" or "LeakyReLU".

    `arguments` are passed to the module that is named. A callable is returned as it is; None gives
    the identity.
    """
    if act is None:
        return nn.Identity()
    if isinstance(act, str):
        name = act.lower().replace("_", "").replace(" ", "")
        return lookup("activation", name, _ACTIVATIONS)(**(arguments or {}))
    if isinstance(act, type):
        raise TypeError(
            f"got act={act.__name__}, a class, expected the name of an activation, a module or a "
            f"function; write {act.__name__}()"
        )
    if not callable(act):
        raise TypeError(
            f"got act of type {type(act).__name__}, expected the name of an activation, a module "
            "or a function"
        )
    return act
