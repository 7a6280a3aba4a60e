"""What `pna.patch_pyg` puts in place of PyG's `PNAConv`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.conv.pna_conv import PNAConv as Original

from pna.nn.conv import pna
from pna.nn.conv.base import OF_MESSAGE_PASSING
from pna.nn.conv.message_passing import joined
from pna.nn.conv.pyg import adopt, arguments_of, pyg_state


class _InPlaceOfPyG(type):
    """The class of `PNAConv` below: what it cannot do is left to PyG's own layer."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> type:
        ours = globals().get("PNAConv", Original)  # the class below, once it exists
        changed = [
            method
            for method in OF_MESSAGE_PASSING
            if method in namespace or any(_overrides(base, method) for base in bases)
        ]
        if not changed or ours is Original:
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        if ours not in bases:
            raise TypeError(
                f"got {name}.{changed[0]}, which would never be called, expected a direct subclass "
                "of torch_geometric.nn.PNAConv, or none of pna's: make it without pna.patch_pyg"
            )
        warnings.warn(
            f"got {name}.{changed[0]}, which the layer of pna would not call: {name} is a subclass "
            "of PyG's own PNAConv, as without pna.patch_pyg",
            stacklevel=2,
        )
        return type(name, tuple(Original if b is ours else b for b in bases), namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not PNAConv:
            return super().__call__(*args, **kwargs)
        theirs = Original(*args, **kwargs)
        try:
            return PNAConv.from_pyg(theirs)
        except ValueError as error:
            warnings.warn(f"{error}: PyG's own layer is used", stacklevel=2)
            return theirs

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is PNAConv and issubclass(subclass, Original | pna.PNAConv):
            return True
        return super().__subclasscheck__(subclass)

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))


def _overrides(base: type, method: str) -> bool:
    return hasattr(base, method) and not issubclass(base, Original)


class PNAConv(joined(pna.PNAConv, Original), metaclass=_InPlaceOfPyG):  # type: ignore[misc]
    """`pna.nn.PNAConv` with the arguments, initial weights, results and state dict of PyG's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._become(Original(*args, **kwargs))

    @classmethod
    def from_pyg(cls, conv: nn.Module) -> PNAConv:
        layer = cls.__new__(cls)
        layer._become(conv)
        return layer

    def _become(self, theirs: nn.Module) -> None:
        arguments = arguments_of(theirs)
        with torch.random.fork_rng(devices=[]):  # so that later layers have PyG's weights too
            super().__init__(**arguments, std="pyg")
        adopt(self, theirs)
        self.register_state_dict_post_hook(_rename_to_pyg)


_PARTS = ("pre", "post", "neighbourhood", "lin", "edge_encoder")


def _rename_to_pyg(layer: PNAConv, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Give the state dict of the layer PyG's names, so that PyG can load it without the patch."""
    own = tuple(f"{prefix}{part}." for part in _PARTS)
    for name in [name for name in state if name.startswith(own)]:
        del state[name]
    state.update({f"{prefix}{k}": v.detach() for k, v in pyg_state(layer).items()})
