"""How accurately float32 is multiplied on a GPU: as torch is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_exact() -> bool:
    """Whether all bits of float32 count; else those of TF32 do, as in torch's own products."""
    return torch.backends.cuda.matmul.fp32_precision != "tf32"


@contextmanager
def multiplied(exactly: bool) -> Iterator[None]:
    """Float32 as such, recurrent layers of cuDNN too, or as TF32.

    Torch has one setting for all products, and newer ones for each place. The former says nothing
    of cuDNN, and cannot be read where the latter are told other things.
    """
    backends: Any = torch.backends
    of_cudnn = (backends.cudnn.conv, backends.cudnn.rnn)
    places = (backends.mkldnn.matmul, backends.cuda.matmul, *of_cudnn)
    before = [place.fp32_precision for place in places]
    try:
        told = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was told place by place
        told = "highest"
    torch.set_float32_matmul_precision("highest" if exactly else "high")
    for place in of_cudnn:
        place.fp32_precision = "ieee" if exactly else "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(told)
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was
