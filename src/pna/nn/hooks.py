"""Which modules must be called, and which may have their weights read instead."""

from __future__ import annotations

from torch import nn


def is_hooked(module: nn.Module) -> bool:
    """Whether a call does more than the forward of the module's class.

    True with forward or backward hooks (pruning, summaries, sharding) and where one module was
    given a forward of its own. Global hooks, which torch calls for every module, do not count.
    """
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in module.__dict__
    )


def may_be_read(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call is the forward of `kind` and nothing else, so that its weights say it all.

    That of a parametrised module is: reading its weight computes it.
    """
    return type(module).forward is kind.forward and not is_hooked(module)
