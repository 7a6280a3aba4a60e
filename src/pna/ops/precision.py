"""How accurately float32 is multiplied on a GPU: as torch is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def is_exact() -> bool:
    """Whether all bits of float32 count; else those of TF32 do, as in torch's own products."""
    return torch.get_float32_matmul_precision() == "highest"


@contextmanager
def multiplied(exactly: bool) -> Iterator[None]:
    """Float32 as such, recurrent layers of cuDNN too, or as TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if exactly else "high")
    torch.backends.cudnn.allow_tf32 = not exactly
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
