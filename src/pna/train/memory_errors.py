"""Running out of memory in training: what was tried, what to do, and how to resume."""

from __future__ import annotations

import re

import torch

from pna.machine import free_memory
from pna.train.memory import REMEDIES, in_words

_OF_A_CPU = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a CPU or a GPU has no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_A_CPU)


def explained(
    error: BaseException, tried: str, device: torch.device, saved: str = ""
) -> MemoryError:
    """The error of a run that is out of memory.

    Args:
        error: an error of which `is_out_of_memory` is true.
        tried: what was tried.
        device: the device that was used.
        saved: which checkpoint there is, and how to resume; "" if there is none.
    """
    asked = re.search(r"tried to allocate (?:(\d+) bytes|([\d.]+ \w+))", str(error), re.I)
    more = ""
    if asked is not None:
        more = f", which asked for {asked.group(2) or in_words(int(asked.group(1)))} more"
    free = in_words(free_memory(device))
    problem = f"got no memory on {device} for {tried}{more}; {free} are free"
    if not saved:
        return MemoryError(f"{problem}; {REMEDIES}")
    return MemoryError(f"{problem}; {saved}, or start a new run: {REMEDIES}")
