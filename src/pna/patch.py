"""`pna.patch_pyg`: our layer behind PyG's name, for a whole program."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

from pna.nn.conv.pyg import need_pyg


class Patch:
    """Lets names of PyG lead to our layer, until `undo`, or the end of a ``with`` block."""

    def undo(self) -> None:
        """Let the names lead to PyG's layer again, unless there is another patch. Layers that exist
        stay as they are."""
        from pna.nn.patched import Original, PNAConv

        with _lock:
            if self in _active:
                _active.remove(self)
                if not _active:
                    _replace(PNAConv, Original)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()


_active: list[Patch] = []
_lock = Lock()


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

    patch = Patch()
    with _lock:
        _active.append(patch)
        _replace(Original, PNAConv)
    return patch


def _replace(old: type, new: type) -> None:
    """Let every name of PyG that leads to one class lead to the other."""
    for path, module in list(sys.modules.items()):
        if path.split(".")[0] != "torch_geometric" or path == "torch_geometric.nn.conv.pna_conv":
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
