"""Dataclasses of tensors: mapped over, and sent between processes by the hundred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of a dataclass with `function` applied to each of its tensors, also to those in
    dataclasses and tuples inside it."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) is tuple:
        return tuple(map_tensors(function, part) for part in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = [map_tensors(function, getattr(value, field.name)) for field in fields(value)]
    return type(value)(*parts)


def send_by_value(*kinds: type) -> None:
    """Let the workers of a loader send these dataclasses by value.

    Torch sends tensors by shared memory, which takes a file descriptor for each. A batch of a
    hundred graphs has more than a thousand: "too many open files".
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
    except (TypeError, RuntimeError):  # bfloat16, or with a gradient: torch sends it its own way
        return value


def _from_arrays(kind: Callable[..., Any], values: list[Any]) -> Any:
    return kind(*[torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values])
