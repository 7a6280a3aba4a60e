"""What becomes of measurements that fail."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


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
