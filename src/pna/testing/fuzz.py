"""Compare random cases with the definition, until the time is over or one fails.

`python -m pna.testing fuzz` runs it. A case depends only on the seed and its number. On a GPU,
consecutive cases share compiled kernels and differ in graphs and numbers. A case that fails is
shrunk and printed as a script.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pna.testing import aggregate_case, conv_case, scale_case
from pna.testing.draw import Draw
from pna.testing.execution import FuzzSettings
from pna.testing.tolerance import Bound

#: The kinds of cases, and the weights with which they are drawn.
_CASES: tuple[tuple[Callable[[Draw, FuzzSettings], Any], float], ...] = (
    (aggregate_case.draw_case, 4.0),
    (conv_case.draw_case, 1.0),
    (scale_case.draw_case, 0.2),
)

#: Consecutive cases that share compiled kernels on a GPU, where compiling takes most of the time.
_STRETCH = 20

_print = partial(print, flush=True)
_SHRINKING_SECONDS, _LONGEST_SCRIPT = 60.0, 20_000


@dataclass(frozen=True)
class Failure:
    """A case that fails, what is wrong with it, and a script that reproduces it."""

    number: int
    case: Any
    what: str
    script: str


def draw_case(seed: int, number: int, settings: FuzzSettings) -> Any:
    signature = None
    if settings.device == "cuda":
        signature = Draw(seed, number // _STRETCH, _STRETCH)
    draw = Draw(seed, number, signature=signature)
    kinds, weights = zip(*_CASES, strict=True)
    return draw.signature.one_of(kinds, weights)(draw, settings)


def check(case: Any) -> tuple[str | None, Any, dict[str, Bound]]:
    """What is wrong with a case, or None; the case as it was run; the bounds of wrong results."""
    case, bounds = case.expected()
    try:
        results = case.run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}", case, {}
    wrong = {name: compare(results[name], bound) for name, bound in bounds.items()}
    wrong = {name: what for name, what in wrong.items() if what is not None}
    what = "; ".join(f"{name}{what}" for name, what in wrong.items())
    return what or None, case, {name: bounds[name] for name in wrong}


def compare(got: Tensor, bound: Bound) -> str | None:
    """Describe where a result is outside its bound; None if it is nowhere."""
    want, finfo = bound.value, torch.finfo(bound.dtype)
    if got.shape != want.shape:
        return f" has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    away = (got - want).abs()
    right = (away <= bound.error) | (got == want) | (got.isnan() & want.isnan())
    beyond = want.abs() + bound.error >= finfo.max * (1 - finfo.eps)
    right = right | (beyond & (got == want.sign() * torch.inf)) | ~bound.settled
    right = right | (bound.error >= finfo.max)
    if bool(right.all()):
        return None
    excess = torch.where(right, 0, (away / bound.error).nan_to_num(torch.inf, torch.inf))
    index = int(excess.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), want.shape))
    return (
        f"{list(at)} is {float(got[at]):.9g}, expected {float(want[at]):.9g} within "
        f"{float(bound.error[at]):.3g}; {int((~right).sum())} of {right.numel()} numbers are wrong"
    )


def shrink(case: Any) -> Any:
    """The simplest case found that still fails."""
    end = time.monotonic() + _SHRINKING_SECONDS
    candidates = case.simpler()
    while time.monotonic() < end and (other := next(candidates, None)) is not None:
        try:
            what, other, _ = check(other)
        except Exception:  # the smaller case is not valid
            continue
        if what is not None:
            case, candidates = other, other.simpler()
    return case


def failure_of(number: int, case: Any) -> Failure | None:
    what, case, bounds = check(case)
    if what is None:
        return None
    what, case, bounds = check(shrink(case))
    script = case.script(bounds)
    if len(script) > _LONGEST_SCRIPT:
        script = f"# the script has {len(script)} characters; run the case again by its number"
    return Failure(number, case, what or "it fails only sometimes", script)


def fuzz(seed: int, seconds: float, settings: FuzzSettings, max_failures: int = 1) -> list[Failure]:
    """Run cases 0, 1, … until the time is over or `max_failures` cases have failed."""
    begin = reported = time.monotonic()
    failures: list[Failure] = []
    number = 0

    def progress() -> str:
        took = time.monotonic() - begin
        rate = number / max(took, 1e-9)
        return f"{number} cases in {took:.0f} s, {rate:.1f} a second, {len(failures)} failed"

    warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
    while time.monotonic() - begin < seconds and len(failures) < max_failures:
        failure = failure_of(number, draw_case(seed, number, settings))
        if failure is not None:
            failures.append(failure)
            _print(f"case {number} of seed {seed} fails: {failure.what}\n{failure.script}\n")
            _print(f"again: python -m pna.testing fuzz {settings.arguments(seed)} --case {number}")
        number += 1
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            _print(progress())
    _print(f"seed {seed}: {progress()}")
    return failures
