"""What every graph convolution of this package is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from pna.nn.hooks import all_are_hooked, is_hooked

#: Methods that PyG's `MessagePassing` calls, and no layer here does.
_OF_MESSAGE_PASSING = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")


class Conv(nn.Module):
    """A layer whose forward does all of its work; parts of it cannot be overridden one by one."""

    _own_methods: ClassVar[frozenset[str]] = frozenset()
    _warned = False

    def __init_subclass__(cls, own_methods: Sequence[str] = (), **kwargs: Any) -> None:
        """`own_methods`: names of `MessagePassing` that mean something else in this class."""
        super().__init_subclass__(**kwargs)
        cls._own_methods = cls._own_methods.union(own_methods)
        for name in _OF_MESSAGE_PASSING:
            if hasattr(cls, name) and name not in cls._own_methods:
                raise TypeError(
                    f"got {cls.__name__}.{name}, which would never be called, expected a subclass "
                    f"without {', '.join(_OF_MESSAGE_PASSING)}: these layers are not PyG's "
                    "MessagePassing; override forward and use pna.aggregate, or pass an "
                    "aggregator of your own"
                )

    def _warn_once(self, part: str) -> None:
        """Say, the first time, that a part is called as a module and that this is slower."""
        if self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        if all_are_hooked():
            cause = f"every module has hooks, parts of {self} too"
            remedy = "remove the hooks that were registered for every module"
        else:
            cause = f"{part} of {self} has hooks or was replaced"
            remedy = (
                "remove the hooks (of pruning: torch.nn.utils.prune.remove), or put them on the "
                "layer itself"
            )
        warnings.warn(
            f"{cause}: all parts are now called as modules, on tensors that are otherwise never "
            f"made. This is slower and takes more memory. For full speed {remedy}",
            stacklevel=5 + is_hooked(self),  # where the layer is called; torch calls hooks deeper
        )
