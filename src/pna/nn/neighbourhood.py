"""The aggregators and scalers of a layer, with their learned parameters."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.degree import (
    DegreeStats,
    Linear,
    Power,
    counted_degree,
    factor,
    resolve_scalers,
    typical_degree,
)
from pna.names import lookup
from pna.nn.batch_context import cached
from pna.ops.aggregators import Aggregator, Std, resolve
from pna.ops.backend import choose
from pna.torch_internals import is_wrapped
from pna.visible import outside_inference, values_readable, values_visible


class _Remembered(NamedTuple):
    """Cached factors of a graph, with their key. `own_tensors` keeps the tensors of the key alive,
    so that no `id` is reused."""

    degree: Callable[[], Tensor | None]
    key: tuple[Any, ...]
    own_tensors: tuple[Tensor, ...]
    factors: Tensor


class _Read(NamedTuple):
    """The values of tensors, and a key that changes when the tensors change."""

    key: tuple[Any, ...]
    own_tensors: tuple[Tensor, ...]
    values: tuple[float, ...]


#: Codes of the built-in scalers in `pna.ops.triton.factors`, by class and α.
_CODES: dict[tuple[type, float], int] = {
    (Power, 0.0): 0, (Power, 1.0): 1, (Power, -1.0): 2,
    (Linear, 0.0): 0, (Linear, 1.0): 3, (Linear, -1.0): 4,
}  # fmt: skip

#: Histograms with fewer entries are accepted without the check in `_is_even`.
_FEWEST = 32

#: Conventions for std, as described in `PNAConv`.
StdConvention = Literal["paper", "pyg"]

_STD: dict[StdConvention, Std] = {"paper": Std(), "pyg": Std(clamp=True)}


def keep_tensors(module: nn.Module, prefix: str, given: Aggregator | Power | Linear) -> None:
    """Register the tensors of an aggregator or scaler with a module, as ``prefix_field``.

    Parameters become parameters of the module, other tensors buffers.
    """
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(value, Tensor):
            _keep(module, f"{prefix}_{field.name}", value)


def with_tensors(module: nn.Module, prefix: str, given: Aggregator) -> Aggregator:
    """Return the aggregator with the current values of the tensors registered by `keep_tensors`."""
    tensors = {
        field.name: getattr(module, f"{prefix}_{field.name}")
        for field in fields(given)
        if hasattr(module, f"{prefix}_{field.name}")
    }
    return replace(given, **tensors) if tensors else given


def _keep(module: nn.Module, name: str, value: Tensor) -> None:
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


class Neighbourhood(nn.Module):
    """The aggregators and scalers of a layer.

    Tensors inside aggregators and scalers (a temperature, an α) become buffers of this module, and
    parameters become parameters.

    Args:
        aggregators: names, classes or objects of `pna.aggregators`.
        scalers: names or objects, as in `pna.scale`.
        deg: histogram of in-degrees, or a `DegreeStats`; may be None if no scaler needs δ.
        train_norm: learn δ, which is a buffer otherwise.
        std: convention for std, as in `PNAConv`.
    """

    mean_degree: Tensor
    mean_log_degree: Tensor

    def __init__(
        self,
        aggregators: Sequence[str | Aggregator | type[Aggregator]],
        scalers: Sequence[str | Power | Linear],
        deg: Tensor | DegreeStats | None,
        train_norm: bool = False,
        std: StdConvention = "paper",
    ) -> None:
        super().__init__()
        convention = lookup("convention of std", std, _STD)
        self._aggregators = [
            convention if given in ("std", Std) else aggregator
            for given, aggregator in zip(aggregators, resolve(aggregators), strict=True)
        ]
        self._scalers = resolve_scalers(scalers)
        stats = deg if isinstance(deg, DegreeStats) or deg is None else _from_histogram(deg)
        for scaler in self._scalers:
            if scaler.delta is None and not scaler.is_identity:
                typical_degree(scaler, stats)
        averages = (stats.mean, stats.mean_log) if stats is not None else (1.0, 1.0)
        for name, value in zip(("mean_degree", "mean_log_degree"), averages, strict=True):
            average = torch.tensor([value])
            _keep(self, name, nn.Parameter(average) if train_norm else average)
        self._averages = averages
        self._last: _Remembered | None = None
        self._read: _Read | None = None
        for kind, objects in (("aggregator", self._aggregators), ("scaler", self._scalers)):
            for i, chosen_one in enumerate(objects):
                keep_tensors(self, f"{kind}_{i}", chosen_one)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Neighbourhood:
        """Restore the full precision of δ on conversion to float64, unless δ has been changed."""
        names = ("mean_degree", "mean_log_degree")
        given = [
            (name, average, self._buffers[name])
            for name, average in zip(names, self._averages, strict=True)
            if name in self._buffers
        ]
        super()._apply(fn, recurse)
        for name, average, before in given:
            now = self._buffers[name]
            assert before is not None and now is not None
            if before.is_meta:
                if not now.is_meta:  # a meta tensor has no values to copy
                    now.fill_(average)
                continue
            wider = now.dtype == torch.float64 != before.dtype
            if wider and before.item() == torch.tensor(average, dtype=before.dtype).item():
                now.fill_(average)
        return self

    def reset_parameters(self) -> None:
        """Reset a learned δ. Learned parameters of aggregators and scalers are left unchanged."""
        if isinstance(self.mean_degree, nn.Parameter):
            with torch.no_grad():
                self.mean_degree.fill_(self._averages[0])
                self.mean_log_degree.fill_(self._averages[1])

    def keep_averages(self) -> None:
        """Let `reset_parameters` restore the present δ, for example that of a checkpoint."""
        self._averages = (self.mean_degree.item(), self.mean_log_degree.item())

    @property
    def num_aggregators(self) -> int:
        return len(self._aggregators)

    @property
    def num_scalers(self) -> int:
        return len(self._scalers)

    @property
    def aggregators(self) -> list[Aggregator]:
        """The aggregators, with the current tensors of this module."""
        return [with_tensors(self, f"aggregator_{i}", a) for i, a in enumerate(self._aggregators)]

    def factors(self, adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
        """Return S(d) of every scaler for every receiver, (receivers, scalers); 0 without edges.

        The factors of the last graph are cached, unless they are learned. On a GPU, do not write
        to δ through `.data`: the cache does not notice the change.
        """
        if not values_readable():
            return self._factors(adjacency, dtype)
        own_tensors = self._own_tensors()
        if any(t.requires_grad or t.is_inference() for t in own_tensors):
            return self._factors(adjacency, dtype)
        key = (dtype, *map(_identity, own_tensors))
        last = self._last
        if last is not None and last.degree() is adjacency.degree and last.key == key:
            return last.factors
        with outside_inference():  # the cache may be used in training
            if all(tensor.device.type == "cpu" for tensor in own_tensors):
                # the layers of a model usually share their factors; on a GPU, `_factors` sees to it
                values = (tuple(tensor.flatten().tolist()) for tensor in own_tensors)
                shared = ("all factors", dtype, *self._scalers, *values)
                factors = cached(shared, adjacency.degree, lambda: self._factors(adjacency, dtype))
            else:
                factors = self._factors(adjacency, dtype)
        self._last = _Remembered(weakref.ref(adjacency.degree), key, own_tensors, factors)
        return factors

    def _own_tensors(self) -> tuple[Tensor, ...]:
        if self._modules:  # of parametrisations
            return (*self.parameters(), *self.buffers())
        own = (*self._parameters.values(), *self._buffers.values())  # the same, but faster
        return tuple(tensor for tensor in own if tensor is not None)

    def _factors(self, adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
        if self._has_kernel(adjacency, dtype):
            from pna.ops.triton.factors import factors

            codes = tuple(_CODES[type(s), float(s.alpha)] for s in self._scalers)
            given = (adjacency, self.mean_log_degree, self.mean_degree, codes)
            averages = self._averages_now()
            if averages is None:
                return factors(*given)
            # the layers of a model usually share their factors
            return cached(("factors", averages, codes), adjacency.degree, lambda: factors(*given))
        degree = adjacency.reached_degree
        counted = counted_degree(degree, dtype)
        columns = []
        for i, scaler in enumerate(self._scalers):
            typical = self.mean_log_degree if isinstance(scaler, Power) else self.mean_degree
            own = typical if scaler.delta is None else scaler.delta
            alpha = getattr(self, f"scaler_{i}_alpha", scaler.alpha)
            delta = getattr(self, f"scaler_{i}_delta", own)
            columns.append(factor(scaler, counted, alpha, delta))
        return torch.stack(columns, dim=1) * (degree > 0)[:, None]

    def _averages_now(self) -> tuple[float, ...] | None:
        """Return δ as numbers, read from the device once; None if it cannot be read, as during a
        capture."""
        own_tensors = (self.mean_degree, self.mean_log_degree)
        if any(tensor.is_inference() for tensor in own_tensors):
            return None
        key = tuple(map(_identity, own_tensors))
        if self._read is None or self._read.key != key:
            if not values_visible():
                return None
            self._read = _Read(key, own_tensors, tuple(tensor.item() for tensor in own_tensors))
        return self._read.values

    def _has_kernel(self, adjacency: Adjacency, dtype: torch.dtype) -> bool:
        """Return whether the kernel can compute the factors: built-in scalers without learned
        parameters, on a GPU, not in float64."""
        if dtype == torch.float64 or torch.compiler.is_compiling():
            return False
        usual = all(
            not isinstance(s.alpha, Tensor) and s.delta is None and (type(s), s.alpha) in _CODES
            for s in self._scalers
        )
        if not usual:
            return False
        given = (adjacency.degree, self.mean_log_degree, self.mean_degree)
        plain = not any(t.requires_grad or is_wrapped(t) for t in given)
        on_gpu = plain and choose(adjacency.device) == "triton"
        return on_gpu and fast_paths.is_on("factors")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_read": None}

    def extra_repr(self) -> str:
        names = [type(aggregator).__name__.lower() for aggregator in self._aggregators]
        return f"{names}, {len(self._scalers)} scalers"


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that changes when the tensor changes. On a CPU it includes the values."""
    values = tuple(tensor.flatten().tolist()) if tensor.device.type == "cpu" else ()
    return (id(tensor), tensor.data_ptr(), tensor._version, values)


