"""Buffers that are there also where a module is given its memory late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class Buffers(nn.Module):
    """A module whose buffers begin as `beginnings` has them.

    Made on the meta device, as torch's way of initialising large models has it, they hold nothing
    to take along when `to_empty` gives them memory: they begin then.
    """

    def beginnings(self) -> dict[str, Tensor]:
        """The buffers by name, from what the module was made with."""
        raise NotImplementedError

    def hold(self, persistent: bool = False) -> None:
        """Register the buffers; `persistent` ones go to the checkpoint with the weights."""
        for name, tensor in self.beginnings().items():
            self.register_buffer(name, tensor, persistent=persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        empty = [name for name, held in self._buffers.items() if held is not None and held.is_meta]
        super()._apply(fn, recurse)
        late = [name for name in empty if not self.get_buffer(name).is_meta]
        if late:
            with torch.device("cpu"):  # whichever is the default
                begun = self.beginnings()
            for name in late:
                self.get_buffer(name).copy_(begun[name])
        return self
