"""Which aggregators and scalers a graph set needs, with the numbers behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.theory.neighbourhoods import DistinctNeighbourhoods, Hashes, count, moment_order

MOMENTS = ("mean", "std", "moment_3", "moment_4", "moment_5")
FOUR = ("mean", "std", "max", "min")
NONE = ("identity",)
SCALED = ("identity", "amplification")
PAPER = ("identity", "amplification", "attenuation")

#: Aggregators that may be recommended.
CANDIDATES = ("mean", "std", "max", "min", "moment_3", "moment_4")
#: Another aggregator is worth having if it distinguishes this share of neighbourhoods more.
WORTH = 0.01

#: Sets that are shown for comparison.
SHOWN: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    *(((name,), NONE) for name in ("mean", "max", "sum")),
    (("mean",), SCALED),
    (FOUR, NONE),
    (FOUR, PAPER),
)


@dataclass(frozen=True)
class Merging:
    """Aggregators with scalers, and the number of neighbourhoods that they merge: distinct
    neighbourhoods minus distinct results.
    """

    aggregators: tuple[str, ...]
    scalers: tuple[str, ...]
    merged: int

    @property
    def name(self) -> str:
        scaled = "" if self.scalers == NONE else f" × {', '.join(self.scalers)}"
        return ", ".join(self.aggregators) + scaled

    @property
    def outputs(self) -> int:
        """Number of results for each feature."""
        return len(self.aggregators) * len(self.scalers)


@dataclass(frozen=True)
class MomentUse:
    """The k-th moment beside the lower ones, all with scalers."""

    order: int
    share: float  # of neighbourhoods with at least so many neighbours: for others it is not needed
    merged: int  # by the first k moments


@dataclass(frozen=True)
class Advice:
    """Aggregators and scalers that a graph set needs, and the counts behind them."""

    split: str  # whose graphs were looked at; empty: all
    graphs: int
    nodes: int
    neighbourhoods: int  # nodes with in-neighbours
    distinct: int  # of those, after rounding
    grid: float  # in standard deviations of each feature
    features: tuple[str, ...]  # of senders and edges
    degrees: tuple[int, int]  # least and greatest in-degree of all nodes
    mean_degree: float
    delta: float  # mean of log(d + 1)
    constant_degree: bool  # of nodes with in-neighbours: scalers then add nothing
    unavoidable: int  # merged though the values of each feature, by itself, are all known
    sets: tuple[Merging, ...]
    moments: tuple[MomentUse, ...]
    recommended: Merging
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def advise(graphs: GraphSet, *, grid: float = 0.1, split: str | None = None) -> Advice:
    """Count which neighbourhoods sets of aggregators and scalers merge, and recommend one.

    A neighbourhood is the multiset of what reaches a node: the features of senders and
    edges, rounded to a grid. Whole-numbered columns are categories, each a feature that is 0 or 1,
    as an embedding sees them. Statistics are rounded to the same grid: a finer one tells
    more apart with fewer aggregators.

    Args:
        graphs: any graph set.
        grid: its step, in standard deviations of each feature.
        split: whose graphs to look at; if not said, "train" where there is such a split.
    """
    if not 0 < grid < float("inf"):
        raise ValueError(f"got grid={grid:g}, expected a number above 0, such as 0.1")
    if split is None:
        split = "train" if "train" in graphs.splits else ""
    graphs = (graphs.split(split) if split else graphs).to("cpu")
    if graphs.num_edges == 0:
        raise ValueError("got a graph set without an edge, expected neighbourhoods to look at")
    hoods = DistinctNeighbourhoods.of(graphs, grid)
    merging_of = _MergingOf(hoods, tuple(dict.fromkeys([*CANDIDATES, *MOMENTS, "sum"])))
    constant = bool((hoods.degree == hoods.degree[0]).all())
    sets = tuple(merging_of(*names) for names in SHOWN)
    moments = tuple(
        MomentUse(k, float(np.mean(graphs.degree.numpy() >= k)) * graphs.num_nodes / hoods.total,
                  merging_of(MOMENTS[:k], PAPER).merged)
        for k in range(1, len(MOMENTS) + 1)
    )  # fmt: skip
    recommended = _recommend(merging_of, constant, int(hoods.degree.max()))
    stats = graphs.degree_stats()
    unavoidable = hoods.distinct - count(hoods.separately())
    reasons = _reasons(merging_of, hoods, constant, recommended, moments, unavoidable)
    return Advice(
        split=split,
        graphs=len(graphs),
        nodes=graphs.num_nodes,
        neighbourhoods=hoods.total,
        distinct=hoods.distinct,
        grid=grid,
        features=(*graphs.node_features, *graphs.edge_features),
        degrees=(int(graphs.degree.min()), stats.max_degree),
        mean_degree=stats.mean,
        delta=stats.mean_log,
        constant_degree=constant,
        unavoidable=unavoidable,
        sets=sets,
        moments=moments,
        recommended=recommended,
        reasons=reasons,
    )


class _MergingOf:
    """Counts of merged neighbourhoods by sets of aggregators, each computed once."""

    def __init__(self, hoods: DistinctNeighbourhoods, aggregators: Sequence[str]) -> None:
        self.rows = {name: i for i, name in enumerate(aggregators)}
        self.distinct = hoods.distinct
        self._alone, self._scaled = hoods.statistics(aggregators)

    def __call__(self, aggregators: tuple[str, ...], scalers: tuple[str, ...]) -> Merging:
        hashes: Hashes = self._alone if scalers == NONE else self._scaled
        parts = hashes[[self.rows[name] for name in aggregators]]
        merged = self.distinct - count(parts.sum(axis=0, dtype=np.uint64))
        return Merging(aggregators, scalers, merged)


def _recommend(merging_of: _MergingOf, constant: bool, max_degree: int) -> Merging:
    """The fewest outputs that tell all but as many apart as all candidates with scalers do.

    No moment of a higher order than there are neighbours: it follows from the lower ones.
    """
    candidates = tuple(name for name in CANDIDATES if moment_order(name) <= max(max_degree, 2))
    best = merging_of(candidates, NONE if constant else SCALED)
    enough = best.merged + WORTH * merging_of.distinct
    choices = [
        (names, scalers)
        for size in range(1, len(candidates) + 1)
        for names in itertools.combinations(candidates, size)
        for scalers in ((NONE,) if constant else (NONE, SCALED))
    ]

    def outputs(choice: tuple[tuple[str, ...], tuple[str, ...]]) -> int:
        return len(choice[0]) * len(choice[1])

    alike = itertools.groupby(sorted(choices, key=outputs), key=outputs)
    merging = (
        min((merging_of(*c) for c in equal), key=lambda found: found.merged) for _, equal in alike
    )
    return next(found for found in merging if found.merged <= enough)


def _results(merging: Merging) -> str:
    return "1 result" if merging.outputs == 1 else f"{merging.outputs} results"


def _worth_of(moments: tuple[MomentUse, ...], distinct: int) -> str:
    """A sentence on how many moments are worth having."""
    useful = moments[0]
    for before, after in itertools.pairwise(moments):
        if after.share > 0 and before.merged - after.merged > WORTH * distinct:
            useful = after
    k, later = useful.order, moments[useful.order :]
    if k == 1:
        words = "of the moments the mean is enough"
    else:
        words = (
            f"of the moments the first {k} are worth having: {useful.share:.0%} of neighbourhoods "
            f"have {k} or more neighbours"
        )
    if not later:
        return words
    if later[0].share == 0:
        return f"{words}; none has {k + 1}, and later moments follow from these"
    return f"{words}; each later one tells less than {WORTH:.0%} more apart"


def _reasons(
    merging_of: _MergingOf,
    hoods: DistinctNeighbourhoods,
    constant: bool,
    recommended: Merging,
    moments: tuple[MomentUse, ...],
    unavoidable: int,
) -> tuple[str, ...]:
    distinct = hoods.distinct

    def share(merged: int) -> str:
        return f"{merged:,} of {distinct:,} ({merged / distinct:.1%})"

    paper = merging_of(FOUR, PAPER)
    reasons = [
        f"{recommended.name} ({_results(recommended)} a feature) leaves "
        f"{share(recommended.merged)} distinct neighbourhoods merged; the paper's {paper.name} "
        f"({_results(paper)}) {share(paper.merged)}"
    ]
    without = merging_of(recommended.aggregators, NONE)
    if constant:
        size = "1 neighbour" if hoods.degree[0] == 1 else f"{hoods.degree[0]} neighbours"
        reasons.append(f"every neighbourhood has {size}: scalers multiply by a constant and add "
                       "nothing")  # fmt: skip
    elif recommended.scalers != NONE:
        reasons.append(f"without scalers it would be {share(without.merged)}; attenuation "
                       "beside amplification tells nothing further apart, but may help to "
                       "learn")  # fmt: skip
    else:
        scaled = merging_of(recommended.aggregators, SCALED)
        reasons.append(f"with scalers it would be {share(scaled.merged)}: little more is told "
                       "apart by the degree")  # fmt: skip
    reasons.append(_worth_of(moments, distinct))
    if unavoidable:
        reasons.append(f"{share(unavoidable)} differ only in how features go together, which no "
                       "aggregator of single features sees: mix them before, with a layer M "
                       "(PNAConv has one)")  # fmt: skip
    return tuple(reasons)
