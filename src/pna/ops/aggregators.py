"""The aggregators of the paper, and the tables that are derived from them.

An aggregator declares its definition, its response to a shift of all messages, and its kernel if it
has one. The rest of the package reads names, definitions, fused kinds and shift rules from here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from pna.names import lookup

if TYPE_CHECKING:
    from pna.ops.reference import Neighbourhoods

#: The public names of `pna.aggregators`.
__all__ = [
    "Aggregator", "KthSmallest", "Max", "Mean", "Min", "Moment", "NormalisedMean",
    "Softmax", "Softmin", "Std", "Sum", "Var",
]  # fmt: skip

Shift = Literal["once", "degree", "as ones", "none", "unknown"]

#: What adding one vector to all messages of a receiver adds to its aggregate.
SHIFTS: dict[str, str] = {
    "once": "the vector, as for a mean or a maximum",
    "degree": "the vector times the number of messages, as for a sum",
    "as ones": "the vector times the aggregate of messages that are all 1, as for a weighted sum",
    "none": "nothing, as for a variance",
    "unknown": "something else, or you do not know; always right, but layers make every message",
}


@dataclass(frozen=True, eq=False)
class Aggregator:
    """A function of the multiset of messages to a node; 0 for a node without messages.

    A subclass declares `shift`, what adding one vector to all messages of a receiver adds to the
    aggregate:

    - ``"once"``: the vector, as for a mean or a maximum,
    - ``"degree"``: the vector times the number of messages, as for a sum,
    - ``"as ones"``: the vector times the aggregate of messages that are all 1,
    - ``"none"``: nothing, as for a variance,
    - ``"unknown"``: something else, or not known. Always correct; layers then materialise messages.

    It also defines `aggregate`. Parameters are fields of a frozen dataclass; tensors among them may
    be learned. `pna.testing.check_aggregator` finds mistakes.

    Example:
        >>> class Midrange(Aggregator):
        ...     shift = "once"
        ...
        ...     def aggregate(self, hood):
        ...         return (hood.max(hood.messages) + hood.min(hood.messages)) / 2
        >>> pna.aggregate(x, adj, [Midrange])[1, 0].tolist()
        [2.0, 1.0]
    """

    name: ClassVar[str | None] = None  # name of a built-in one in a list of names
    kernel: ClassVar[str | None] = None  # statistic of the fused kernels, for a built-in one

    if TYPE_CHECKING:

        @property
        def shift(self) -> Shift:
            """See above; a property if it depends on the parameters."""

        def aggregate(self, hood: Neighbourhoods) -> Tensor:
            """The definition: messages grouped by receiver to (receivers, features).

            Rows of receivers without messages, and their gradients, must be finite. These rows are
            set to 0 afterwards.
            """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not callable(getattr(cls, "aggregate", None)):
            raise TypeError(
                f"got an aggregator {cls.__name__} without a definition, expected a method "
                "aggregate(self, hood) that makes (receivers, features) of the messages in "
                "hood.messages, say: return (hood.max(hood.messages) + "
                "hood.min(hood.messages)) / 2"
            )
        shift = vars(cls).get("shift")  # not inherited: a subclass may compute something else
        if not isinstance(shift, property):
            _check_shift(cls, shift)


def _check_shift(cls: type[Aggregator], shift: object) -> None:
    if isinstance(shift, str) and shift in SHIFTS:
        return
    got = "no shift of its own" if shift is None else f"shift={shift!r}"
    choices = "; ".join(f"{name!r}: {meaning}" for name, meaning in SHIFTS.items())
    raise TypeError(
        f"got an aggregator {cls.__name__} with {got}, expected a class attribute `shift` that "
        "says what adding one vector to all messages of a receiver adds to its aggregate. "
        f"{choices}"
    )


def shift_of(aggregator: Aggregator) -> Shift:
    """What adding one vector to all messages of a receiver adds to this aggregate."""
    shift = aggregator.shift
    if shift not in SHIFTS:
        _check_shift(type(aggregator), shift)
    return shift


@dataclass(frozen=True, eq=False)
class Mean(Aggregator):
    """(1/d) Σ m_j

    Example:
        >>> pna.aggregate(x, adj, ["mean"])[1, 0].tolist()
        [2.0, 1.0]
    """

    name, kernel, shift = "mean", "mean", "once"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.mean_message()


@dataclass(frozen=True, eq=False)
class Sum(Aggregator):
    """Σ m_j

    Example:
        >>> pna.aggregate(x, adj, ["sum"])[1, 0].tolist()
        [4.0, 2.0]
    """

    name, kernel, shift = "sum", "sum", "degree"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        total, power = hood.scaled_sum(hood.messages)
        return total * power


@dataclass(frozen=True, eq=False)
class Max(Aggregator):
    """Largest m_j of each feature; among equal ones, the edge given first gets the gradient.

    Example:
        >>> pna.aggregate(x, adj, ["max"])[1, 0].tolist()
        [3.0, 2.0]
    """

    name, kernel, shift = "max", "max", "once"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.max(hood.messages)


@dataclass(frozen=True, eq=False)
class Min(Aggregator):
    """Smallest m_j of each feature; among equal ones, the edge given first gets the gradient.

    Example:
        >>> pna.aggregate(x, adj, ["min"])[1, 0].tolist()
        [1.0, 0.0]
    """

    name, kernel, shift = "min", "min", "once"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.min(hood.messages)


@dataclass(frozen=True, eq=False)
class Var(Aggregator):
    """Mean of (m_j − mean)²

    Example:
        >>> pna.aggregate(x, adj, ["var"])[1, 0].tolist()
        [1.0, 1.0]
    """

    name, kernel, shift = "var", "var", "none"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.mean(hood.power(2))


@dataclass(frozen=True, eq=False)
class Std(Aggregator):
    """sqrt(var + ε); with ``clamp``, as in PyG: sqrt(var) if var > ε, else 0.

    Example:
        >>> paper, pyg = pna.aggregate(x, adj, ["std", Std(clamp=True)])[0]  # one message
        >>> torch.testing.assert_close(paper, torch.full((2,), 1e-5).sqrt())
        >>> pyg.tolist()
        [0.0, 0.0]
    """

    name, kernel, shift = "std", "std", "none"

    epsilon: float = 1e-5
    clamp: bool = False

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        var = hood.mean(hood.power(2))
        if self.clamp:
            spread = var > self.epsilon
            return torch.where(spread, torch.where(spread, var, 1).sqrt(), var * 0)
        return (var.relu() + self.epsilon).sqrt()


@dataclass(frozen=True, eq=False)
class Moment(Aggregator):
    """`sign(c)·((|c| + ε)^(1/n) − ε^(1/n))` with c the mean of (m_j − mean)^n.

    With ``published``, the authors' form `sign(c)·(|c| + ε)^(1/n)`, discontinuous at c = 0.

    Example:
        >>> fourth = pna.aggregate(x, adj, ["moment_4"])[1, 0]  # Moment(4)
        >>> torch.testing.assert_close(fourth, torch.full((2,), (1 + 1e-5) ** 0.25 - 1e-5**0.25))
    """

    shift = "none"

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

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        c = hood.mean(hood.power(self.order))
        epsilon, root = self.epsilon, 1 / self.order
        if self.published:
            # for many equal messages, c is not exactly 0, where this form is discontinuous
            equal = hood.largest(hood.messages) == -hood.largest(-hood.messages)
            c = torch.where(equal & c.isfinite(), 0, c)
            return c.sign() * (c.abs() + epsilon) ** root
        sign = torch.where(c < 0, -1, 1)  # 1 at c = 0, where the gradient is not 0
        at_zero = torch.full_like(c, epsilon) ** root  # rounded like the other root
        return sign * ((sign * c + epsilon) ** root - at_zero)


@dataclass(frozen=True, eq=False)
class Softmax(Aggregator):
    """Σ w_j m_j exp(t m_j) / Σ w_k exp(t m_k), elementwise.

    The temperature t is a number, or a tensor that broadcasts over features and may be learned. The
    weights w ≥ 0, one for each edge in the given order, are 1 by default. The gradient of a weight
    grows exponentially with the difference between its message and the largest one that has a
    positive weight.

    Example:
        >>> learned = torch.nn.Parameter(torch.tensor(2.0))
        >>> between = pna.aggregate(x, adj, [Softmax(temperature=learned)])[1, 0, 0]
        >>> 2.0 < between.item() < 3.0  # t = 0 is the mean, t → ∞ the maximum
        True
    """

    name = "softmax"

    temperature: float | Tensor = 1.0
    weight: Tensor | None = None

    @property
    def shift(self) -> Shift:
        """With weights, a node whose weights are all 0 has the result 0, which no shift changes."""
        return "once" if self.weight is None else "as ones"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return self._of(hood.messages, hood)

    def _of(self, values: Tensor, hood: Neighbourhoods) -> Tensor:
        temperature = self.temperature
        if isinstance(temperature, Tensor):  # a number stays one: a copy of it breaks capture
            temperature = temperature.to(values)
        logits = temperature * values
        if self.weight is None:
            exponentials = (logits - hood.to_slots(hood.largest(logits))).exp()
        else:
            weight = hood.from_edges(self.weight).to(values.dtype)[:, None]
            largest = hood.largest(torch.where(weight > 0, logits, float("-inf")))
            # messages of weight 0 may be larger; their weights still have a gradient
            above = logits - hood.to_slots(largest)
            most = math.log(torch.finfo(above.dtype).max) / 2
            exponentials = weight * torch.where(above == torch.inf, 0, above.clamp(max=most)).exp()
        total = hood.sum(exponentials)
        total = torch.where(total == 0, 1, total)
        # the result without gradient, plus deviations from it with gradient: otherwise gradients
        # would be small differences of large numbers
        known = hood.sum((exponentials * values).detach()) / total.detach()
        return known + hood.sum(exponentials * (values - hood.to_slots(known))) / total


@dataclass(frozen=True, eq=False)
class Softmin(Softmax):
    """−softmax(−m)

    Example:
        >>> 1.0 < pna.aggregate(x, adj, [Softmin(2.0)])[1, 0, 0].item() < 2.0
        True
    """

    name = "softmin"
    shift = Softmax.shift

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return -self._of(-hood.messages, hood)


@dataclass(frozen=True, eq=False)
class NormalisedMean(Aggregator):
    """Σ m_j / sqrt(d_i d_j), with d_i the receiver's in-degree and d_j the sender's out-degree.

    Both count the edges that are present, also if the graph was built with `degree`: that does not
    say how many edges a sender has.

    Example:
        >>> out = pna.aggregate(x, adj, ["normalised_mean"])[1, 0]  # node 2 sends two messages
        >>> torch.testing.assert_close(out, x[0] / 2**0.5 + x[2] / 2)
    """

    name, kernel, shift = "normalised_mean", "normalised_mean", "as ones"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        adjacency, values = hood.adjacency, hood.messages
        sender = adjacency.out_degree.clamp(min=1).to(values.dtype).rsqrt()[:, None]
        receiver = hood.count.clamp(min=1).to(values.dtype).rsqrt()[:, None]
        total, power = hood.scaled_sum(hood.from_senders(sender) * values)
        return total * (power * receiver)


@dataclass(frozen=True, eq=False)
class KthSmallest(Aggregator):
    """The k-th smallest m_j of each feature, counted from 1; 0 if fewer than k arrive.

    Example:
        >>> pna.aggregate(x, adj, [KthSmallest(2)])[:, 0].tolist()
        [[0.0, 0.0], [3.0, 2.0], [0.0, 0.0]]
    """

    shift = "as ones"

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"got k={self.k!r}, expected a whole number of at least 1")

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        values = hood.messages
        if values.shape[0] == 0:
            return hood.sum(values)
        by_value = values.detach().argsort(dim=0, stable=True)
        by_row = hood.adjacency.receivers[by_value].argsort(dim=0, stable=True)
        ordered = values.gather(0, by_value.gather(0, by_row))
        place = hood.adjacency.indptr[:-1].long() + self.k - 1
        picked = take(ordered, place.clamp(max=values.shape[0] - 1))
        largest = hood.largest(values)
        enough = (hood.count >= self.k)[:, None]
        return torch.where(largest.isnan(), largest, torch.where(enough, picked, 0))


def take(values: Tensor, index: Tensor) -> Tensor:
    """values[index], in the form whose gradient is summed in a fixed order on this device."""
    return values[index.long()] if values.is_cuda else values.index_select(0, index)


#: All aggregators of this package.
BUILT_IN: tuple[type[Aggregator], ...] = (
    Mean, Sum, Max, Min, Var, Std, Softmax, Softmin, NormalisedMean, Moment, KthSmallest,
)  # fmt: skip

#: Aggregators by name; ``moment_n`` stands for ``Moment(n)``, and PyG calls the sum "add" too.
NAMES: dict[str, type[Aggregator]] = {kind.name: kind for kind in BUILT_IN if kind.name}
NAMES["add"] = Sum

#: Aggregators that the fast backends compute in one pass, and their names there.
FUSED: dict[type[Aggregator], str] = {kind: kind.kernel for kind in BUILT_IN if kind.kernel}


def resolve(aggregators: Sequence[str | Aggregator | type[Aggregator]]) -> list[Aggregator]:
    """Aggregator objects from a list of names, classes or objects."""
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
    if isinstance(aggregator, type) and issubclass(aggregator, Aggregator):
        if aggregator is not Aggregator:
            _check_fields(aggregator)
            return aggregator()
    elif isinstance(aggregator, Aggregator) and type(aggregator) is not Aggregator:
        _check_fields(type(aggregator))
        return aggregator
    if not isinstance(aggregator, str):
        raise TypeError(
            f"got aggregator {aggregator!r}, expected a name or one of the aggregator objects, or "
            "a subclass of pna.aggregators.Aggregator"
        )
    order = aggregator.removeprefix("moment_")
    if order != aggregator and order.isdecimal():
        return Moment(int(order))
    return lookup("aggregator", aggregator, {**NAMES, "moment_3": Moment})()


def _check_fields(kind: type[Aggregator]) -> None:
    """Refuse parameters that are not fields: models could neither keep nor save them."""
    if kind in BUILT_IN or torch.compiler.is_compiling():
        return
    for base in kind.__mro__[: kind.__mro__.index(Aggregator)]:
        if "__dataclass_params__" in vars(base) or not issubclass(base, Aggregator):
            continue
        annotations = inspect.get_annotations(base)
        named = [name for name, kind in annotations.items() if "ClassVar" not in str(kind)]
        if named or "__init__" in vars(base):
            what = f"parameters ({', '.join(named)})" if named else "an __init__ of its own"
            raise TypeError(
                f"got an aggregator {base.__name__} with {what} that is no dataclass, expected one "
                "whose parameters are fields; write @dataclass(frozen=True) above the class, and "
                "checks in __post_init__"
            )


def tensors_of(aggregator: Aggregator) -> list[Tensor]:
    """The tensors among its parameters."""
    values = [getattr(aggregator, field.name) for field in fields(aggregator)]
    return [value for value in values if isinstance(value, Tensor)]


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ValueError(
            f"got epsilon={epsilon!r}, expected a number above 0: the root is not "
            "differentiable at 0 without it"
        )
