"""Columns of kinds and of numbers to features, against torch's embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pna.nn.encoder import Embedding, encoder
from pna.nn.linear import Linear


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("values", [[4], [2, 5, 1]], ids=str)
def test_it_is_a_sum_of_torch_embeddings(values, dtype):
    """Results and gradients; a value of one column is not that of another."""
    layer = Embedding(values, 3).double()
    columns = torch.stack([torch.arange(9) % v for v in values], 1).to(dtype)
    parts = layer.weight.split(values)
    expected = sum(nn.functional.embedding(columns[:, i].long(), w) for i, w in enumerate(parts))
    torch.testing.assert_close(layer(columns), expected)
    upstream = torch.randn(9, 3, dtype=torch.float64)
    got = torch.autograd.grad(layer(columns), layer.weight, upstream)
    torch.testing.assert_close(got, torch.autograd.grad(expected, layer.weight, upstream))


@pytest.mark.parametrize("values", [[4], [2, 5, 1, 3]], ids=str)
def test_all_combinations_are_made_once(values):
    """A row of them for each combination, in some order; gradients too."""
    layer = Embedding(values, 3).double()
    columns = torch.stack([torch.randint(v, (40,)) for v in values], 1).to(torch.uint8)
    table, index = layer.every_output(), layer.combination_of(columns)
    assert len(table) == layer.combinations and int(index.max()) < len(table)
    torch.testing.assert_close(table[index], layer(columns))
    upstream = torch.randn(40, 3, dtype=torch.float64)
    got = torch.autograd.grad(table[index], layer.weight, upstream)
    expected = torch.autograd.grad(layer(columns), layer.weight, upstream)
    torch.testing.assert_close(got, expected)


def test_numbers_have_endless_combinations():
    assert Embedding([2, 0], 3).combinations == float("inf")


def test_a_combination_of_an_unknown_category_is_refused():
    with pytest.raises(ValueError, match="got category 2 in column 1, expected 0 to 1"):
        Embedding([2, 2], 3).combination_of(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_numbers_beside_kinds(dtype):
    """Are multiplied by a vector each, which begin as those of linear layers do."""
    torch.manual_seed(0)
    layer = Embedding([3, 0, 0, 2], 400).double()
    columns = torch.tensor([[2, 7, 0, 1], [0, -3, 2, 0]], dtype=dtype)
    if dtype == torch.float32:
        columns[:, 1] += 0.25
    vectors = layer.weight
    assert vectors.shape == (3 + 1 + 1 + 2, 400)
    expected = torch.stack([
        vectors[k] + float(a) * vectors[3] + float(b) * vectors[4] + vectors[5 + m]
        for k, a, b, m in ((2, columns[0, 1], 0, 1), (0, columns[1, 1], 2, 0))
    ])  # fmt: skip
    torch.testing.assert_close(layer(columns), expected)
    of_numbers = vectors[3:5].detach().abs()
    assert 0.6 < float(of_numbers.max()) < 0.5**0.5


def test_vectors_of_several_columns_begin_smaller():
    """As in OGB's encoders: the sum of many that are N(0, 1) would be large."""
    torch.manual_seed(0)
    alone, several = Embedding([1000], 50), Embedding([1000, 500, 0, 0], 50)
    assert float(alone.weight.detach().std()) == pytest.approx(1, abs=0.02)
    first, second, *numbers = (table.detach() for table in several.tables())
    for table in (first, second):
        bound = (6 / (len(table) + 50)) ** 0.5
        assert float(table.abs().max()) == pytest.approx(bound, rel=0.01)
        assert float(table.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    for table in numbers:
        assert 0.5 < float(table.abs().max()) <= 0.5**0.5


def test_numbers_are_standardised():
    layer = Embedding([0, 2], 3, [(5.0, 2.0), (9.0, 9.0)]).double()
    got = layer(torch.tensor([[7.0, 1], [5, 0]]))
    vectors = layer.weight
    torch.testing.assert_close(got, torch.stack([vectors[0] + vectors[2], vectors[1]]))


def test_offsets_are_not_part_of_a_checkpoint():
    assert list(Embedding([2, 3], 4).state_dict()) == ["weight"]


def test_no_rows():
    assert Embedding([2, 3], 4)(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 4)


def test_numbers_have_a_linear_layer():
    assert isinstance(encoder([2], 1, 8), Embedding)
    for values in ([], [0, 0, 0]):
        layer = encoder(values, 3, 8)
        assert isinstance(layer, Linear) and layer.weight.shape == (8, 3)


@pytest.mark.parametrize(("kind", "column"), [(3, 0), (-1, 2), (2, 2)])
def test_kinds_without_a_vector_are_refused(kind, column):
    """In place of another column's vector."""
    with pytest.raises(ValueError, match="got category 2 in column 0, expected 0 to 1"):
        Embedding([2], 4)(torch.tensor([[2]]))
    layer, columns = Embedding([3, 0, 2], 4), torch.zeros(5, 3)
    columns[:, 1] = -7  # a number, of which there may be any
    layer(columns)
    columns[2, column] = kind
    with pytest.raises(ValueError, match=f"got category {kind} in column {column}, expected 0 to"):
        layer(columns)
    layer(columns[:0])


def test_what_is_no_category_is_refused():
    layer = Embedding([3, 2], 4)
    with pytest.raises(ValueError, match="got category nan in column 1, expected 0 to 1"):
        layer(torch.tensor([[0.0, torch.nan]]))
    with pytest.raises(ValueError, match="got 3 columns of categories, expected 2; give the col"):
        layer(torch.zeros(1, 3))
