"""Schema arguments of an operator, from the annotated parameters of a function.

A parameter may be a dataclass or named tuple of tensors and numbers. Each of its fields becomes an
argument of the operator: a list of tensors would cost more than the kernel of a small graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from operator import itemgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor

#: The schema type of each annotation.
_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    Sequence[Tensor]: "Tensor[]",
    Sequence[Tensor | None]: "Tensor?[]",
    bool: "bool",
    Sequence[bool]: "bool[]",
    int: "int",
    torch.SymInt: "SymInt",
    Sequence[int]: "int[]",
    float: "float",
    str: "str",
    tuple[str, ...]: "str",  # joined by commas
}

#: The prefix of the argument names of a nested structure, by the name of its field.
_PREFIXES = {"incoming": "in_", "outgoing": "out_"}


class Leaf:
    """A parameter that is one schema argument."""

    def __init__(self, name: str, hint: Any) -> None:
        if hint not in _TYPES:
            raise TypeError(f"got a parameter {name}: {hint}, expected one of {list(_TYPES)}")
        self.arguments = [(name, _TYPES[hint])]
        self.joined = hint == tuple[str, ...]

    def expressions(self, value: str) -> list[str]:
        """The schema argument as Python code, given the code of the parameter."""
        return [f'",".join({value})' if self.joined else value]

    def unpack(self, values: Iterator[Any]) -> Any:
        value = next(values)
        return tuple(value.split(",")) if self.joined else value


class NestedParameter:
    """A parameter whose fields are schema arguments."""

    def __init__(self, kind: Any, prefix: str = "") -> None:
        hints = get_type_hints(kind)
        names = [f.name for f in fields(kind)] if is_dataclass(kind) else kind._fields
        self.kind = kind
        self.fields = [(name, _parameter(name, hints[name], prefix)) for name in names]
        self.arguments: list[tuple[str, str]] = [
            each for _, part in self.fields for each in part.arguments
        ]
        #: Schema arguments from the structure.
        self.pack = packer({"structure": self})

    def expressions(self, value: str) -> list[str]:
        return [e for name, part in self.fields for e in part.expressions(f"{value}.{name}")]

    def unpack(self, values: Iterator[Any]) -> Any:
        return self.kind(*[part.unpack(values) for _, part in self.fields])


def _parameter(name: str, hint: Any, prefix: str = "") -> Leaf | NestedParameter:
    if hint is not Tensor and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return NestedParameter(hint, _PREFIXES.get(name, ""))
    return Leaf(prefix + name, hint)


def packer(parameters: dict[str, Leaf | NestedParameter]) -> Callable[..., tuple[Any, ...]]:
    """A function from parameter values to schema arguments.

    It is made as source: `torch.compile` would guard on every step of a loop over the parameters,
    which takes longer at each call than the kernels of a small graph.
    """
    values = [e for name, part in parameters.items() for e in part.expressions(name)]
    made: Callable[..., tuple[Any, ...]] = eval(
        f"lambda {', '.join(parameters)}: ({', '.join(values)},)"
    )
    return made


class Signature:
    """The parameters of a function, and the schema arguments that they expand to."""

    def __init__(self, function: Callable[..., Any], without: Sequence[str] = ()) -> None:
        hints = get_type_hints(function)
        names = [name for name in inspect.signature(function).parameters if name not in without]
        self.parameters = {name: _parameter(name, hints.get(name)) for name in names}
        self.arguments = [each for part in self.parameters.values() for each in part.arguments]
        self.names = [name for name, _ in self.arguments]
        self.owners = [name for name, part in self.parameters.items() for _ in part.arguments]
        self.is_flat = all(isinstance(part, Leaf) for part in self.parameters.values())
        #: Schema arguments from parameter values.
        self.pack = packer(self.parameters)

    def unpack(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Parameter values from schema arguments."""
        left = iter(arguments)
        return {name: part.unpack(left) for name, part in self.parameters.items()}


def pick_items(order: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A fast function that picks these items of a sequence."""
    if len(order) > 1:
        return itemgetter(*order)
    return lambda pool: tuple(pool[i] for i in order)
