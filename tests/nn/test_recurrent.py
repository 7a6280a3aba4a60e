"""The recurrent unit against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pna.nn.recurrent import GRU
from tests.nn.cases import assert_equal_in_norm, numbers, outcome

WIDTH = 5


def torch_cell(gru: GRU) -> torch.nn.GRUCell:
    cell = torch.nn.GRUCell(WIDTH, WIDTH).double()
    cell.load_state_dict(gru.state_dict())
    return cell


@pytest.mark.parametrize(
    ("inputs", "states"),
    [(WIDTH, WIDTH), (2, WIDTH), (WIDTH, 2)],
    ids=["full", "narrow input", "narrow state"],
)
def test_it_is_that_of_torch_padded_with_zeros(inputs, states):
    gru = GRU(WIDTH).double()
    x = numbers(7, inputs, dtype=torch.float64, device="cpu")
    h = numbers(7, states, dtype=torch.float64, device="cpu", seed=1)
    cell = torch_cell(gru)
    got = outcome(lambda: gru(x, h), {"x": x, "h": h, **dict(gru.named_parameters())})
    expected = outcome(
        lambda: cell(F.pad(x, (0, WIDTH - inputs)), F.pad(h, (0, WIDTH - states))),
        {"x": x, "h": h, **dict(cell.named_parameters())},
    )
    assert_equal_in_norm(got, expected, 1e-12)


def test_it_begins_as_that_of_torch():
    torch.manual_seed(0)
    gru = GRU(100)
    for parameter in gru.parameters():
        assert parameter.abs().max() <= 0.1
        assert float(parameter.detach().std()) == pytest.approx(0.1 / 3**0.5, rel=0.1)
