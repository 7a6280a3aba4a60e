"""The degree statistics of a training set, with its typical degree δ, and the scalers S(d)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pna.adjacency import Adjacency
from pna.edge_checks import check_edge_index
from pna.names import lookup


class DegreeStats:
    """Degree statistics of a training set: the number of nodes of every degree.

    The counts are integers. Batches can be added in any order and on any number of machines, and
    give the same δ as all nodes at once.
    """

    def __init__(self) -> None:
        self._set(torch.zeros(0, dtype=torch.int64, device="cpu"))

    def _set(self, histogram: Tensor) -> DegreeStats:
        """Store `histogram` without trailing zeros, and its sums as Python numbers.

        They are computed here, so that compiled code never waits for a tensor.
        """
        occurring = histogram.nonzero()
        size = int(occurring[-1]) + 1 if len(occurring) else 0
        self._histogram = histogram[:size].clone()
        self._num_nodes = int(self._histogram.sum())
        degrees = torch.arange(size, device="cpu")
        logs = torch.log1p(degrees.to(torch.float64))
        self._degree_sum = int((degrees * self._histogram).sum())
        self._log_sum = float((logs * self._histogram).sum())
        return self

    @classmethod
    def from_degrees(cls, degrees: Tensor | np.ndarray | Sequence[int]) -> DegreeStats:
        """From the degree of every node: integers (nodes,), on any device."""
        return cls().update(degrees)

    @classmethod
    def from_histogram(cls, histogram: Tensor | np.ndarray | Sequence[int]) -> DegreeStats:
        """From counts of nodes, (max degree + 1,), indexed by degree: the `deg` of PyG's PNAConv.

        Whole numbers stored as floats are accepted.
        """
        counts = _check_histogram(histogram)
        if not counts.any():
            raise ValueError(
                f"got a histogram of no nodes ({counts.numel()} entries, all zero), expected the "
                "count of nodes of every degree; make it with torch.bincount(degrees)"
            )
        return cls()._set(counts)

    @classmethod
    def from_graphs(cls, graphs: Any, *, outgoing: bool = False) -> DegreeStats:
        """Count in-degrees of a loader, data set or list of graphs, or of one graph.

        With `outgoing`, count out-degrees, which ``direction="both"`` of a layer needs too.

        A graph is a PyG `Data` or `Batch`, an edge type ``data[edge_type]`` of `HeteroData`, a
        `pna.Adjacency`, or has one as ``.adjacency``. Isolated nodes count. A neighbour-sampled
        batch has the degrees of its sampled edges, and gives a warning: pass the whole graph. An
        `Adjacency` counts with its true in-degrees (`Adjacency.with_degree`).
        """
        total = torch.zeros(0, dtype=torch.int64, device="cpu")
        is_warned = False
        for graph in [graphs] if _is_graph(graphs) else graphs:
            sampled = None if is_warned else _sampled_by(graph)
            if sampled is not None:
                is_warned = True
                warnings.warn(
                    f"got a batch of sampled neighbours (it has {sampled}), expected whole graphs: "
                    "δ will be that of the sample, which has smaller degrees; pass the whole "
                    "graph, DegreeStats.from_graphs(data), and see docs/sampling.md",
                    stacklevel=2,
                )
            total = _add(total, _count(_degree(graph, outgoing)))
        return cls()._set(total)

    def update(self, degrees: Tensor | np.ndarray | Sequence[int]) -> DegreeStats:
        """Add the degrees of more nodes, (nodes,), in place."""
        return self._set(_add(self._histogram, _count(degrees)))

    def merge(self, other: DegreeStats) -> DegreeStats:
        """Add the nodes counted by `other`, in place."""
        if not isinstance(other, DegreeStats):
            raise TypeError(
                f"got {type(other).__name__}, expected DegreeStats; for degrees use update(degrees)"
            )
        return self._set(_add(self._histogram, other._histogram))

    def __add__(self, other: DegreeStats) -> DegreeStats:
        return DegreeStats().merge(self).merge(other)

    @property
    def histogram(self) -> Tensor:
        """A copy of the counts, (max degree + 1,), int64 on the CPU; PyG calls it `deg`."""
        return self._histogram.clone()

    @property
    def num_nodes(self) -> int:
        """Number of counted nodes."""
        return self._num_nodes

    @property
    def max_degree(self) -> int:
        """The largest degree that occurs."""
        self._require_nodes()
        return len(self._histogram) - 1

    @property
    def mean(self) -> float:
        """Mean degree, the δ of the linear scalers."""
        self._require_nodes()
        return self._degree_sum / self._num_nodes

    @property
    def mean_log(self) -> float:
        """δ of the paper: the mean of log(d + 1) over all nodes."""
        self._require_nodes()
        return self._log_sum / self._num_nodes

    def _require_nodes(self) -> None:
        if self._num_nodes == 0:
            raise ValueError(
                "got DegreeStats of no nodes, expected at least one; "
                "call update(degrees), or make it with DegreeStats.from_graphs(training_set)"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The histogram, to be saved. Everything else follows from it."""
        return {"histogram": self.histogram}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the histogram by that of a saved state."""
        if "histogram" not in state:
            raise ValueError(
                f"got a state with keys {list(state)}, expected 'histogram'; "
                "pass what DegreeStats.state_dict() gave"
            )
        self._set(_check_histogram(state["histogram"]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DegreeStats):
            return NotImplemented
        return torch.equal(self._histogram, other._histogram)

    def __repr__(self) -> str:
        if self._num_nodes == 0:
            return "DegreeStats(num_nodes=0)"
        return (
            f"DegreeStats(num_nodes={self.num_nodes}, mean={self.mean:.4g}, "
            f"mean_log={self.mean_log:.4g}, max_degree={self.max_degree})"
        )


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"got {name} of shape {tuple(value.shape)}, expected one element; "
                "make one scaler for each"
            )
    elif not isinstance(value, int | float):
        raise TypeError(
            f"got {name} of type {type(value).__name__}, expected a number, or a tensor to learn"
        )
    elif not math.isfinite(value):
        raise ValueError(f"got {name}={value}, expected a finite number; check how it was made")


@dataclass(frozen=True, eq=False)
class Scaler:
    """A power of a function of the degree, divided by its typical value."""

    alpha: float | Tensor
    delta: float | Tensor | None = None

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha)
        if self.delta is None:
            return
        _check_number("delta", self.delta)
        if not isinstance(self.delta, Tensor) and self.delta <= 0:
            raise ValueError(
                f"got delta={self.delta}, expected a positive number; leave it out to take δ from "
                "stats"
            )

    @property
    def is_identity(self) -> bool:
        return not isinstance(self.alpha, Tensor) and self.alpha == 0


@dataclass(frozen=True, eq=False)
class Power(Scaler):
    """S(d) = (log(d + 1) / δ)^α. Without `delta`, δ is `mean_log` of the statistics.

    α and δ are numbers, or tensors of one element, which may be learned; δ must stay positive.
    """

    def measure(self, degree: Tensor) -> Tensor:
        return torch.log1p(degree)

    def typical(self, stats: DegreeStats) -> float:
        return stats.mean_log


@dataclass(frozen=True, eq=False)
class Linear(Scaler):
    """S(d) = (d / δ)^α. Without `delta`, δ is the mean degree of the statistics.

    With α = δ = 1 it turns a mean into a sum.
    """

    alpha: float | Tensor = 1.0

    def measure(self, degree: Tensor) -> Tensor:
        return degree

    def typical(self, stats: DegreeStats) -> float:
        return stats.mean


#: The names PyG gives to scalers.
SCALERS: dict[str, Power | Linear] = {
    "identity": Power(0.0),
    "amplification": Power(1.0),
    "attenuation": Power(-1.0),
    "linear": Linear(1.0),
    "inverse_linear": Linear(-1.0),
}


def scale(
    out: Tensor,
    degree: Tensor,
    scalers: Sequence[str | Power | Linear],
    stats: DegreeStats | None = None,
) -> Tensor:
    """Multiply aggregates (receivers, A, F) by every scaler: (receivers, S, A, F), same dtype.

    `degree` (receivers,) is the integer in-degree of the receivers. `stats` may be left out if
    every scaler is the identity or has its own delta.
    """
    if out.dim() != 3:
        raise ValueError(
            f"got out of shape {tuple(out.shape)}, expected (receivers, aggregators, features), "
            "as pna.aggregate gives it"
        )
    if not out.dtype.is_floating_point:
        raise TypeError(
            f"got out of dtype {out.dtype}, expected a floating type; convert it with out.float()"
        )
    factors = scaler_factors(degree, scalers, stats, out.dtype)
    if out.shape[0] != degree.shape[0]:
        raise ValueError(
            f"got {degree.shape[0]} degrees for {out.shape[0]} receivers, expected one for each; "
            "pass the degree of the Adjacency that out was aggregated over"
        )
    if out.device != degree.device:
        raise ValueError(
            f"got out on {out.device} and degree on {degree.device}, expected one device; "
            "move it with degree.to(out.device)"
        )
    return (factors[:, :, None, None] * out[:, None]).to(out.dtype)


def scaler_factors(
    degree: Tensor,
    scalers: Sequence[str | Power | Linear],
    stats: DegreeStats | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """S(d) of every scaler at every receiver, (receivers, S), for aggregates of type `dtype`.

    The result is float64 for float64, else float32. A degree of 0 counts as 1, so that no factor
    and no gradient of α or δ is NaN or infinite. The aggregates of such receivers are 0.
    """
    if not isinstance(degree, Tensor):
        raise TypeError(
            f"got degree of type {type(degree).__name__}, expected an integer tensor (receivers,); "
            "pass the degree of an Adjacency"
        )
    _check_integers("degree", degree, "receivers")
    if stats is not None and not isinstance(stats, DegreeStats):
        raise TypeError(
            f"got stats of type {type(stats).__name__}, expected DegreeStats; "
            "make it with DegreeStats.from_histogram or DegreeStats.from_degrees"
        )
    counted = counted_degree(degree, dtype)
    factors = []
    for scaler in resolve_scalers(scalers):
        known = scaler.is_identity or scaler.delta is not None
        delta = scaler.delta if known else typical_degree(scaler, stats)
        factors.append(factor(scaler, counted, scaler.alpha, delta))
    return torch.stack(factors, dim=1)


def counted_degree(degree: Tensor, dtype: torch.dtype) -> Tensor:
    """Degrees for scalers: 0 counts as 1, in the type of the factors of aggregates of `dtype`."""
    return degree.clamp(min=1).to(torch.float64 if dtype == torch.float64 else torch.float32)


def factor(
    scaler: Power | Linear, degree: Tensor, alpha: float | Tensor, delta: float | Tensor | None
) -> Tensor:
    """S(d) at every counted degree, with this α and δ instead of those of the scaler."""
    if scaler.is_identity:
        return torch.ones_like(degree)
    assert delta is not None
    measure, delta = scaler.measure(degree), _number(delta)
    if isinstance(alpha, Tensor):
        return (measure / delta) ** _number(alpha)
    if alpha == 1:
        return measure / delta
    return delta / measure if alpha == -1 else (measure / delta) ** alpha


def _number(value: float | Tensor) -> float | Tensor:
    """A tensor without axes does not change the type of what it is combined with."""
    return value.reshape(()) if isinstance(value, Tensor) else value


def typical_degree(scaler: Power | Linear, stats: DegreeStats | None) -> float:
    """δ of a scaler without its own."""
    if stats is None:
        raise ValueError(
            f"got no stats, expected them for {scaler}; pass "
            "DegreeStats.from_graphs(training_set), or give the scaler a delta"
        )
    delta = scaler.typical(stats)
    if delta == 0:
        raise ValueError(
            f"got δ = 0 from {stats}, expected statistics of a graph with edges; every node has "
            "degree 0: check the training set, or use the identity scaler alone (to train: "
            "--model pna-no-scalers)"
        )
    return delta


def resolve_scalers(scalers: Sequence[str | Power | Linear]) -> list[Power | Linear]:
    """The scalers of a list of names or objects."""
    if isinstance(scalers, str | Power | Linear):
        raise TypeError(f"got scalers={scalers!r}, expected a list; write [{scalers!r}]")
    if len(scalers) == 0:
        raise ValueError("got no scalers, expected at least one; for none pass ['identity']")
    found = []
    for scaler in scalers:
        if isinstance(scaler, str):
            scaler = lookup("scaler", scaler, SCALERS)
        if not isinstance(scaler, Power | Linear):
            raise TypeError(
                f"got a scaler of type {type(scaler).__name__}, expected a name "
                f"({', '.join(SCALERS)}), a pna.degree.Power or a pna.degree.Linear"
            )
        found.append(scaler)
    return found


def _is_graph(value: Any) -> bool:
    # PyG's data sets have the attributes of their graphs, but are not one graph.
    is_hetero = hasattr(value, "edge_types")  # refused later, as in a list
    return not isinstance(value, Dataset) and (_holds_degrees(value) or is_hetero)


def _holds_degrees(graph: Any) -> bool:
    source = getattr(graph, "adjacency", graph)
    edges = getattr(graph, "edge_index", None)
    return edges is not None or isinstance(getattr(source, "degree", None), Tensor)


#: What PyG's loaders of sampled neighbours add to a batch; all names of a line must be there.
_SAMPLED = (("num_sampled_nodes",), ("num_sampled_edges",), ("n_id", "input_id"), ("root_n_id",))


def _sampled_by(graph: Any) -> str | None:
    """The attributes by which a batch of sampled neighbours is known; None if it is none."""
    for names in _SAMPLED:
        if all(getattr(graph, name, None) is not None for name in names):
            return " and ".join(names)
    return None


def _degree(graph: Any, outgoing: bool) -> Tensor:
    """In-degree or out-degree of every node, from the edges if there are any: users of PyG may
    store anything as ``data.degree``.
    """
    if not _holds_degrees(graph):
        raise TypeError(
            f"got {type(graph).__name__}, expected a PyG Data or Batch with an edge_index, or a "
            "pna.Adjacency; pass a list or a loader of these, for HeteroData data[edge_type] of "
            "each edge type"
        )
    if isinstance(graph, Adjacency):
        return graph.out_degree if outgoing else graph.degree
    if getattr(graph, "edge_index", None) is not None:
        of_one_type = hasattr(graph, "num_nodes")
        sizes = (graph.num_nodes, graph.num_nodes) if of_one_type else graph.size()
        check_edge_index(graph.edge_index, *sizes)
        end = 0 if outgoing else 1
        return torch.bincount(graph.edge_index[end].long(), minlength=sizes[end])
    held = getattr(graph, "adjacency", graph)
    return held.out_degree if outgoing else held.degree


def _count(degrees: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    """Histogram of degrees, int64 on the CPU."""
    values = degrees if isinstance(degrees, Tensor) else torch.as_tensor(degrees, device="cpu")
    values = values.long() if values.numel() == 0 else values  # an empty list is one of floats
    _check_integers("degrees", values, "nodes")
    values = values.long()
    if values.numel() == 0:
        return values.cpu()
    if int(values.min()) < 0:
        raise ValueError(
            f"got a degree of {int(values.min())}, expected 0 or more; count edges, "
            "do not subtract them"
        )
    return torch.bincount(values).cpu()


_FROM_DEGREES = ", or pass the degree of every node to DegreeStats.from_degrees"


def _check_histogram(histogram: Any) -> Tensor:
    """The histogram as int64 on the CPU."""
    given = isinstance(histogram, Tensor)
    counts = (histogram if given else torch.as_tensor(histogram, device="cpu")).detach().cpu()
    if counts.dim() != 1:
        raise ValueError(
            f"got a histogram of shape {tuple(counts.shape)}, expected (max degree + 1,); "
            f"make it with torch.bincount(degrees){_FROM_DEGREES}"
        )
    if counts.dtype == torch.bool or counts.dtype.is_complex:
        raise TypeError(
            f"got a histogram of dtype {counts.dtype}, expected integers; "
            "make it with torch.bincount(degrees)"
        )
    is_integer = counts.isfinite() & (counts == counts.round())
    if not bool(is_integer.all()):
        raise ValueError(
            f"got a histogram with {float(counts[~is_integer][0]):g} in it, expected counts of "
            f"nodes; multiply frequencies by the number of nodes and round{_FROM_DEGREES}"
        )
    counts = counts.long()
    if bool((counts < 0).any()):
        raise ValueError(
            f"got a histogram with {int(counts.min())} nodes of degree {int(counts.argmin())}, "
            f"expected 0 or more; make it with torch.bincount(degrees){_FROM_DEGREES}"
        )
    return counts


def _add(a: Tensor, b: Tensor) -> Tensor:
    """Sum of two histograms of any lengths."""
    total = torch.zeros(max(len(a), len(b)), dtype=torch.int64, device="cpu")
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def _check_integers(name: str, values: Tensor, axis: str) -> None:
    if values.dim() != 1:
        raise ValueError(
            f"got {name} of shape {tuple(values.shape)}, expected ({axis},), such as the degree "
            "of an Adjacency; flatten it"
        )
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(
            f"got {name} of dtype {values.dtype}, expected an integer type; convert it with "
            f"{name}.long()"
        )
