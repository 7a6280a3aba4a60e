"""Schedules and stopping against torch's schedulers and their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from pna.train.member_state import MemberState
from pna.train.settings import Settings

LRS = (0.1, 0.02)


def stand(settings: Settings) -> MemberState:
    return MemberState.at_start(settings, torch.device("cpu"), torch.float64)


def rates(settings: Settings, losses: list[float]) -> list[list[float]]:
    """Learning rates of every epoch, the first before any loss is known."""
    state = stand(settings)
    found = [state.lr.tolist()]
    for loss in losses:
        state.after_epoch(settings, torch.full((settings.members,), loss, dtype=torch.float64))
        found.append(state.lr.tolist())
    return found


def torch_rates(make, losses, members=LRS, give_loss=False):
    found = []
    for lr in members:
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        scheduler = make(optimiser)
        of_member = [lr]
        for loss in losses:
            optimiser.step()
            scheduler.step(loss) if give_loss else scheduler.step()
            of_member.append(optimiser.param_groups[0]["lr"])
        found.append(of_member)
    return [list(epoch) for epoch in zip(*found, strict=True)]


def test_cosine_is_that_of_torch():
    settings = Settings(members=2, lr=LRS, schedule="cosine", epochs=12, min_lr=0.005)
    expected = torch_rates(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.005), [1.0] * 12
    )
    torch.testing.assert_close(torch.tensor(rates(settings, [1.0] * 12)), torch.tensor(expected))


def test_warmup_grows_evenly_to_the_whole_rate():
    settings = Settings(members=2, lr=LRS, warmup=3)
    expected = [[lr * min(1, (e + 1) / 4) for lr in LRS] for e in range(7)]
    torch.testing.assert_close(torch.tensor(rates(settings, [1.0] * 6)), torch.tensor(expected))


def test_cosine_begins_after_the_warmup():
    settings = Settings(members=1, lr=(0.1,), schedule="cosine", warmup=2, epochs=10)
    expected = [0.1 / 3, 0.2 / 3]
    expected += [0.1 * (1 + math.cos(math.pi * k / 8)) / 2 for k in range(9)]
    got = [epoch[0] for epoch in rates(settings, [1.0] * 10)]
    assert got == pytest.approx(expected)


# better twice, dull for 4, better, dull for long; equal is not better
LOSSES = [5.0, 4.0, 4.5, 4.0, 4.1, 4.2, 3.0, 3.5, 3.5, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5]


@pytest.mark.parametrize("plateau", [1, 2, 3])
def test_a_plateau_is_that_of_torch_of_one_less_patience(plateau):
    """Torch lowers the rate once more than `patience` epochs were no better, we once as many as
    `plateau` were; it asks for an improvement of 1e-4 unless told otherwise, we for any. And
    where its least rate is kept to, ours stops the member."""
    settings = Settings(
        members=2, lr=LRS, schedule="plateau", plateau=plateau, decay=0.3, patience=None
    )
    expected = torch_rates(
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(
            o, factor=0.3, patience=plateau - 1, threshold=0.0, eps=0.0
        ),
        LOSSES,
        give_loss=True,
    )
    torch.testing.assert_close(torch.tensor(rates(settings, LOSSES)), torch.tensor(expected))


def test_a_rate_below_the_least_stops_a_member():
    """0.1 → 0.05 → 0.025, where 0.02 → 0.01 is below it at once."""
    settings = Settings(
        members=2, lr=LRS, schedule="plateau", plateau=1, min_lr=0.02, patience=None
    )
    state, alive = stand(settings), []
    for _ in range(5):
        state.after_epoch(settings, torch.ones(2, dtype=torch.float64))
        alive.append(state.alive.tolist())
    # the first loss is better than none
    assert alive == [[True, True], [True, False], [True, False], [False, False], [False, False]]
    assert not state.broken.any()


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_counts_epochs_since_the_best_of_each(patience):
    settings = Settings(members=2, patience=patience)
    state = stand(settings)
    stopped = [0, 0]
    for epoch in range(1, 12):
        # the first member gets better until epoch 5, the second never after the first epoch
        losses = torch.tensor([max(10.0 - epoch, 5.0), 1.0], dtype=torch.float64)
        state.after_epoch(settings, losses)
        for k in range(2):
            if not state.alive[k] and not stopped[k]:
                stopped[k] = epoch
    assert state.best_epoch.tolist() == [5, 1]
    assert state.best.tolist() == [5.0, 1.0]
    assert stopped == [5 + patience, 1 + patience]


def test_no_patience_never_stops():
    settings = Settings(patience=None)
    state = stand(settings)
    for _ in range(300):
        state.after_epoch(settings, torch.ones(1, dtype=torch.float64))
    assert state.alive.all() and int(state.epoch) == 300


def test_what_is_no_number_is_no_better():
    settings = Settings(members=2)
    state = stand(settings)
    nan = torch.tensor([torch.nan, 1.0], dtype=torch.float64)
    assert state.after_epoch(settings, nan).tolist() == [False, True]
    assert state.best.tolist() == [math.inf, 1.0]


def test_those_that_broke_have_no_best_any_more():
    settings = Settings(members=3)
    state = stand(settings)
    state.alive[1:] = False
    state.broken[1] = True
    better = state.after_epoch(settings, torch.zeros(3, dtype=torch.float64))
    assert better.tolist() == [True, False, False]
    assert set(state.state_dict()) == {
        "epoch", "lr", "base_lr", "best", "best_epoch", "waiting", "alive", "broken",
    }  # fmt: skip
