"""Random numbers that are reproducible on every machine and version of numpy."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Stream:
    """A stream of random numbers that depends only on the given names.

    Bits come from Philox, whose stream numpy guarantees. Everything after them is integer
    arithmetic, or single operations that IEEE 754 defines; numpy's distributions are not used.
    """

    def __init__(self, *names: object) -> None:
        digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def bits(self, *shape: int) -> NDArray[np.uint32]:
        """32 random bits each."""
        count = int(np.prod(shape))
        raw = self._bits.random_raw((count + 1) // 2).astype("<u8", copy=False)
        return raw.view("<u4")[:count].reshape(shape)

    def words(self, *shape: int) -> NDArray[np.uint64]:
        """64 random bits each."""
        return self._bits.random_raw(int(np.prod(shape))).reshape(shape)

    def unit(self, *shape: int) -> NDArray[np.floating[Any]]:
        """Uniform on [0, 1), in steps of 2⁻⁵³."""
        return (self.words(*shape) >> np.uint64(11)) * 2.0**-53

    def below(self, limit: NDArray[np.int64] | int, *shape: int) -> NDArray[np.int64]:
        """Uniform on 0 … limit − 1; `limit` broadcasts against the shape, and is below 2³¹."""
        scaled = self.bits(*shape).astype(np.uint64) * np.asarray(limit, dtype=np.uint64)
        return (scaled >> np.uint64(32)).astype(np.int64)

    def order(self, count: int, length: int) -> NDArray[np.int64]:
        """Permutations of 0 … length − 1, (count, length)."""
        return np.argsort(self.words(count, length), axis=1, kind="stable")
