"""Whether values of tensors can be read now."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pna.torch_internals import in_transform

_PLAIN = (Tensor, nn.Parameter)


def values_visible() -> bool:
    """Whether values of tensors can be read: not in code that is being compiled or captured."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def values_readable() -> bool:
    """The same for tensors that transforms of torch.func may wrap."""
    return values_visible() and not in_transform()


def has_memory(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor by its address: subclasses, such as fake tensors, may have
    none."""
    return type(tensor) in _PLAIN


def outside_inference() -> AbstractContextManager[Any]:
    """A context whose tensors can be used in training, also inside `torch.inference_mode`."""
    if torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return nullcontext()  # which takes less time
