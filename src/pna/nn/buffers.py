"""Constant buffers that survive initialisation on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Buffers(nn.Module):
    """A module whose buffers are initialised from `beginnings`.

    A module made on the meta device, as torch does for large models, has buffers without values.
    They are initialised when they get memory: by `to_empty`, or by loading a checkpoint with
    ``assign=True``.
    """

    def beginnings(self) -> dict[str, Tensor]:
        """The initial values of the buffers, by name."""
        raise NotImplementedError

    def hold(self, persistent: bool = False) -> None:
        """Register the buffers; `persistent` ones are stored in checkpoints with the weights."""
        for name, tensor in self.beginnings().items():
            self.register_buffer(name, tensor, persistent=persistent)

    def reset_parameters(self) -> None:
        """Does nothing, as nothing is learned; torch calls it when it shards a model."""

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
        return {
            name for name, buffer in self._buffers.items() if buffer is not None and buffer.is_meta
        }

    def _begun(self, names: set[str]) -> dict[str, Tensor]:
        """The initial values of these buffers, as far as `beginnings` has them."""
        if not names:
            return {}
        with torch.device("cpu"):  # whatever the default device is
            return {name: tensor for name, tensor in self.beginnings().items() if name in names}
