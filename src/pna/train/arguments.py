"""Aggregators among the arguments of a model, encoded for the configuration of a run.

An aggregator becomes ``{"aggregator": class, "arguments": fields}``, which JSON can store. Decoding
needs its class; the classes of users' own aggregators are not in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from pna.names import lookup
from pna.ops.aggregators import BUILT_IN, Aggregator, resolve

_OURS = {kind.__name__: kind for kind in BUILT_IN}
_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
}


def encode(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with every aggregator, an object or a class, encoded."""
    return _each(arguments, lambda part: _encoded(part) if _is_aggregator(part) else part)


def classes_in(arguments: dict[str, Any]) -> list[type[Aggregator]]:
    """Classes of users' own aggregators among arguments that are not encoded."""
    found: list[type[Aggregator]] = []

    def look(part: Any) -> None:
        kind = part if isinstance(part, type) else type(part)
        if _is_aggregator(part) and kind not in BUILT_IN:
            found.append(kind)

    _each(arguments, look)
    return found


def decode(arguments: dict[str, Any], classes: Sequence[type[Aggregator]] = ()) -> dict[str, Any]:
    """Arguments with every encoded aggregator built again."""
    known = _OURS | by_name(classes)

    def build(part: Any) -> Any:
        is_encoded = isinstance(part, dict) and set(part) == {"aggregator", "arguments"}
        return _built(part, known) if is_encoded else part

    return _each(arguments, build)


def _each(arguments: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply a function to every argument, or to every item of a list."""
    return {
        name: type(value)(map(function, value))
        if isinstance(value, list | tuple)
        else function(value)
        for name, value in arguments.items()
    }


def listed(given: Any) -> tuple[type[Aggregator], ...]:
    """Classes of users' own aggregators; raises unless they are given in a list."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        kind = given if isinstance(given, type) else type(given)
        name = given if isinstance(given, str) else kind.__name__
        raise TypeError(
            f"got aggregators={given!r}, expected a list of classes derived from "
            f"pna.aggregators.Aggregator; write aggregators=[{name}]"
        )
    return tuple(given)


def by_name(classes: Iterable[type[Aggregator]]) -> dict[str, type[Aggregator]]:
    """Classes of users' own aggregators by name; raises if names are not unique."""
    found: dict[str, type[Aggregator]] = {}
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Aggregator)):
            raise TypeError(
                f"got {kind!r} among the aggregators of a model, expected classes derived from "
                "pna.aggregators.Aggregator; pass the class itself"
            )
        name = kind.__name__
        if found.setdefault(name, kind) is not kind or _OURS.get(name, kind) is not kind:
            raise ValueError(
                f"got two aggregators called {name}, expected different names, by which runs find "
                "them; rename the class"
            )
    return found


def _encoded(given: Aggregator | type[Aggregator]) -> dict[str, Any]:
    [aggregator] = resolve([given])
    name = type(aggregator).__name__
    own = {f.name: _plain(getattr(aggregator, f.name), name, f.name) for f in fields(aggregator)}
    return {"aggregator": name, "arguments": own}


def _built(encoded: dict[str, Any], known: dict[str, type[Aggregator]]) -> Aggregator:
    name = encoded["aggregator"]
    if name not in known:
        raise ValueError(
            f"got a model with the aggregator {name}, which is not one of pna's, expected its "
            f"class; pass it from Python: pna.load(path, aggregators=[{name}]); pna.train.train, "
            "evaluate and predict take aggregators too"
        )
    try:
        return known[name](**{f: _tensor(part) for f, part in encoded["arguments"].items()})
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            f"got the aggregator {name} with {encoded['arguments']!r}, which its class does "
            f"not accept ({error}); pass the class that the model was made with"
        ) from error


def _is_aggregator(value: Any) -> bool:
    of_class = isinstance(value, type) and issubclass(value, Aggregator)
    return of_class or isinstance(value, Aggregator)


def _plain(value: Any, name: str, field: str) -> Any:
    """A value as JSON can store it."""
    if isinstance(value, Tensor):
        return {
            "tensor": value.detach().tolist(),
            "dtype": str(value.dtype).removeprefix("torch."),
            "learned": isinstance(value, nn.Parameter),
        }
    if isinstance(value, list | tuple):
        return [_plain(part, name, field) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"got {value!r} as {field} of the aggregator {name}, expected a number, a text, a tensor "
        "or a list of them, which a run can save"
    )


def _tensor(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    tensor = torch.tensor(value["tensor"], dtype=lookup("type", value["dtype"], _TYPES))
    return nn.Parameter(tensor) if value["learned"] else tensor
