"""Makes PyG recognise `PNAConv` as one of its `MessagePassing` layers, as its explainers need."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn

from pna.nn.conv.base import OF_MESSAGE_PASSING

if TYPE_CHECKING:
    from pna.nn.conv.pna import PNAConv


def recognise(layer: PNAConv) -> None:
    """Let the layer be a `MessagePassing` too, if PyG has been imported."""
    pyg: Any = sys.modules.get("torch_geometric.nn.conv.message_passing")
    if pyg is not None and not isinstance(layer, pyg.MessagePassing):
        ours: Any = type(layer)
        layer.__class__ = joined(ours, pyg.MessagePassing)


class _Barrier(nn.Module):
    """Stands between our class and PyG's in the order of bases, and hides what PyG's would do."""

    node_dim = 0  # the axis of messages that `explain_message` masks

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)


@cache
def joined(ours: Any, theirs: Any) -> Any:
    """A subclass of a layer of this package and of one of PyG, which computes what ours does.

    Of PyG's methods it has `explain_message`. The others, which would have no effect, raise.
    """

    def reduce(self: PNAConv, protocol: Any) -> tuple[Any, ...]:
        """Only the name of `ours` is saved, so that PyG is not needed to load it."""
        if type(self) is not made:
            return super(made, self).__reduce_ex__(protocol)
        reduced: Any = super(made, self).__reduce_ex__(max(protocol, 2))
        return (_rebuild, (ours,), *reduced[2:])

    methods: dict[str, Any] = {
        name: _refuse(name)
        for name in dir(theirs)
        if callable(getattr(theirs, name)) and not hasattr(ours, name) and name != "explain_message"
    }
    members = methods | {
        "__doc__": ours.__doc__,
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__reduce_ex__": reduce,
    }
    bases = (ours, _Barrier, theirs)
    made = type(ours)(ours.__name__, bases, members, own_methods=OF_MESSAGE_PASSING)
    return made


def _rebuild(ours: type[PNAConv]) -> PNAConv:
    layer = ours.__new__(ours)
    recognise(layer)
    return layer


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(self: PNAConv, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"got {type(self).__name__}.{name}, expected only `explain` of PyG's MessagePassing: "
            "this layer computes messages inside its kernels; conv.to_pyg() gives PyG's layer, "
            "which has it"
        )

    return refused


def explained(layer: Any, messages: Tensor, **known: Any) -> Tensor:
    """Messages (edges, towers, features) after the mask of an explainer of PyG.

    `known` are inputs that an explainer may ask for by name: x_i, x_j, dim_size.
    """
    wanted = inspect.signature(layer.explain_message).parameters
    return layer.explain_message(messages, **{n: v for n, v in known.items() if n in wanted})
