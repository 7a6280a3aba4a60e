"""The recurrent unit against torch's, and all its steps as one against one after another."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pna
from pna.degree import DegreeStats
from pna.nn.architectures import Recurrent
from pna.nn.recurrent import GRU
from tests.nn.cases import assert_equal_in_norm, numbers, outcome
from tests.nn.graph_cases import batch_of, graphs
from tests.population.test_linears import Calls

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


DEG = DegreeStats.from_histogram(torch.tensor([2, 6, 5, 1, 1]))


def model_of(**arguments) -> Recurrent:
    torch.manual_seed(0)
    given = {"convolution": "pna", "towers": 2, "deg": DEG, "depth": "N/2"} | arguments
    if given["convolution"] == "gin":
        del given["towers"]
    return Recurrent(given.pop("convolution"), 2, 4, 3, 0, **given)


def states_of(model, batch) -> dict[str, torch.Tensor]:
    parameters = {n: p for n, p in model.named_parameters() if not n.startswith("node_head")}
    return outcome(lambda: model._states(batch), parameters)


MODELS = {
    "graphs of many sizes": {},
    "swapped": {"swap_gru": True},
    "one size": {"depth": 3},
    "one tower": {"towers": 1},
    "no scalers": {"convolution": "pna-no-scalers"},
    "sums": {"convolution": "mpnn-sum", "depth": 2},
}


@pytest.mark.covering(0)
@pytest.mark.parametrize("name", MODELS)
def test_all_steps_in_one_operation(triton, name):
    """States and gradients are those of the definition, whose operations are called one by one."""
    model, batch = model_of(**MODELS[name]), batch_of(graphs()).to(triton.device)
    model.to(triton.device)
    with Calls() as calls:
        got = states_of(model, batch)
    assert calls.own.count("recurrence") == calls.own.count("recurrence_backward") == 1
    with pna.backend("reference"):
        expected = states_of(model.double(), batch)
    assert_equal_in_norm(got, expected, 1e-5)


def hooked() -> Recurrent:
    model = model_of()
    model.gru.register_forward_hook(lambda *_: None)
    return model


STEP_BY_STEP = {
    "dropout": lambda: model_of(dropout=0.5),
    "adaptive": lambda: model_of(depth="adaptive"),
    "another convolution": lambda: model_of(convolution="gin"),
    "another activation": lambda: model_of(act="elu"),
    "learned averages": lambda: model_of(train_norm=True),
    "swapped extrema": lambda: model_of(swap_extrema=True),
    "one step": lambda: model_of(depth=1),
    "a hook on the unit": hooked,
}


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_what_is_done_step_by_step(triton, name):
    model = STEP_BY_STEP[name]().to(triton.device)
    with Calls() as calls:
        model._states(batch_of(graphs()).to(triton.device))
    assert "gru_cell" in calls.own
    assert "recurrence" not in calls.own


def test_dropout_is_none_where_nothing_is_trained(triton):
    model = model_of(dropout=0.5).to(triton.device).eval()
    with Calls() as calls:
        model._states(batch_of(graphs()).to(triton.device))
    assert "recurrence" in calls.own
