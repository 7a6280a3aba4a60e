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
        late = self._without_memory()
        super()._apply(fn, recurse)
        late -= self._without_memory()
        for name, tensor in self._begun(late).items():
            self.get_buffer(name).copy_(tensor)
        return self

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, local: dict[str, Any], *others: Any
    ) -> None:
        super()._load_from_state_dict(state, prefix, local, *others)
        if local.get("assign_to_params_buffers", False):
            constants = self._without_memory() & self._non_persistent_buffers_set
            for name, tensor in self._begun(constants).items():
                setattr(self, name, tensor.to(self.get_buffer(name).dtype))

    def _without_memory(self) -> set[str]:
        return {name for name, held in self._buffers.items() if held is not None and held.is_meta}

    def _begun(self, names: set[str]) -> dict[str, Tensor]:
        """Those of `beginnings` with these names; others may have registered buffers of theirs."""
        if not names:
            return {}
        with torch.device("cpu"):  # whichever is the default
            return {name: tensor for name, tensor in self.beginnings().items() if name in names}
