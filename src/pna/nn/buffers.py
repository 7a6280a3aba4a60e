"""Buffers that are there also where a module is given its memory late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Buffers(nn.Module):
    """A module whose buffers begin as `beginnings` has them.

    Made on the meta device, as torch's ways of initialising large models have it, they hold nothing
    to take along when they are given memory, by `to_empty` or by a checkpoint whose tensors are
    assigned: they begin then.
    """

    def beginnings(self) -> dict[str, Tensor]:
        """The buffers by name, from what the module was made with."""
        raise NotImplementedError

    def hold(self, persistent: bool = False) -> None:
        """Register the buffers; `persistent` ones go to the checkpoint with the weights."""
        for name, tensor in self.beginnings().items():
            self.register_buffer(name, tensor, persistent=persistent)

    def reset_parameters(self) -> None:
        """Nothing is learned: buffers are as they began. Asked for where a model is sharded."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Buffers:
        empty = self._without_memory()
        super()._apply(fn, recurse)
        if empty and not self._without_memory():
            begun = self._begun()
            for name in empty:
                self.get_buffer(name).copy_(begun[name])
        return self

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, local: dict[str, Any], *others: Any
    ) -> None:
        super()._load_from_state_dict(state, prefix, local, *others)
        constants = [n for n in self._without_memory() if n in self._non_persistent_buffers_set]
        if constants and local.get("assign_to_params_buffers", False):
            begun = self._begun()
            for name in constants:
                setattr(self, name, begun[name].to(self.get_buffer(name).dtype))

    def _without_memory(self) -> list[str]:
        """Those of `beginnings` that are on the meta device; others may have registered theirs."""
        meta = [name for name, held in self._buffers.items() if held is not None and held.is_meta]
        with torch.device("meta"):
            return [name for name in self.beginnings() if name in meta] if meta else []

    def _begun(self) -> dict[str, Tensor]:
        with torch.device("cpu"):  # whichever is the default
            return self.beginnings()
