"""Under which conditions everything is measured, and what becomes of what fails."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@contextmanager
def without_tf32() -> Iterator[None]:
    """All float32 in float32, recurrent layers of cuDNN too."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def attempt(call: Callable[..., T], *arguments: Any) -> tuple[T | None, str | None]:
    """What a call returns, or what went wrong, in a line; then nothing of it stays in memory."""
    try:
        return call(*arguments), None
    except Exception as error:
        words = " ".join(str(error).split())
        problem = textwrap.shorten(f"{type(error).__name__}: {words}", 120, placeholder=" …")
    release()
    return None, problem


def release() -> None:
    """Give back what no one holds any more, so that the next one has all the memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
