"""What a file says about itself, as JSON: read from text that anybody may have written."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 100  # lists and objects within each other; Python's own functions give up at about 1,000


def read_facts(text: str) -> dict[str, Any]:
    """The object in a JSON text; raises `ValueError` if it is something else, or nested too deep
    for whoever prints or copies it."""
    try:
        held = json.loads(text)
        if _depth_exceeds(held, _DEEPEST):
            raise RecursionError
        json.dumps(held, ensure_ascii=False).encode()  # half a surrogate pair cannot be printed
    except RecursionError:
        raise ValueError(f"lists or objects nested more than {_DEEPEST} deep") from None
    if not isinstance(held, dict):
        raise ValueError(f"got {type(held).__name__}, expected an object of JSON, {{…}}")
    return held


def _depth_exceeds(held: Any, most: int) -> bool:
    """Level by level, since a function that calls itself would fail on what it looks for."""
    level = [held]
    for _ in range(most + 1):
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            return False
        level = [v for c in containers for v in (c.values() if isinstance(c, dict) else c)]
    return True
