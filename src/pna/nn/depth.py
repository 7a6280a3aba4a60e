"""How many times a recurrent model passes messages over a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.front import Front
from pna.names import lookup

#: Rules that look at the number of nodes alone, as the authors named them.
BY_SIZE: dict[str, Callable[[int], int]] = {
    "N": lambda n: n,
    "N/2": lambda n: n // 2,
    "4log2N": lambda n: int(4 * math.log2(n)) if n else 0,
    "2log2N": lambda n: int(2 * math.log2(n)) if n else 0,
    "3sqrtN": lambda n: int(3 * math.sqrt(n)),
}
RULES = (*BY_SIZE, "diameter", "adaptive")

#: In how many fronts a batch may be cut: each has some padding.
_MOST_LEVELS = 8


@dataclass(frozen=True)
class Depth:
    """How many steps each graph takes, at least one, and a bound for all of them."""

    steps: Tensor | None  # (graphs,) int64, 1 for padding; None where all take `most`
    most: int
    #: Of each step but the first: among which nodes those are that take it; none where unknown.
    fronts: tuple[Front, ...] = ()


def check_rule(rule: str | int) -> str | int:
    """The rule itself: a name, or a number of steps for every graph."""
    if isinstance(rule, int):
        if rule < 1:
            raise ValueError(f"got depth={rule}, expected at least 1")
        return rule
    if rule.isdecimal():
        return check_rule(int(rule))
    return lookup("rule of depth", rule, {name: name for name in RULES})


def levels(rule: str | int, smallest: int, largest: int) -> list[int]:
    """Some of the sizes, largest first, whose graphs take fewer steps than those one larger."""
    if rule not in BY_SIZE:
        return []
    steps = BY_SIZE[str(rule)]
    found = [n for n in range(largest - 1, smallest - 1, -1) if steps(n) < steps(n + 1)]
    return found[:: max(-(-len(found) // _MOST_LEVELS), 1)]


def depth_of(batch: Batch, rule: str | int) -> Depth:
    """What the rule says of the graphs of a batch; "adaptive" is bounded by the nodes of each."""
    if isinstance(rule, int):
        return Depth(None, rule)
    smallest, largest = batch.sizes_between()
    if rule == "diameter":
        if batch.diameter is None:
            raise ValueError(
                "got a batch without the diameters of its graphs, expected them for depth="
                "'diameter'; pass diameter=pna.data.diameter.diameters(graphs) with it"
            )
        far = batch.diameter if batch.real is None else batch.diameter * batch.real
        return Depth(far.clamp(min=1), max(batch.largest_diameter(), 1))
    table = _table("N" if rule == "adaptive" else rule, largest, batch.device)
    most = max(BY_SIZE.get(rule, BY_SIZE["N"])(largest), 1)
    if smallest == largest and rule != "adaptive":
        return Depth(None, most)
    sizes = batch.sizes.clamp(max=largest) if batch.real is None else batch.sizes * batch.real
    return Depth(table[sizes], most, _fronts(batch, rule, most))


def _fronts(batch: Batch, rule: str, most: int) -> tuple[Front, ...]:
    """The shortest that holds all graphs of more steps than each, the whole batch where none does;
    none at all of a batch that has none, or a rule that is not of sizes."""
    if not batch.fronts or rule not in BY_SIZE:
        return ()
    whole = Front(0, batch.num_nodes, batch.num_edges)
    steps = [(front, max(BY_SIZE[rule](front.size), 1)) for front in batch.fronts]
    return tuple(
        next((front for front, taken in steps if taken <= step), whole) for step in range(1, most)
    )


_tables: dict[tuple[str, int, torch.device], Tensor] = {}


def _table(rule: str, largest: int, device: torch.device) -> Tensor:
    """Steps of a graph of every size; kept, since a captured step cannot copy it to the device."""
    key = (rule, largest, device)
    if key in _tables:
        return _tables[key]
    steps = [max(BY_SIZE[rule](n), 1) for n in range(largest + 1)]
    table = torch.tensor(steps, device=device)
    if type(table) is Tensor:  # not one that only stands for another, as in an export
        _tables[key] = table
    return table
