"""How processes send each other the dataclasses of tensors that a batch may hold by the hundred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor


def send_by_value(*kinds: type) -> None:
    """Have a loader's workers send these dataclasses whole.

    Shared memory, torch's way, costs a file descriptor a tensor, and a batch of a hundred
    graphs has more than a thousand: "too many open files".
    """
    for kind in kinds:
        ForkingPickler.register(kind, _to_arrays)


def _to_arrays(record: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    values = [_to_array(getattr(record, field.name)) for field in fields(record)]
    return _from_arrays, (type(record), values)


def _to_array(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return value
    try:
        return value.numpy()
    except (TypeError, RuntimeError):  # bfloat16, what has a gradient: torch sends it its own way
        return value


def _from_arrays(kind: Callable[..., Any], values: list[Any]) -> Any:
    return kind(*[torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values])
