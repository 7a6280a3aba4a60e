"""The term that is added to messages, or multiplies them, in a case of `fuzz`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pna.ops.aggregate import Combine
from pna.testing.terms import Terms

#: By form: the name of each tensor; all have a gradient but "index".
_NAMES = {
    "none": (),
    "dense": ("edge",),  # (edges, features)
    "table": ("table", "index"),  # (types, features), (edges,)
    "coefficients": ("coefficients", "basis"),  # (edges, depth), (depth, features)
    "weights": ("weights",),  # (edges, 1)
}
_PER_EDGE, _PER_FEATURE = ("edge", "index", "coefficients", "weights"), ("edge", "table", "basis")


@dataclass(frozen=True)
class EdgeTerm:
    form: str = "none"
    values: tuple[Tensor, ...] = ()  # float64, and int64 for "index"
    dtype: torch.dtype = torch.float32
    combine: Combine = "add"

    def named(self) -> dict[str, Tensor]:
        return dict(zip(_NAMES[self.form], self.values, strict=True))

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that have a gradient."""
        return {name: value for name, value in self.named().items() if name != "index"}

    def index(self, device: str) -> dict[str, Tensor]:
        """The tensor that has none, if there is one."""
        return {"index": self.values[1].to(device)} if self.form == "table" else {}

    def argument(self, tensors: dict[str, Tensor]) -> Any:
        """As `pna.aggregate` and layers take it, from `leaves` and `index`."""
        parts = [tensors[name] for name in _NAMES[self.form]]
        return tuple(parts) if len(parts) > 1 else parts[0] if parts else None

    def written(self) -> str:
        """`argument` as Python."""
        names = _NAMES[self.form]
        return f"({', '.join(names)})" if len(names) > 1 else names[0] if names else "None"

    @property
    def roundings(self) -> int:
        """How often a message is rounded; 0 if it is exact."""
        if self.form == "coefficients":
            return 2 + len(self.values[1])
        return 0 if self.form == "none" else 1

    def _terms(self) -> tuple[Tensor, Tensor]:
        """The term of every edge, (edges, features or 1), and its sum of |terms|."""
        first, *more = self.values
        if self.form == "coefficients":
            return first @ more[0], first.abs() @ more[0].abs()
        term = first[more[0]] if self.form == "table" else first
        return term, term.abs()

    def messages(self, sent: Tensor) -> tuple[Tensor, Tensor]:
        """Messages from the values of senders, and their sums of |terms|."""
        if self.form == "none":
            return sent, sent.abs()
        term, size = self._terms()
        if self.combine == "mul":
            return sent * term, sent.abs() * size
        return sent + term, sent.abs() + size

    def of_senders(self, total: Terms) -> Terms:
        """The gradient of the values of senders from that of messages, (edges, features)."""
        return total.scaled(*self._terms()) if self.combine == "mul" else total

    def gradients(self, total: Terms, sent: Tensor) -> dict[str, Terms]:
        """The gradient of every leaf from that of messages, (edges, features)."""
        if self.form == "none":
            return {}
        if self.combine == "mul":
            total = total.scaled(sent, sent.abs())
        if self.form == "dense":
            return {"edge": total}
        if self.form == "weights":
            summed = total.sum(1)
            return {"weights": summed.each(lambda v: v[:, None])}
        first, second = self.values
        if self.form == "table":
            return {"table": total.scatter(second, len(first))}
        return {
            "coefficients": total.times(second, "ef,df->ed", second.shape[1]),
            "basis": total.times(first, "ef,ed->df", len(first)),
        }

    def with_edges(self, keep: list[int]) -> EdgeTerm:
        values = [v[keep] if n in _PER_EDGE else v for n, v in self.named().items()]
        return replace(self, values=tuple(values))

    def with_features(self, keep: list[int]) -> EdgeTerm:
        values = [v[:, keep] if n in _PER_FEATURE else v for n, v in self.named().items()]
        return replace(self, values=tuple(values))
