"""JSON from files that may come from anyone, checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST_BYTES = 1 << 28  # largest JSON file; pna writes files of some kilobytes
_LARGEST = 1 << 63  # whole numbers are smaller, as torch needs them
_MOST_DEPTH = 100  # deepest nesting of lists and objects in a file
_MOST_LEVELS = 20  # deepest nesting of a value whose type may be any
_SHOWN = 60  # characters of a value in an error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. A ValueError says what is wrong, without the file's name."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    return parse_json(content)


def parse_json(content: str | bytes) -> dict[str, Any]:
    """The JSON object in a text or UTF-8 bytes; a ValueError says what is wrong."""
    try:
        value = json.loads(content if isinstance(content, str) else content.decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8 text") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is not valid text") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {shown(value)}, not an object")
    if not _is_shallow(value, _MOST_DEPTH):
        raise ValueError(f"it has lists or objects nested more than {_MOST_DEPTH} deep")
    return value


def check(value: Any, expected: Mapping[str, Any], what: str = "it") -> None:
    """Raise a ValueError unless an object has values of these names and types; more are allowed."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {shown(value)}, expected an object")
    if missing := [name for name in expected if name not in value]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    for name, kind in expected.items():
        if not fits(value[name], kind):
            raise ValueError(f"{name} of {what} is {shown(value[name])}, expected {in_words(kind)}")


_type_hints = cache(get_type_hints)


def made(kind: type[T], value: Any, what: str) -> T:
    """Build a dataclass from an object whose values must have the declared types."""
    hints = _type_hints(kind)  # type: ignore[arg-type]
    own = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if isinstance(value, dict) and (odd := sorted(map(str, value.keys() - own.keys()))):
        raise ValueError(
            f"{what} has {shown(', '.join(odd))}, which this version of pna does not know"
        )
    needed = [n for n, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    check(value, {name: hints[name] for name in needed}, what)
    check(value, {name: hints[name] for name in value}, what)
    try:
        return kind(
            **{n: _frozen(v) if get_origin(hints[n]) is tuple else v for n, v in value.items()}
        )
    except (TypeError, OverflowError, ArithmeticError) as error:
        raise ValueError(f"{what} cannot be used: {error}") from error


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a type, written as an annotation. A list is accepted as a tuple."""
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
    """The name of a type in errors."""
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
    """The start of a value, for an error."""
    if isinstance(value, list | dict) and value:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) < _LARGEST else "a huge number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_shallow(value: Any, levels: int = _MOST_LEVELS) -> bool:
    if not isinstance(value, list | tuple | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(one, levels - 1) for one in inner)


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
