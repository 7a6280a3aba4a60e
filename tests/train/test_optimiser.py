"""Adam of a population against torch's, and what it does where a step is not to be taken."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from pna import fast_paths
from pna.ops import cpu
from pna.population import adam_cpu
from pna.train.optimiser import Adam

MEMBERS, PARAMETERS = 3, 37
without_kernel = partial(fast_paths.without, "adam")
LR = torch.tensor([1e-1, 1e-2, 3e-3], dtype=torch.float64)
DECAY = torch.tensor([0.0, 1e-2, 0.5], dtype=torch.float64)
LOSS = torch.ones(MEMBERS, 2, dtype=torch.float64)


def numbers(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(MEMBERS, PARAMETERS, dtype=torch.float64, generator=generator)


def standing() -> tuple[torch.Tensor, torch.Tensor]:
    """Who is alive: all; and broken: none."""
    return torch.ones(MEMBERS, dtype=torch.bool), torch.zeros(MEMBERS, dtype=torch.bool)


#: Tests run with the kernel of a CPU if it was built, and without it.
both_ways = pytest.mark.parametrize("way", [nullcontext, without_kernel], ids=["C", "torch"])


@both_ways
@pytest.mark.parametrize("clip", [None, 0.5, 1e6], ids=str)
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_ten_steps_are_those_of_torch(decoupled, clip, way):
    """Torch adds 1e-6 to the norm that it clips by; we do not."""
    weights = numbers(0)
    adam = Adam(weights, clip, decoupled)
    parameters = [torch.nn.Parameter(row.clone()) for row in weights]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    theirs = [
        kind([p], lr=float(lr), weight_decay=float(decay))
        for p, lr, decay in zip(parameters, LR, DECAY, strict=True)
    ]
    for step in range(10):
        grad = numbers(step + 1)
        with way():
            adam.step(weights, grad, LR, DECAY, LOSS, *standing())
        for parameter, gradient, optimiser in zip(parameters, grad, theirs, strict=True):
            parameter.grad = gradient.clone()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([parameter], clip)
            optimiser.step()
    tolerance = 1e-12 if clip != 0.5 else 2e-6
    expected = torch.stack([p.detach() for p in parameters])
    torch.testing.assert_close(weights, expected, rtol=tolerance, atol=tolerance)
    assert adam.steps.tolist() == [10.0] * MEMBERS


def test_clipping_is_to_the_norm_itself():
    """The first step sees the gradient only through mean and square."""
    weights, grad = numbers(0), numbers(1)
    adam = Adam(weights, 0.5, False)
    adam.step(weights, grad, LR, DECAY * 0, LOSS, *standing())
    expected = 0.1 * 0.5 * grad / grad.norm(dim=1, keepdim=True)
    torch.testing.assert_close(adam.mean, expected)
    small = Adam(weights, 100.0, False)
    small.step(weights, grad, LR, DECAY * 0, LOSS, *standing())
    torch.testing.assert_close(small.mean, 0.1 * grad)


@pytest.mark.parametrize("clip", [None, 1.0], ids=str)
def test_a_gradient_of_zero_is_no_trouble(clip):
    weights = numbers(0)
    before = weights.clone()
    adam, none = Adam(weights, clip, False), torch.zeros_like(weights)
    adam.step(weights, none, LR, DECAY * 0, LOSS, *standing())
    assert torch.equal(weights, before)


@pytest.mark.parametrize(
    ("first", "last_loss", "lives"),
    [
        (1.0, 1.0, False),
        (torch.nan, 1.0, True),
        (torch.inf, 1.0, True),
        (1.0, torch.nan, True),
        (1.0, -torch.inf, True),
    ],
    ids=["not alive", "nan", "inf", "loss of nan", "loss of -inf"],
)
@both_ways
@pytest.mark.parametrize("clip", [None, 1.0], ids=str)
def test_members_that_cannot_move_stay_put(first, last_loss, lives, clip, way):
    """And are broken, if they were alive."""
    weights, adam = numbers(0), Adam(numbers(0), clip, False)
    adam.step(weights, numbers(1), LR, DECAY, LOSS, *standing())
    before = {name: t.clone() for name, t in adam.state_dict().items()} | {"w": weights.clone()}
    grad, loss, (alive, broken) = numbers(2), LOSS.clone(), standing()
    grad[1, 0], loss[1, -1], alive[1] = first, last_loss, lives
    with way():
        adam.step(weights, grad, LR, DECAY, loss, alive, broken)
    assert alive.tolist() == [True, False, True]
    assert broken.tolist() == [False, lives, False]
    for name, tensor in (adam.state_dict() | {"w": weights}).items():
        assert torch.equal(tensor[1], before[name][1]), name
        assert not torch.equal(tensor[0], before[name][0]), name


@both_ways
def test_a_square_that_overflows_does_not_reach_the_weights(way):
    """In float32 gradients of 1e25 are finite, their squares are not."""
    weights = numbers(0).float()
    adam = Adam(weights, None, False)
    lr, decay = LR.float(), DECAY.float()
    grad = numbers(1).float()
    grad[1] *= 1e25
    alive, broken = standing()
    for _ in range(3):
        with way():
            adam.step(weights, grad, lr, decay, LOSS.float(), alive, broken)
    assert weights.isfinite().all()
    assert alive.tolist() == [True, False, True] and broken.tolist() == [False, True, False]


@pytest.mark.parametrize("clip", [None, 0.5], ids=str)
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_kernels_take_the_steps_of_the_definition(triton, monkeypatch, decoupled, clip):
    """Over several blocks of weights and losses; of three members one breaks by its weights or by
    its loss, and one is not alive, at times."""
    from pna.population.triton import adam as kernels

    monkeypatch.setattr(kernels, "_BLOCK", 4)
    monkeypatch.setattr(kernels, "_LOSSES", 2)
    monkeypatch.setattr(kernels, "_FINDINGS", 1)
    exact = numbers(0).to(triton.device)
    short = exact.float()
    ours, definition = Adam(short, clip, decoupled), Adam(exact, clip, decoupled)
    lr, decay = LR.to(triton.device), DECAY.to(triton.device)
    for step in range(6):
        grad = numbers(step + 1).to(triton.device)
        loss = torch.ones(MEMBERS, 3, dtype=torch.float64, device=triton.device)
        if step == 2:
            grad[0, -1] = torch.inf
        if step == 4:
            loss[0, 1], loss[2, 2] = torch.nan, torch.inf
        standings = []
        for adam, weights in ((ours, short), (definition, exact)):
            alive, broken = (t.to(triton.device) for t in standing())
            alive[1] = step != 3
            given = (t.to(weights.dtype) for t in (grad, lr, decay, loss))
            adam.step(weights, *given, alive, broken)
            standings.append((alive.tolist(), broken.tolist()))
        assert standings[0] == standings[1]
        breaks = [step in (2, 4), False, step == 4]
        lives = [not b for b in breaks]
        lives[1] = step != 3
        assert standings[0] == (lives, breaks)
        torch.testing.assert_close(short.double(), exact, rtol=1e-5, atol=1e-6)
        for name, tensor in definition.state_dict().items():
            got = ours.state_dict()[name]
            torch.testing.assert_close(got.double(), tensor, rtol=1e-5, atol=1e-7, msg=name)


def test_the_kernel_of_a_cpu_is_there_if_others_are():
    assert adam_cpu.built or cpu.unavailable() is not None
