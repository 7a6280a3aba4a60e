"""Lookup by name, with an error that suggests the nearest name; lists of distinct names."""

import difflib
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")
Init = TypeVar("Init", bound=Callable[..., None])
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def lookup(kind: str, name: str, table: Mapping[Any, T]) -> T:
    """Return ``table[name]``. The error for an unknown name has the nearest match and all names.

    `kind` is the kind of thing in the error, such as "aggregator" or "scaler".
    """
    if name in table:
        return table[name]
    raise ValueError(f"unknown {kind} {name!r}{_hint(name, table)}")


def unique(kind: str, names: Collection[str]) -> tuple[str, ...]:
    """These names as a tuple. Raises unless they are texts and differ."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"got {kind}={names!r}, expected a list of names")
    twice = [name for name, count in Counter([*names]).items() if count > 1]
    if twice:
        raise ValueError(f"got {kind} with {twice[0]!r} twice, expected names that differ")
    return tuple(names)


def check_keywords(*others: type) -> Callable[[Init], Init]:
    """Decorate an `__init__`: the error for an unknown keyword has the nearest known one.

    `others` are the classes that receive the ``**kwargs`` of the `__init__`.
    """

    def decorate(init: Init) -> Init:
        takers: tuple[Callable[..., Any], ...] = (init, *others)
        known = dict.fromkeys(name for taker in takers for name in _keywords_of(taker))
        owner = init.__qualname__.removesuffix(".__init__")

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"unknown argument {name!r} of {owner}{_hint(name, known)}")
            init(self, *args, **kwargs)

        return cast(Init, checked)

    return decorate


def renamed_keywords(**names: str) -> Callable[[AnyFunction], AnyFunction]:
    """Decorate a function or an `__init__`: keywords under their former names work, with a warning.

    `names` maps each former name to the present one.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            for old in kwargs.keys() & names.keys():
                warn_renamed(f"the argument {old} of {owner}", names[old], stacklevel=2)
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(AnyFunction, renamed)

    return decorate


def warn_renamed(old: str, new: str, stacklevel: int) -> None:
    """Warn that something has another name now; `stacklevel` as in `warnings.warn`."""
    message = f"{old} is now called {new}; the former name will be removed"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def _keywords_of(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in by_name and p.name != "self"]


def _hint(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"{f'; did you mean {near[0]!r}?' if near else '.'} Known: {', '.join(known)}"
