"""A case of `fuzz` that fails, as a Python script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pna.testing.execution import BACKENDS
from pna.testing.tolerance import Bound


def literal(values: Tensor, dtype: torch.dtype | None = None) -> str:
    """A tensor as Python."""
    if values.numel() == 0:
        return f"torch.empty({tuple(values.shape)}, dtype={dtype or values.dtype})"
    text = repr(values.detach().cpu().tolist())
    text = text.replace("nan", 'float("nan")').replace("inf", 'float("inf")')
    kind = "" if values.dtype == torch.int64 else f", dtype={dtype or values.dtype}"
    return f"torch.tensor({text}{kind})"


def inputs(device: str, leaves: dict[str, tuple[Tensor, torch.dtype]]) -> list[str]:
    """Lines that make the device the default, and the tensors whose gradients are compared."""
    made = [f"{n} = {literal(*given)}.requires_grad_()" for n, given in leaves.items()]
    return [*([] if device == "cpu" else [f"torch.set_default_device({device!r})"]), *made]


def write(
    setup: Sequence[str],
    mode: str | None,
    call: str,
    upstream: str,
    bounds: dict[str, Bound],
    gradient: Callable[[str], str] = "{}.grad".format,
) -> str:
    """Lines that make the inputs, run `call` and print each result with the definition's."""
    lines = ["import torch", "import pna", "from pna.aggregators import *", "", *setup]
    run = [f"out = {call}", f"out.backward({upstream})"]
    if mode in BACKENDS:
        run = [f"with pna.backend({BACKENDS[mode]!r}):", *(f"    {line}" for line in run)]
    elif mode is not None:
        run.insert(0, f"# fails under {mode}, which this script leaves out")
    for name, bound in bounds.items():
        got = "out.detach()" if name == "out" else gradient(name)
        run += [f"print({name!r}, {got}.tolist())", f"# expected: {bound.value.tolist()}"]
    return "\n".join([*lines, *run])
