"""Random cases against the definition, until time is up or one fails: `python -m pna.testing fuzz`.

A case follows from the seed and its number alone. On a GPU, cases in a row share compiled kernels
and differ in graphs and numbers. One that fails is made as small as it goes and is printed as a
script.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pna.testing import draw_aggregate, draw_conv, scale_case
from pna.testing.draw import Draw
from pna.testing.settings import Settings
from pna.testing.tolerance import Bound

#: What can be drawn, and how often.
_CASES: tuple[tuple[Callable[[Draw, Settings], Any], float], ...] = (
    (draw_aggregate.draw_case, 4.0),
    (draw_conv.draw_case, 1.0),
    (scale_case.draw_case, 0.2),
)

#: How many cases in a row share compiled kernels on a GPU, where compiling takes most of the time.
_STRETCH = 20

_SHRINKING_SECONDS, _LONGEST_SCRIPT = 60.0, 20_000


@dataclass(frozen=True)
class Failure:
    """A case that fails, what is wrong with it, and a script that shows it."""

    number: int
    case: Any
    what: str
    script: str


def draw_case(seed: int, number: int, settings: Settings) -> Any:
    signature = None
    if settings.device == "cuda":
        signature = Draw(seed, number // _STRETCH, _STRETCH)
    draw = Draw(seed, number, signature=signature)
    kinds, weights = zip(*_CASES, strict=True)
    return draw.signature.one_of(kinds, weights)(draw, settings)


def check(case: Any) -> tuple[str | None, Any, dict[str, Bound]]:
    """What is wrong with a case, or None; the case as it was run; which results are wrong."""
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
    """Where a result is further from the expected than it may be; None where it is nowhere."""
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
    place = int(excess.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), want.shape))
    return (
        f"{list(at)} is {float(got[at]):.9g}, expected {float(want[at]):.9g} within "
        f"{float(bound.error[at]):.3g}; {int((~right).sum())} of {right.numel()} numbers are wrong"
    )


def shrink(case: Any, seconds: float = _SHRINKING_SECONDS) -> Any:
    """The simplest case found that still fails."""
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for other in case.simpler():
            if time.monotonic() > end:
                break
            try:
                what, other, _ = check(other)
            except Exception:  # not a case that makes sense
                continue
            if what is not None:
                case, again = other, True
                break
    return case


def failure_of(number: int, case: Any, shrinking: bool = True) -> Failure | None:
    what, case, bounds = check(case)
    if what is None:
        return None
    if shrinking:
        case = shrink(case)
        what, case, bounds = check(case)
    script = case.script(bounds)
    if len(script) > _LONGEST_SCRIPT:
        script = f"# the script has {len(script)} characters; run the case again by its number"
    return Failure(number, case, what or "it fails only sometimes", script)


def fuzz(
    seed: int,
    seconds: float,
    settings: Settings,
    *,
    first: int = 0,
    tell: Callable[[str], None] = print,
    most_failures: int = 1,
) -> list[Failure]:
    """Run cases `first`, `first` + 1, … for so long, or until as many have failed."""
    begin = told = time.monotonic()
    failures: list[Failure] = []
    number = first
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
    while time.monotonic() - begin < seconds and len(failures) < most_failures:
        failure = failure_of(number, draw_case(seed, number, settings))
        if failure is not None:
            failures.append(failure)
            tell(f"case {number} of seed {seed} fails: {failure.what}\n{failure.script}\n")
            tell(f"again: python -m pna.testing fuzz {settings.arguments(seed)} --case {number}")
        number += 1
        now = time.monotonic()
        if now - told > 10:
            told = now
            rate = (number - first) / (now - begin)
            tell(f"{number - first} cases, {rate:.1f} a second, {len(failures)} failed")
    took = time.monotonic() - begin
    count = number - first
    tell(
        f"seed {seed}: {count} cases in {took:.0f} s, {count / max(took, 1e-9):.1f} a second, "
        f"{len(failures)} failed"
    )
    return failures
