"""Whether a module must be called, or its weights can be used directly instead."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

#: Hooks that torch calls for every module. Torch changes these mappings in place.
_FOR_ALL = (
    _global_forward_pre_hooks,
    _global_forward_hooks,
    _global_backward_pre_hooks,
    _global_backward_hooks,
)


def is_hooked(module: nn.Module) -> bool:
    """Whether a call does more than the forward of the module's class.

    True if it has forward or backward hooks (pruning, summaries, sharding), if all modules have,
    or if this instance was given a forward of its own.
    """
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in module.__dict__
        or all_are_hooked()
    )


def all_are_hooked() -> bool:
    """Whether torch calls hooks for every module, as after `register_module_forward_hook`."""
    return any(_FOR_ALL)


def may_be_read(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call does nothing but the forward of `kind`, so that its weights can be used.

    This holds for a parametrised module too: reading its weight computes it.
    """
    return type(module).forward is kind.forward and not is_hooked(module)
