"""Every schedule does what its entry in the table declares; an incomplete entry is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

from pna.train.loop import train
from pna.train.member_state import MemberState
from pna.train.schedules import (
    AT_LOWEST,
    SCHEDULES,
    Rates,
    Schedule,
    help_of_lowest,
    help_of_schedules,
    register,
)
from pna.train.settings import Settings
from tests.train.cases import SMALL, random_graphs

#: Better once, then never again: rates of a plateau fall, of others they do as they are planned.
LOSSES = [2.0, 1.0] + [3.0] * 22


def states(settings: Settings) -> list[tuple[float, bool]]:
    """Learning rate of the next epoch, and whether there is one, after every epoch."""
    state, found = MemberState.at_start(settings, torch.device("cpu"), torch.float64), []
    for loss in LOSSES:
        state.after_epoch(settings, torch.tensor([loss], dtype=torch.float64))
        found.append((float(state.lr[0]), bool(state.alive[0])))
    return found


def plan(name: str, **others: object) -> Settings:
    usual = {"lr": (0.1,), "plateau": 2, "patience": None, "epochs": len(LOSSES), "warmup": 1}
    return Settings(schedule=name, **(usual | others))


#: Every schedule by its definition: the learning rate of the next epoch after `done` epochs of
#: `plan`, divided by the first one.
DEFINITIONS: dict[str, Callable[[int], float]] = {
    "constant": lambda done: 1.0,
    "plateau": lambda done: 0.5 ** max((done - 2) // 2, 0),  # the second epoch was the best
    "cosine": lambda done: (1 + math.cos(math.pi * (done - 1) / 23)) / 2,  # after one of warmup
}


def test_definitions_of_schedules_that_are_gone():
    assert DEFINITIONS.keys() == SCHEDULES.keys()


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_what_the_definition_says(name):
    """A schedule without a definition here fails."""
    found = [lr for lr, _ in states(plan(name))]
    assert found == pytest.approx([0.1 * DEFINITIONS[name](k + 1) for k in range(len(LOSSES))])


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_depend_on_the_number_of_epochs_where_that_is_declared(name):
    rates = [states(plan(name, epochs=epochs)) for epochs in (24, 48)]
    assert (rates[0] != rates[1]) is SCHEDULES[name].needs_epochs


@pytest.mark.parametrize("name", SCHEDULES)
def test_at_the_lowest_rate_a_schedule_does_what_it_declares(name):
    found, free = states(plan(name, min_lr=0.04)), states(plan(name))
    rates = [lr for lr, alive in found if alive]
    match SCHEDULES[name].at_lowest:
        case "ignores it":
            assert found == free
        case "ends there":
            assert len(rates) == len(LOSSES) and rates[-1] == min(rates) == pytest.approx(0.04)
        case "stops":
            assert len(rates) < len(LOSSES) and min(rates) >= 0.04
            assert rates == [lr for lr, _ in free[: len(rates)]]


def test_the_command_line_describes_every_schedule():
    for name, schedule in SCHEDULES.items():
        assert f"{name}: {schedule.help}" in help_of_schedules()
        assert AT_LOWEST[schedule.at_lowest].format(name) in help_of_lowest()


def linear(settings, epoch, base, waiting):
    """Falls to 0 over the epochs: as an author would add it."""
    return Rates(base, waiting, 1 - epoch.to(base.dtype) / settings.epochs)


LINEAR = Schedule("a line down to 0", linear, True, "ignores it")


@pytest.mark.parametrize("left_out", [f.name for f in fields(Schedule)])
def test_a_schedule_that_does_not_say_everything_is_refused(left_out):
    said = {f.name: getattr(LINEAR, f.name) for f in fields(Schedule) if f.name != left_out}
    with pytest.raises(TypeError, match=f"missing .* argument: '{left_out}'"):
        Schedule(**said)
    with pytest.raises(ValueError, match=f"a schedule whose {left_out} cannot be used, expected"):
        Schedule(**said, **{left_out: None})


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="got a schedule called 'cosine', expected a new name"):
        register("cosine", LINEAR)
    with pytest.raises(TypeError, match=r"expected a pna\.train\.schedules\.Schedule"):
        register("linear", linear)
    assert "linear" not in SCHEDULES


def test_a_new_schedule_goes_on_only_with_the_epochs_it_was_planned_for(tmp_path, monkeypatch):
    """It was resumed as if it had been begun with more epochs, at rates that it had never had."""
    monkeypatch.setitem(SCHEDULES, "linear", LINEAR)
    graphs, settings = random_graphs(4, 2), Settings(epochs=2, schedule="linear")
    run = train(graphs, tmp_path / "run", SMALL["gin recurrent"], settings, device="cpu")
    with pytest.raises(ValueError, match="schedule 'linear' was planned over 2 epochs, expected 2"):
        train(graphs, run.folder, resume=True, epochs=4, device="cpu")


def test_a_schedule_cannot_use_epochs_that_it_did_not_declare(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "linear", replace(LINEAR, needs_epochs=False))
    with pytest.raises(ValueError, match=r"'linear' asked for the number of epochs.*=True"):
        states(plan("linear"))
