"""The registry of convolutions: everything that models need to know about each, by its name.

A module of `pna.nn.conv` registers its layers below their definition, so a new convolution is one
new file there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Literal, get_args

from pna.nn.conv.base import Conv

#: Which part of a batch the steps of a recurrent model may be restricted to, when its other graphs
#: take no more steps (`pna.front`): "all" nodes; the first nodes in the kernels for "recurrence"
#: only; or the "first" nodes also where the layer is called by itself.
Restriction = Literal["all", "recurrence", "first"]


@dataclass(frozen=True)
class Entry:
    """A registered convolution: how it is made, and how models use it.

    Args:
        make: the layer's class, or a `functools.partial` of it.
        act: activation after the layer by default; None for none.
        restriction: which nodes a recurrent step may be restricted to.
        gated: whether models multiply the last node states by a `Gate`.
        pooled: whether models read graphs through a `ClusterReadout` as well.
    """

    make: Callable[..., Conv]
    act: str | None
    restriction: Restriction
    gated: bool = False
    pooled: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.layer, type) and issubclass(self.layer, Conv)):
            raise TypeError(
                f"got {self.make!r}, expected a subclass of pna.nn.conv.base.Conv, or a "
                "functools.partial of one"
            )
        if self.restriction not in get_args(Restriction):
            raise ValueError(
                f"got restriction={self.restriction!r}, expected one of "
                + ", ".join(map(repr, get_args(Restriction)))
            )
        if self.edges and "edge_dim" not in signature(self.make).parameters:
            raise ValueError(
                f"got {self.layer.__name__} with takes_edge_features=True, whose __init__ takes no "
                "argument 'edge_dim'; add it, or set takes_edge_features=False"
            )

    @property
    def layer(self) -> type[Conv]:
        """The layer's class."""
        return self.make.func if isinstance(self.make, partial) else self.make  # type: ignore

    @property
    def edges(self) -> bool:
        """Whether the layer supports edge features."""
        return self.layer.takes_edge_features

    @property
    def degrees(self) -> bool:
        """Whether the layer takes the degrees of the training set, `deg`."""
        return "deg" in signature(self.make).parameters

    @property
    def towers(self) -> bool:
        """Whether the layer runs as towers."""
        return "towers" in signature(self.make).parameters

    @property
    def carries(self) -> bool:
        """Whether edges have states, which a stack hands from layer to layer."""
        return hasattr(self.layer, "update")


CONVOLUTIONS: dict[str, Entry] = {}


def register(name: str, entry: Entry) -> None:
    """Add a convolution under a name that no other has."""
    if name in CONVOLUTIONS:
        raise ValueError(f"got two convolutions called {name!r}, expected one; rename one of them")
    CONVOLUTIONS[name] = entry
