"""Rules of operators under `torch.vmap`: fold the vmapped axis into another, or run one by one.

A vmapped call has several members, one for each index of the vmapped axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pna.ops.operators import Operator


@dataclass(frozen=True)
class Fold:
    """A vmap rule: the vmapped axis is joined to an axis that the operator already has.

    Args:
        axes: the axis that members are joined to, for every argument that may be vmapped. The
            member is the outer index of the joined axis.
        results: the axis that holds the members, for every result.
        rows: arguments with one row per node. If only these are vmapped, members become rows.
        join: join members to the axis; otherwise they become a new axis at that position.
        otherwise: the rule to use if any other argument is vmapped.
        separate: in that case, run one member after another. Without either, it is an error.
    """

    axes: dict[str, int]
    results: Sequence[int]
    rows: Sequence[str] = ()
    join: bool = True
    otherwise: Callable[..., Any] | None = None
    separate: bool = False

    def check(self, call: Operator) -> None:
        """Refuse axes of what the operator does not have."""
        call.refuse_unknown("axes", self.axes)
        call.refuse_unknown("rows", self.rows)
        if len(self.results) not in (1, len(call.results or ())):
            raise TypeError(
                f"got {len(self.results)} axes for the {len(call.results or ())} results of "
                f"{call.name}, expected one for each, or one for all"
            )

    def rule(self, call: Operator) -> Callable[..., Any]:
        self.check(call)
        names, owners = call.signature.names, call.signature.owners
        otherwise = one_by_one(call.overload) if self.separate else self.otherwise

        def rule(info: Any, in_dims: Sequence[Any], *inputs: Any) -> Any:
            vmapped = [name for name, dim in zip(names, in_dims, strict=True) if _is_vmapped(dim)]
            for name in vmapped:
                if name in self.axes:
                    continue
                if otherwise is not None:
                    return otherwise(info, in_dims, *inputs)
                owner = owners[names.index(name)]
                raise ValueError(f"got a vmapped {owner}, expected one that all members share")
            by_rows = bool(self.rows) and all(name in self.rows for name in vmapped)
            axes = dict.fromkeys(self.rows, 0) if by_rows else self.axes
            folded = [
                self._folded(value, dim, axes[name], info.batch_size, by_rows)
                if name in axes
                else value
                for name, dim, value in zip(names, in_dims, inputs, strict=True)
            ]
            return self._apart(call.overload(*folded), info.batch_size, by_rows)

        return rule

    def _folded(self, value: Any, dim: Any, axis: int, batch: int, behind: bool) -> Any:
        if value is None:
            return None
        if isinstance(value, list | tuple):
            pairs = zip(value, dim, strict=True)
            return [self._folded(each, d, axis, batch, behind) for each, d in pairs]
        if not self.join:
            return value.movedim(dim, axis)
        return fold(value, dim, axis, batch, behind)

    def _apart(self, results: Any, batch: int, by_rows: bool) -> Any:
        every = [results] if isinstance(results, Tensor) else results
        axes = list(self.results) * (len(every) if len(self.results) == 1 else 1)
        if by_rows:
            apart = [result.unflatten(0, (-1, batch)) for result in every]
            axes = [1] * len(every)
        elif self.join:
            apart = [r.unflatten(d, (batch, -1)) for r, d in zip(every, axes, strict=True)]
        else:
            apart = every
        if isinstance(results, Tensor):
            return apart[0], axes[0]
        return type(results)(apart), type(results)(axes)


def _is_vmapped(dim: Any) -> bool:
    if isinstance(dim, list | tuple):
        return any(map(_is_vmapped, dim))
    return dim is not None


def fold(tensor: Tensor, dim: int | None, axis: int, batch: int, behind: bool = False) -> Tensor:
    """Join the vmapped axis `dim` to `axis`, as its outer index or, if `behind`, its inner one. The
    result is a view if that axis has length 1."""
    to = axis + 1 if behind else axis
    if dim is None:
        shape = (*tensor.shape[:to], batch, *tensor.shape[to:])
        return tensor.unsqueeze(to).expand(shape).flatten(axis, axis + 1)
    return tensor.movedim(dim, to).flatten(axis, axis + 1)


def one_by_one(call: Callable[..., Any], copy: bool = True) -> Callable[..., Any]:
    """A vmap rule that runs the operator for one member after another.

    Gradient operators use it: they are vmapped only if a derivative itself is vmapped, as in
    `torch.func.jacrev`. Each member is made contiguous unless `copy` is False.
    """

    def select(argument: Any, dim: Any, i: int) -> Any:
        if isinstance(dim, list | tuple):
            return [select(a, d, i) for a, d in zip(argument, dim, strict=True)]
        if not isinstance(dim, int):
            return argument
        return argument.select(dim, i).contiguous() if copy else argument.select(dim, i)

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        pairs = list(zip(arguments, in_dims, strict=True))
        results = [call(*[select(a, d, i) for a, d in pairs]) for i in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = tuple(torch.stack(r) for r in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule
