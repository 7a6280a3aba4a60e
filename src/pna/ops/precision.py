"""The precision of float32 products on a GPU, which follows torch's settings, and their library."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_exact() -> bool:
    """Whether products use float32; otherwise they use TF32, as torch's own products do."""
    return torch.backends.cuda.matmul.fp32_precision != "tf32"


@contextmanager
def multiplied(exactly: bool) -> Iterator[None]:
    """Use float32 or TF32 in all products, including the recurrent layers of cuDNN.

    Torch has an old setting for all products, and a new one for each backend. The old setting does
    not cover cuDNN, and cannot be read while the new ones differ.
    """
    backends: Any = torch.backends
    of_cudnn = (backends.cudnn.conv, backends.cudnn.rnn)
    settings = (backends.mkldnn.matmul, backends.cuda.matmul, *of_cudnn)
    before = [setting.fp32_precision for setting in settings]
    try:
        general = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends have different settings
        general = "highest"
    torch.set_float32_matmul_precision("highest" if exactly else "high")
    for setting in of_cudnn:
        setting.fp32_precision = "ieee" if exactly else "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(general)
        for setting, was in zip(settings, before, strict=True):
            setting.fp32_precision = was


@contextmanager
def quick_products(wanted: bool = True) -> Iterator[None]:
    """Leave oneDNN out of products on an ARM processor, where each takes 0.7 ms to begin."""
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    if wanted and platform.machine() in ("aarch64", "arm64"):
        backend.enabled = False
    try:
        yield
    finally:
        backend.enabled = before
