"""What every graph convolution of this package is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

#: Methods that PyG's `MessagePassing` calls, and no layer here does.
_OF_MESSAGE_PASSING = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")


class Conv(nn.Module):
    """A layer whose forward does all of its work; parts of it cannot be overridden one by one."""

    _own_methods: ClassVar[frozenset[str]] = frozenset()

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
