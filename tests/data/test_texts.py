"""Texts are packed into bytes and found again by their hash."""

import numpy as np
import pytest
import torch

from pna.data.texts import TextRows, Texts

NAMES = ["ann", "", "Zoë", "点", "ann b", "🙂"]


def test_texts_come_back():
    texts = Texts.of([NAMES[:2], [], NAMES[2:]])
    texts.check()
    assert [*texts] == NAMES and len(texts) == 6
    assert [texts[i] for i in range(6)] == NAMES and texts[-1] == "🙂"
    assert texts.utf8.dtype == torch.uint8 and len(texts.utf8) == len("".join(NAMES).encode())
    with pytest.raises(IndexError):
        texts[6]


def test_no_texts():
    texts = Texts.of([])
    texts.check()
    assert [*texts] == [] and texts.nearest("a") is None


@pytest.mark.parametrize(
    "utf8, offsets, words",
    [
        ([195, 171], [0, 1, 2], "begins within a character"),
        ([195], [0, 1], "unexpected end of data"),
        ([97, 98], [0, 2, 1, 2], "not ascending"),
        ([97, 98], [0, 1], "do not go from 0 to 2"),
        ([97, 98], [1, 2], "do not go from 0 to 2"),
        ([97], [], "do not go from 0 to 1"),
    ],
)
def test_what_is_no_text(utf8, offsets, words):
    texts = Texts(torch.tensor(utf8, dtype=torch.uint8), torch.tensor(offsets, dtype=torch.int64))
    with pytest.raises(ValueError, match=words):
        texts.check()


def test_the_nearest_text():
    texts = Texts.of([[f"user{i}" for i in range(12_000)], ["Anna"]])
    assert texts.nearest("usr11999") == "user11999" and texts.nearest("anna") == "Anna"
    assert texts.nearest("q!") is None and texts.nearest("") is None


def test_rows_of_texts():
    rows = TextRows(np.concatenate([TextRows.hashes(NAMES[:3]), TextRows.hashes(NAMES[3:])]))
    assert rows.find(["点", "bob", "", "ann"]).tolist() == [3, -1, 1, 0]
    assert rows.twice() is None
    again = TextRows(TextRows.hashes(["a", "b", "c", "b", "a", "b"]))
    assert again.twice() == (1, 3)
    assert TextRows(TextRows.hashes([])).find(["a"]).tolist() == [-1]
