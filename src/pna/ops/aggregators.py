"""The aggregators of the paper, by name or as small objects where they have parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pna.names import lookup


@dataclass(frozen=True, eq=False)
class Aggregator:
    """A function of the multiset of messages that reach a node; 0 where none does."""


@dataclass(frozen=True, eq=False)
class Mean(Aggregator):
    """(1/d) Σ m_j"""


@dataclass(frozen=True, eq=False)
class Sum(Aggregator):
    """Σ m_j"""


@dataclass(frozen=True, eq=False)
class Max(Aggregator):
    """Largest m_j of each feature; its gradient goes to the edge that was given first."""


@dataclass(frozen=True, eq=False)
class Min(Aggregator):
    """Smallest m_j of each feature; its gradient goes to the edge that was given first."""


@dataclass(frozen=True, eq=False)
class Var(Aggregator):
    """Mean of (m_j − mean)²"""


@dataclass(frozen=True, eq=False)
class Std(Aggregator):
    """sqrt(var + ε), or with ``clamp``, as PyG has it: sqrt(var) where var > ε, else 0."""

    epsilon: float = 1e-5
    clamp: bool = False

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)


@dataclass(frozen=True, eq=False)
class Moment(Aggregator):
    """sign(c)·((|c| + ε)^(1/n) − ε^(1/n)) with c the mean of (m_j − mean)^n.

    With ``published``, the authors' form sign(c)·(|c| + ε)^(1/n), which jumps at c = 0.
    """

    order: int
    epsilon: float = 1e-5
    published: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or self.order < 3:
            raise ValueError(
                f"got a moment of order {self.order!r}, expected a whole number of at least 3; "
                "the first two are 'mean' and 'std'"
            )
        _check_epsilon(self.epsilon)


@dataclass(frozen=True, eq=False)
class Softmax(Aggregator):
    """Σ w_j m_j exp(t m_j) / Σ w_k exp(t m_k), elementwise.

    The temperature t is a number or a tensor that broadcasts over features, and may be learned;
    the weights w ≥ 0, one for each edge as given, are 1 unless there are some. The gradient of a
    weight grows as the exponential of how far its message is above those that count.
    """

    temperature: float | Tensor = 1.0
    weight: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Softmin(Softmax):
    """−softmax(−m)"""


@dataclass(frozen=True, eq=False)
class NormalisedMean(Aggregator):
    """Σ m_j / sqrt(d_i d_j), with d_i the receiver's in-degree and d_j the sender's out-degree."""


@dataclass(frozen=True, eq=False)
class KthSmallest(Aggregator):
    """The k-th smallest m_j of each feature, counted from 1; 0 where fewer than k arrive."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"got k={self.k!r}, expected a whole number of at least 1")


#: What a name stands for; ``moment_n`` stands for ``Moment(n)``.
NAMES: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "sum": Sum,
    "max": Max,
    "min": Min,
    "var": Var,
    "std": Std,
    "softmax": Softmax,
    "softmin": Softmin,
    "normalised_mean": NormalisedMean,
}
_KNOWN = {*NAMES.values(), Moment, KthSmallest}


def resolve(aggregators: Sequence[str | Aggregator | type[Aggregator]]) -> list[Aggregator]:
    """The objects meant by a list of names, classes or objects."""
    if isinstance(aggregators, str) or not isinstance(aggregators, Sequence):
        raise TypeError(
            f"got aggregators {aggregators!r}, expected a list; write [{aggregators!r}] for one"
        )
    if len(aggregators) == 0:
        raise ValueError(
            f"got an empty list of aggregators, expected at least one of {', '.join(NAMES)}"
        )
    return [_resolve_one(aggregator) for aggregator in aggregators]


def _resolve_one(aggregator: str | Aggregator | type[Aggregator]) -> Aggregator:
    if isinstance(aggregator, Aggregator) and type(aggregator) in _KNOWN:
        return aggregator
    if isinstance(aggregator, type) and aggregator in _KNOWN:
        return aggregator()
    if not isinstance(aggregator, str):
        raise TypeError(
            f"got aggregator {aggregator!r}, expected a name or one of the aggregator objects"
        )
    order = aggregator.removeprefix("moment_")
    if order != aggregator and order.isdecimal():
        return Moment(int(order))
    return lookup("aggregator", aggregator, {**NAMES, "moment_3": Moment})()


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ValueError(
            f"got epsilon={epsilon!r}, expected a number above 0: the root is not "
            "differentiable at 0 without it"
        )