def _from_histogram(deg: Tensor) -> DegreeStats:
    if not isinstance(deg, Tensor):
        raise TypeError(
            f"got deg of type {type(deg).__name__}, expected a histogram of in-degrees or a "
            "pna.DegreeStats; make one with pna.DegreeStats.from_graphs(training_set)"
        )
    stats = DegreeStats.from_histogram(deg)
    doubt = _doubt(stats)
    if doubt is not None:
        warnings.warn(
            f"got deg {doubt}, expected a histogram: how many nodes have degree 0, 1, 2 and so on. "
            "If deg holds the degree of every node, pass pna.DegreeStats.from_degrees(deg.long()); "
            "if it is a histogram, pass pna.DegreeStats.from_histogram(deg)",
            stacklevel=5,  # the line that makes the layer
        )
    return stats


def _doubt(stats: DegreeStats) -> str | None:
    """Return why the histogram may be the degrees of all nodes instead; None if it is plausible."""
    if stats.num_nodes < stats.max_degree:
        return (
            f"in which {stats.num_nodes} nodes have degrees of up to {stats.max_degree}, as only "
            "repeated edges could give"
        )
    counts = stats.histogram
    if not _is_even(counts):
        return None
    return (
        f"of {len(counts)} entries, {int(counts.count_nonzero())} of them above 0 and none above "
        f"{int(counts.max())}, as degrees are"
    )


def _is_even(counts: Tensor) -> bool:
    """Return whether counts are small and spread over all entries, like the degrees of nodes.

    A histogram has a peak, or is almost 0 at one end. Histograms of a few dense graphs, with
    degrees of all sizes, are an exception: they cannot be distinguished from degrees.
    """
    if len(counts) < _FEWEST or int(counts.max()) >= len(counts) / 2:
        return False
    return all(int(part.count_nonzero()) > 0.6 * len(part) for part in counts.tensor_split(4))
