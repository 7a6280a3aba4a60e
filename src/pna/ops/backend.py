"""The choice of an implementation (backend): by device, or by the user."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Literal, get_args

import torch

from pna.names import lookup
from pna.ops import cpu

# Looked up at import, since compiled code cannot do it.
_TRITON_FOUND = importlib.util.find_spec("triton") is not None

BackendName = Literal["reference", "cpu", "triton"]

_CHOICES: dict[BackendName, BackendName] = {name: name for name in get_args(BackendName)}
# A plain variable: torch.compile guards on it, but not on a ContextVar.
_chosen: BackendName | None = None


@contextlib.contextmanager
def backend(name: BackendName) -> Iterator[None]:
    """Run `pna.aggregate` with the named implementation inside a ``with`` block, on all threads.

    The name is `reference`, `cpu` or `triton`. If this machine cannot run it, an error says why.
    """
    global _chosen
    reason = availability()[lookup("backend", name, _CHOICES)]
    if reason is not None:
        raise RuntimeError(f"got backend {name!r}, which cannot run here: {reason}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def choose(device: torch.device) -> BackendName:
    """The implementation for tensors on this device."""
    if _chosen is not None:
        if not _runs_on(_chosen, device):
            raise ValueError(
                f"got tensors on {device} and backend {_chosen!r}, which cannot read them there; "
                "move them, or choose 'reference', which runs on every device"
            )
        return _chosen
    if device.type == "cuda" and _TRITON_FOUND:
        return "triton"
    if device.type == "cpu" and cpu.unavailable() is None:
        return "cpu"
    return "reference"


def has_triton() -> bool:
    """Whether Triton is installed."""
    return _TRITON_FOUND


def availability() -> dict[BackendName, str | None]:
    """For each implementation, the reason why this machine cannot run it, or None."""
    return {"reference": None, "cpu": cpu.unavailable(), "triton": _triton_unavailable()}


def interpreting() -> bool:
    """Whether Triton kernels run on the CPU, in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _runs_on(name: str, device: torch.device) -> bool:
    if name == "reference" or device.type == "meta":
        return True
    if name == "triton":
        return device.type == "cuda" or interpreting()
    return device.type == "cpu"


def _triton_unavailable() -> str | None:
    if not _TRITON_FOUND:
        return "Triton is not installed; it comes with torch's CUDA builds on Linux"
    if interpreting() or torch.cuda.is_available():
        return None
    return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels, slowly, on the CPU)"
