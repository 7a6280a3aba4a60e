"""Which of many combinations of parameters to run, so that all values still occur together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any


def left_over(
    items: Iterable[Any], strength: int | None = None, given: Iterable[Any] = ()
) -> list[Any]:
    """The items of each test function that are not needed for this strength.

    Without `strength`, it is that of the marker `covering(strength)`. What occurs in `given` items
    need not occur again.
    """
    tests, had = _by_function(items), _by_function(given)
    unneeded = []
    for name, found in tests.items():
        if strength is None:
            needed = covering(
                [_values(item) for item in found], *found[0].get_closest_marker("covering").args
            )
        elif len(_rows(found[0])) > strength:
            rows, others = ([_rows(item) for item in some] for some in (found, had[name]))
            needed = covering(rows, strength, others)
        else:
            continue
        unneeded += [item for item, taken in zip(found, needed, strict=True) if not taken]
    return unneeded


def _by_function(items: Iterable[Any]) -> dict[str, list[Any]]:
    tests: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    return tests


def covering(
    cases: Sequence[dict[str, Any]], strength: int, given: Sequence[dict[str, Any]] = ()
) -> list[bool]:
    """Whether to take each case, so that any `strength` values that occur together still do.

    0 keeps one case, 1 every value, 2 every pair of values of two parameters. Greedy: the next
    case is the one that adds the most. What occurs in a `given` case need not occur again.
    """
    wanted, had = (
        [set(combinations(sorted(case.items()), min(strength, len(case)))) for case in some]
        for some in (cases, given)
    )
    taken = [False] * len(cases)
    missing = set().union(*wanted).difference(*had)
    while missing:
        best = max(range(len(cases)), key=lambda i: len(wanted[i] & missing))
        taken[best] = True
        missing -= wanted[best]
    return taken


def _values(item: Any) -> dict[str, int]:
    """Its value of every parameter, by identity: not every value can be compared."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return {name: id(value) for name, value in params.items()}


def _rows(item: Any) -> dict[str, tuple[int, ...]]:
    """Its row of every `parametrize`: values that are given together are one."""
    values = _values(item)
    given = [marker.args[0] for marker in item.iter_markers("parametrize")]
    names = [one.replace(",", " ").split() if isinstance(one, str) else one for one in given]
    rows = {", ".join(joint): tuple(values.pop(name) for name in joint) for joint in names}
    return rows | {name: (value,) for name, value in values.items()}  # of fixtures
