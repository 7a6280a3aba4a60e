"""How often and how graphs are divided into those to train, validate and test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: The splits of a fold, and their indices in the text of a fold.
PARTS = ("train", "validation", "test")
_TENTHS = 10  # parts of the graphs: one is for validation, and for the test if there are no folds


@dataclass(frozen=True)
class FoldOptions:
    """How often graphs are divided.

    With `folds`, every graph is tested in one fold of each repeat. Without, each repeat is one
    division, which tests a tenth of the graphs.
    """

    folds: int | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.folds is not None and self.folds < 2:
            raise ValueError(
                f"got {self.folds} folds, expected at least 2; change --folds, or leave it out for "
                "one split"
            )
        if self.repeats < 1:
            raise ValueError(
                f"got {self.repeats} repeats, expected at least 1; change --repeats, or leave it "
                "out"
            )


def divided(
    groups: Sequence[Sequence[int]], options: FoldOptions, seed: int, what: str
) -> dict[str, Any]:
    """The folds of graphs in groups that stay together: the entry "folds" of a set's metadata.

    `what` names a group in errors. Groups of more than half a fold come first, the largest first,
    then the others in random order. Each goes to the fold with the fewest graphs. A group that a
    fold does not test is for validation if it still fits into a tenth of all graphs, in random
    order. Validation has at most half of the graphs that are not tested, or the smallest group if
    none fits. Repeat r has the random seed `seed` + r. Without folds, it tests the smallest of ten.
    """
    total, folds = sum(map(len, groups)), options.folds or _TENTHS
    least = max(folds, len(PARTS))
    if len(groups) < least:
        given = f"{folds} folds" if options.folds else "splits that test a tenth"
        remedies = [f"use --folds {len(groups)} or fewer"] if len(groups) >= len(PARTS) else []
        remedies += ["use --split random"] if what == "scaffold" else []
        raise ValueError(
            f"got {len(groups)} {what}{'s' if len(groups) > 1 else ''} for {given}, expected at "
            f"least {least}; " + (", or ".join(remedies) or f"add more {what}s")
        )
    parts = []
    for repeat in range(options.repeats):
        rng = np.random.default_rng(seed + repeat)
        members = _balanced([groups[i] for i in rng.permutation(len(groups))], folds)
        sizes = [sum(map(len, fold)) for fold in members]
        for tested in range(folds) if options.folds else [sizes.index(min(sizes))]:
            rest = [group for fold in members[:tested] + members[tested + 1 :] for group in fold]
            if len(rest) < 2:  # of two folds, one has a single group
                raise ValueError(
                    f"got 2 folds of {len(groups)} {what}s, of which one leaves a single {what} to "
                    "train and to validate with, expected two; use --folds 3 or more"
                )
            found = np.zeros(total, np.uint8)
            for part, own in ((2, members[tested]), (1, _validation(rest, total, rng))):
                found[np.concatenate(own)] = part
            parts.append("".join(map(str, found)))
    return {"repeats": options.repeats, "parts": parts}


def _balanced(groups: list[Sequence[int]], folds: int) -> list[list[Sequence[int]]]:
    """Folds of about the same number of graphs, from groups in random order."""
    half = sum(map(len, groups)) / folds / 2
    found: list[list[Sequence[int]]] = [[] for _ in range(folds)]
    counts = [0] * folds
    for group in sorted(groups, key=lambda group: -len(group) if len(group) > half else 0):
        least = counts.index(min(counts))
        found[least].append(group)
        counts[least] += len(group)
    return found


def _validation(
    rest: list[Sequence[int]], total: int, rng: np.random.Generator
) -> list[Sequence[int]]:
    room = max(1, min(round(total / _TENTHS), sum(map(len, rest)) // 2))
    chosen = []
    for index in rng.permutation(len(rest)):
        if len(rest[index]) <= room:
            chosen.append(rest[index])
            room -= len(rest[index])
    return chosen or [min(rest, key=len)]
