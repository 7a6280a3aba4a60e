"""Statistics of multisets of real numbers: each multiset is the leaves of a star."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import Aggregator

Multiset: TypeAlias = Sequence[float]

#: A name, an aggregator of ours, or any function of one multiset: (n,) float64 in ascending order,
#: a tensor, or an array where the function refuses tensors.
AnyAggregator: TypeAlias = str | Aggregator | type[Aggregator] | Callable[[Tensor], Tensor | float]


def stars(neighbourhoods: Sequence[Multiset]) -> tuple[Tensor, Adjacency]:
    """Values of all leaves (leaves, 1), and who sends to which of the centres."""
    values = torch.tensor([value for side in neighbourhoods for value in side], dtype=torch.float64)
    return values.unsqueeze(1), star_edges(torch.tensor([len(side) for side in neighbourhoods]))


def statistics(aggregators: Sequence[AnyAggregator], multisets: Tensor) -> Tensor:
    """Apply every aggregator to every row: (rows, n) to (rows, aggregators), in float64."""
    rows = multisets.to(torch.float64).sort(dim=1).values
    ours = [i for i, aggregator in enumerate(aggregators) if is_ours(aggregator)]
    out = rows.new_empty(len(rows), len(aggregators))
    if ours:
        adjacency = star_edges(torch.full((len(rows),), rows.shape[1]))
        chosen = [aggregators[i] for i in ours]
        out[:, ours] = aggregate(rows.reshape(-1, 1), adjacency, chosen).squeeze(-1)  # type: ignore[arg-type]
    for i, aggregator in enumerate(aggregators):
        if i not in ours:
            out[:, i] = torch.tensor([_call(aggregator, row) for row in rows], dtype=out.dtype)
    return out


def is_ours(aggregator: AnyAggregator) -> bool:
    """Whether `pna.aggregate` accepts it; anything else is called as a function."""
    of_class = isinstance(aggregator, type) and issubclass(aggregator, Aggregator)
    return of_class or isinstance(aggregator, str | Aggregator) or not callable(aggregator)


def name_of(aggregator: AnyAggregator) -> str:
    """The name of an aggregator, or its repr."""
    if isinstance(aggregator, str):
        return aggregator
    if isinstance(aggregator, Aggregator):
        return repr(aggregator)
    return getattr(aggregator, "__name__", repr(aggregator))


def braces(multiset: Multiset) -> str:
    """A multiset in braces: {0, 0, 4}."""
    return "{" + ", ".join(f"{value:.4g}" for value in multiset) + "}"


def star_edges(sizes: Tensor) -> Adjacency:
    """Stars of so many leaves each. Every leaf sends to one centre, in order, so that the transpose
    needs no sort."""
    indptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    leaves = torch.arange(int(indptr[-1]))
    centres = torch.arange(len(sizes)).repeat_interleave(sizes)
    transpose = (torch.arange(len(leaves) + 1), centres, leaves - indptr[centres])
    return Adjacency.from_csr(indptr, leaves, len(leaves), transpose=transpose)


def _call(aggregator: AnyAggregator, row: Tensor) -> float:
    call: Callable[[Any], Any] = aggregator  # type: ignore[assignment]
    try:
        value = call(row.clone())  # a copy, in case the function writes to it
    except TypeError:  # NumPy's functions pass arguments that tensors do not take
        value = call(row.numpy().copy())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"got {value!r} from the aggregator {name_of(aggregator)}, expected one number; make "
            "it a function of one multiset, a tensor (n,), such as lambda x: x.abs().mean()"
        ) from error
