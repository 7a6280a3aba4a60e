"""The number of message-passing steps that a recurrent model takes on a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.front import Front
from pna.names import lookup

#: Rules that depend only on the number of nodes, with the names of the paper's authors.
BY_SIZE: dict[str, Callable[[int], int]] = {
    "N": lambda n: n,
    "N/2": lambda n: n // 2,
    "4log2N": lambda n: int(4 * math.log2(n)) if n else 0,
    "2log2N": lambda n: int(2 * math.log2(n)) if n else 0,
    "3sqrtN": lambda n: int(3 * math.sqrt(n)),
}
RULES = (*BY_SIZE, "diameter", "adaptive")

#: Largest number of fronts of a batch; each needs some padding.
_MOST_LEVELS = 8


@dataclass(frozen=True)
class Depth:
    """The number of steps of each graph, at least one."""

    steps: Tensor | None  # (graphs,) int64, 1 for padding; None if all take `most`
    most: int  # upper bound for all graphs
    #: For each step but the first, a front with all nodes that take the step; empty if unknown.
    fronts: tuple[Front, ...] = ()


def check_rule(rule: str | int) -> str | int:
    """Return the rule if it is valid: one of `RULES`, or the number of steps of every graph."""
    if isinstance(rule, int):
        if rule < 1:
            raise ValueError(f"got depth={rule}, expected at least 1")
        return rule
    if rule.isdecimal():
        return check_rule(int(rule))
    return lookup("rule of depth", rule, {name: name for name in RULES})


def levels(rule: str | int, smallest: int, largest: int) -> list[int]:
    """Return up to 8 graph sizes, largest first, above which graphs take more steps."""
    if rule not in BY_SIZE:
        return []
    steps = BY_SIZE[str(rule)]
    found = [n for n in range(largest - 1, smallest - 1, -1) if steps(n) < steps(n + 1)]
    return found[:: max(-(-len(found) // _MOST_LEVELS), 1)]


def steps_of(rule: str | int, nodes: int) -> int:
    """Return the steps of a graph of this many nodes, by a rule that depends on nothing else."""
    return rule if isinstance(rule, int) else max(BY_SIZE[rule](nodes), 1)


def depth_of(batch: Batch, rule: str | int) -> Depth:
    """Return the steps of each graph of a batch. For "adaptive" it is the number of its nodes."""
    if isinstance(rule, int):
        return Depth(None, rule)
    smallest, largest = batch.sizes_between()
    if rule == "diameter":
        if batch.diameter is None:
            raise ValueError(
                "got a batch without the diameters of its graphs, expected them for depth="
                "'diameter'; set its field diameter=pna.data.diameter.diameters(graphs)"
            )
        far = batch.diameter if batch.real is None else batch.diameter * batch.real
        return Depth(far.clamp(min=1), max(batch.largest_diameter(), 1))
    table = _table("N" if rule == "adaptive" else rule, largest, batch.device)
    most = steps_of("N" if rule == "adaptive" else rule, largest)
    if smallest == largest and rule != "adaptive":
        return Depth(None, most)
    sizes = batch.sizes.clamp(max=largest) if batch.real is None else batch.sizes * batch.real
    return Depth(table[sizes], most, _fronts(batch, rule, most))


def _fronts(batch: Batch, rule: str, most: int) -> tuple[Front, ...]:
    """Return, for each step but the first, the shortest front with all graphs that take the step.

    If there is no such front, it is the whole batch. The result is empty if the batch has no
    fronts, or if the rule does not depend only on the number of nodes.
    """
    if not batch.fronts or rule not in BY_SIZE:
        return ()
    full = Front(0, batch.num_nodes, batch.num_edges)
    steps = [(front, max(BY_SIZE[rule](front.size), 1)) for front in batch.fronts]
    return tuple(
        next((front for front, taken in steps if taken <= step), full) for step in range(1, most)
    )


_tables: dict[tuple[str, int, torch.device], Tensor] = {}


def _table(rule: str, largest: int, device: torch.device) -> Tensor:
    """Return the steps for every graph size, (largest + 1,).

    The table is cached, because a captured step cannot copy to the device.
    """
    key = (rule, largest, device)
    if key in _tables:
        return _tables[key]
    steps = [steps_of(rule, n) for n in range(largest + 1)]
    table = torch.tensor(steps, device=device)
    if type(table) is Tensor:  # torch.export makes fake tensors, which must not be cached
        _tables[key] = table
    return table
