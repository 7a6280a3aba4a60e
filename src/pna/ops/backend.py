"""Which implementation of the operation runs: chosen by device, or by the user."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from pna.names import lookup
from pna.ops import cpu

_CHOICES = {name: name for name in ("reference", "cpu", "triton")}
_chosen: ContextVar[str | None] = ContextVar("pna_backend", default=None)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Run `pna.aggregate` with the named implementation inside a ``with`` block.

    One of `reference`, `cpu`, `triton`; an error says why where this machine cannot run it.
    """
    reason = availability()[lookup("backend", name, _CHOICES)]
    if reason is not None:
        raise RuntimeError(f"got backend {name!r}, which cannot run here: {reason}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def choose(device: torch.device) -> str:
    """The implementation for tensors on this device."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if device.type == "cuda" and _triton_missing() is None:
        return "triton"
    if device.type == "cpu" and cpu.unavailable() is None:
        return "cpu"
    return "reference"


def availability() -> dict[str, str | None]:
    """Each implementation, with the reason where this machine cannot run it, else None."""
    return {"reference": None, "cpu": cpu.unavailable(), "triton": _triton_unavailable()}


def interpreting() -> bool:
    """Whether Triton kernels run on the CPU, in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _triton_missing() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; it comes with torch's CUDA builds on Linux"
    return None


def _triton_unavailable() -> str | None:
    if reason := _triton_missing():
        return reason
    if interpreting() or torch.cuda.is_available():
        return None
    return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels, slowly, on the CPU)"
