"""Many texts as two tensors, and the row of each by a table of hashes: no object for each text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MOST_COMPARED = 2_000  # texts that are compared to find the nearest one
_ENDS = 4  # bytes at each end of a text that choose these texts


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts as UTF-8 bytes, one after another. ``texts[i]`` and iteration make Python's `str`."""

    utf8: Tensor  # (bytes,) uint8
    offsets: Tensor  # (texts + 1,) int64: first byte of every text

    @classmethod
    def of(cls, blocks: Iterable[Sequence[str]]) -> Texts:
        """Pack blocks of texts."""
        contents, lengths = [b""], [np.zeros(1, np.int64)]
        for texts in blocks:
            encoded = [text.encode() for text in texts]
            contents.append(b"".join(encoded))
            lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        utf8 = torch.frombuffer(bytearray(b"".join(contents) or b" "), dtype=torch.uint8)
        ends = torch.from_numpy(np.concatenate(lengths).cumsum())
        return cls(utf8[: int(ends[-1])], ends)

    def check(self) -> None:
        """Raise a ValueError unless every text can be read."""
        utf8, offsets = self.utf8, self.offsets
        if utf8.dtype != torch.uint8 or offsets.dtype != torch.int64 or utf8.dim() != 1:
            raise ValueError(f"texts are of type {utf8.dtype} and {offsets.dtype}")
        ends = [0, len(utf8)]
        if offsets.dim() != 1 or len(offsets) == 0 or offsets[[0, -1]].tolist() != ends:
            raise ValueError(f"the offsets of texts do not go from 0 to {len(utf8)}")
        if bool((offsets.diff() < 0).any()):
            raise ValueError("the offsets of texts are not ascending")
        bytes(utf8.numpy()).decode()
        first = utf8[offsets[:-1][offsets.diff() > 0]]
        if bool(((first & 0xC0) == 0x80).any()):  # UTF-8 continues a character with such a byte
            raise ValueError("a text begins within a character")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        begin, end = self.offsets[range(len(self))[row] :][:2].tolist()
        return bytes(self.utf8[begin:end].numpy()).decode()

    def __iter__(self) -> Iterator[str]:
        content, ends = bytes(self.utf8.numpy()), self.offsets.tolist()
        for begin, end in pairwise(ends):
            yield content[begin:end].decode()

    def nearest(self, text: str) -> str | None:
        """The most similar of the texts, if one is similar.

        Only the texts that are most alike in length, first and last bytes are compared.
        """
        given, lengths = text.encode(), self.offsets.diff()
        rows = (lengths > 0).nonzero()[:, 0]
        if not given or len(rows) == 0:
            return None
        differs = (lengths[rows] - len(given)).abs()
        for at in range(min(_ENDS, len(given))):
            for byte, index in (
                (given[at], self.offsets[rows] + at),
                (given[-1 - at], self.offsets[rows + 1] - 1 - at),
            ):
                differs += (self.utf8[index.clamp(0, len(self.utf8) - 1)] != byte).long()
        likely = rows[differs.argsort(stable=True)[:_MOST_COMPARED]].tolist()
        near = difflib.get_close_matches(text, [self[row] for row in likely], n=1)
        return near[0] if near else None


class TextRows:
    """The row of every text in a list, by its hash: 16 bytes for each, a tenth of a dict's.

    Hashes have 64 bits and differ between processes. Two texts with one hash are found by `twice`.
    """

    def __init__(self, hashes: NDArray[np.int64]) -> None:
        self._rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._rows]

    @staticmethod
    def hashes(texts: Sequence[str]) -> NDArray[np.int64]:
        """A hash of every text, (texts,)."""
        return np.fromiter(map(hash, texts), np.int64, len(texts))

    def find(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The row of every text, -1 if it has none."""
        wanted = self.hashes(texts)
        if len(self._hashes) == 0:
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        return np.where(self._hashes[at] == wanted, self._rows[at], -1)

    def twice(self) -> tuple[int, int] | None:
        """Two rows with the same text, of all such pairs that of the first second row; or None."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(same) == 0:
            return None
        first = same[self._rows[same + 1].argmin()]
        return int(self._rows[first]), int(self._rows[first + 1])
