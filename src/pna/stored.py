"""What files of JSON hold, checked before it is used: whoever wrote them may have been anyone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST_BYTES = 1 << 28  # of a file of JSON: those that pna writes have thousands
_LARGEST = 1 << 63  # whole numbers are below it, as torch needs them
_MOST_LEVELS = 20  # of lists and objects in one another, where any value will do
_SHOWN = 60  # characters of a value in an error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a ValueError says why there is none, without naming the file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        held = json.loads(path.read_bytes().decode("utf-8"))
        json.dumps(held, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8 text") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half a character, no text that can be written") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    if not isinstance(held, dict):
        raise ValueError(f"it holds {shown(held)}, not an object")
    return held


def check(held: Any, expected: Mapping[str, Any], what: str = "it") -> None:
    """Raise unless an object has values of the expected types by these names; it may have more."""
    if not isinstance(held, dict):
        raise ValueError(f"{what} is {shown(held)}, expected an object")
    if missing := [name for name in expected if name not in held]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    for name, kind in expected.items():
        if not fits(held[name], kind):
            raise ValueError(f"{name} of {what} is {shown(held[name])}, expected {in_words(kind)}")


def made(kind: type[T], held: Any, what: str) -> T:
    """An instance of a dataclass from an object, all of whose values have the declared types."""
    hints = get_type_hints(kind)
    own = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if isinstance(held, dict) and (odd := sorted(map(str, held.keys() - own.keys()))):
        raise ValueError(
            f"{what} has {shown(', '.join(odd))}, which this version of pna does not know"
        )
    needed = [n for n, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    check(held, {name: hints[name] for name in needed}, what)
    check(held, {name: hints[name] for name in held}, what)
    try:
        return kind(**{n: _frozen(v) if _is_tuple(hints[n]) else v for n, v in held.items()})
    except (TypeError, OverflowError, ArithmeticError) as error:
        raise ValueError(f"{what} cannot be used: {error}") from error


def fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON has a type, written as in an annotation; lists stand for tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return _is_shallow(value)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(v, inner[0]) for v in value)
    if origin is dict or kind is dict:
        of_values = inner[1] if inner else Any
        return isinstance(value, dict) and all(fits(v, of_values) for v in value.values())
    if kind is int:
        return type(value) is int and -_LARGEST <= value < _LARGEST
    if kind is float:
        return type(value) is float or fits(value, int)
    return type(value) is kind


def in_words(kind: Any) -> str:
    """A type as errors name it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(in_words(one) for one in inner)
    if origin in (list, tuple):
        return f"a list, each {in_words(inner[0])}"
    if origin is dict or kind is dict:
        return "an object"
    return _WORDS[kind]


_WORDS = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false",
    NoneType: "null", Any: f"at most {_MOST_LEVELS} levels of lists and objects",
}  # fmt: skip


def shown(value: Any) -> str:
    """The beginning of a value, for an error."""
    if isinstance(value, list | dict) and value:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) < _LARGEST else "a huge number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_shallow(value: Any, levels: int = _MOST_LEVELS) -> bool:
    if not isinstance(value, list | tuple | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(one, levels - 1) for one in inner)


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
