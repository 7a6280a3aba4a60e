"""`python -m pna.testing fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

_MODES = ("reference", "c", "triton", "interpreter", "vmap", "compile")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if no case failed, 1 if one did, 2 if the arguments are wrong."""
    parser = argparse.ArgumentParser(prog="python -m pna.testing")
    commands = parser.add_subparsers(dest="command", required=True)
    options = commands.add_parser(
        "fuzz", help="compare outputs and gradients of random cases with a definition in float64"
    )
    options.add_argument(
        "--minutes", type=float, default=1.0, help="time to run, in minutes. Default: 1"
    )
    options.add_argument("--seed", type=int, default=0, help="random seed of all cases. Default: 0")
    options.add_argument("--case", type=int, help="run only the case of this number")
    options.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="device of tensors. Default: cpu"
    )
    options.add_argument(
        "--mode",
        action="append",
        choices=_MODES,
        default=[],
        help="mode of execution; may be repeated. Default: all that can run on the device",
    )
    options.add_argument(
        "--failures", type=int, default=1, help="stop after this many failures. Default: 1"
    )
    given = parser.parse_args(arguments)
    if "interpreter" in given.mode:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    return _fuzz(parser, given)


def _fuzz(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    import torch

    from pna.testing.execution import FuzzSettings
    from pna.testing.fuzz import draw_case, failure_of, fuzz

    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("got --device cuda, but torch finds no GPU; leave it out")
    settings = FuzzSettings(given.device, tuple(given.mode))
    for mode in given.mode:
        reason = settings.unavailable(mode)
        if reason is not None:
            parser.error(f"got --mode {mode}, which cannot run here: {reason}")
    if given.case is not None:
        failure = failure_of(given.case, draw_case(given.seed, given.case, settings))
        if failure is None:
            print(f"case {given.case} of seed {given.seed} is right")
            return 0
        print(f"case {given.case} of seed {given.seed} fails: {failure.what}\n{failure.script}")
        return 1
    failures = fuzz(given.seed, 60 * given.minutes, settings, max_failures=given.failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
