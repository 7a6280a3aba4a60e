"""Which modules must be called, and which may have their weights read instead."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

#: Hooks that torch calls for every module; it changes these mappings in place.
_FOR_ALL = (
    _global_forward_pre_hooks,
    _global_forward_hooks,
    _global_backward_pre_hooks,
    _global_backward_hooks,
)


def is_hooked(module: nn.Module) -> bool:
    """Whether a call does more than the forward of the module's class.

    True with forward or backward hooks (pruning, summaries, sharding), of the module or of all
    modules, and where one module was given a forward of its own.
    """
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in module.__dict__
        or any(_FOR_ALL)
    )


def all_are_hooked() -> bool:
    """Whether torch calls hooks for every module, as after `register_module_forward_hook`."""
    return any(_FOR_ALL)


def may_be_read(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call is the forward of `kind` and nothing else, so that its weights say it all.

    That of a parametrised module is: reading its weight computes it.
    """
    return type(module).forward is kind.forward and not is_hooked(module)
