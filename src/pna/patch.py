"""`pna.patch_pyg`: our layer behind PyG's name, for a whole program."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pna.nn.conv.pyg import need_pyg


class Patch:
    """Names of PyG that lead to our layer, until `undo`, or the end of a ``with`` block."""

    def __init__(self, places: list[tuple[ModuleType, str]], original: Any) -> None:
        self._places, self._original = places, original

    def undo(self) -> None:
        """Let the names lead to PyG's layer again. Layers that exist stay as they are."""
        for module, name in self._places:
            setattr(module, name, self._original)
        self._places = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()


def patch_pyg() -> Patch:
    """Put our layer behind `torch_geometric.nn.PNAConv`, and into `torch_geometric.nn.PNA`.

    Layers that are made from then on compute the same as PyG's, with the same initial weights and
    the same names in their state dict. Use it as a function, or as a context manager:

        >>> import torch_geometric
        >>> deg = torch.tensor([0, 2, 1])
        >>> with pna.patch_pyg():
        ...     conv = torch_geometric.nn.PNAConv(8, 4, ["mean", "max"], ["identity"], deg)
        >>> isinstance(conv, pna.nn.PNAConv)
        True

    What PyG's layer can do and ours cannot is left to PyG's, with a warning: an aggregation that
    this package does not have, an activation with weights, and a subclass that overrides
    `message`, `aggregate` or `update`. Not reached: names that were imported before, as by ``from
    torch_geometric.nn import PNAConv``, and layers that exist.
    """
    need_pyg("patch_pyg")
    from pna.nn.patched import Original, PNAConv

    places = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.split(".")[0] == "torch_geometric" and path != Original.__module__
        for name, value in list(vars(module).items())
        if value is Original
    ]
    for module, name in places:
        setattr(module, name, PNAConv)
    return Patch(places, Original)
