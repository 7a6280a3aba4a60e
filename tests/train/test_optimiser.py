"""Adam of a population against torch's, and what it does where a step is not to be taken."""

from __future__ import annotations

import pytest
import torch

from pna.train.optimiser import Adam

MEMBERS, PARAMETERS = 3, 7
LR = torch.tensor([1e-1, 1e-2, 3e-3], dtype=torch.float64)
DECAY = torch.tensor([0.0, 1e-2, 0.5], dtype=torch.float64)
EVERY = torch.ones(MEMBERS, dtype=torch.bool)


def numbers(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(MEMBERS, PARAMETERS, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("clip", [None, 0.5, 1e6], ids=str)
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_ten_steps_are_those_of_torch(decoupled, clip):
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
        assert adam.step(weights, grad, LR, DECAY, EVERY).all()
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
    adam.step(weights, grad, LR, DECAY * 0, EVERY)
    expected = 0.1 * 0.5 * grad / grad.norm(dim=1, keepdim=True)
    torch.testing.assert_close(adam.mean, expected)
    small = Adam(weights, 100.0, False)
    small.step(weights, grad, LR, DECAY * 0, EVERY)
    torch.testing.assert_close(small.mean, 0.1 * grad)


@pytest.mark.parametrize("clip", [None, 1.0], ids=str)
def test_a_gradient_of_zero_is_no_trouble(clip):
    weights = numbers(0)
    before = weights.clone()
    Adam(weights, clip, False).step(weights, torch.zeros_like(weights), LR, DECAY * 0, EVERY)
    assert torch.equal(weights, before)


@pytest.mark.parametrize(
    ("row", "allowed"),
    [
        ([1.0] * PARAMETERS, False),  # not allowed
        ([torch.nan] + [1.0] * (PARAMETERS - 1), True),
        ([torch.inf] + [1.0] * (PARAMETERS - 1), True),
    ],
    ids=["not allowed", "nan", "inf"],
)
@pytest.mark.parametrize("clip", [None, 1.0], ids=str)
def test_members_that_cannot_move_stay_put(row, allowed, clip):
    weights, adam = numbers(0), Adam(numbers(0), clip, False)
    adam.step(weights, numbers(1), LR, DECAY, EVERY)
    before = {name: t.clone() for name, t in adam.state().items()} | {"w": weights.clone()}
    grad = numbers(2)
    grad[1] = torch.tensor(row)
    moved = adam.step(weights, grad, LR, DECAY, torch.tensor([True, allowed, True]))
    assert moved.tolist() == [True, False, True]
    for name, tensor in (adam.state() | {"w": weights}).items():
        assert torch.equal(tensor[1], before[name][1]), name
        assert not torch.equal(tensor[0], before[name][0]), name


def test_a_square_that_overflows_does_not_reach_the_weights():
    """In float32 gradients of 1e25 are finite, their squares are not."""
    weights = numbers(0).float()
    adam = Adam(weights, None, False)
    lr, decay = LR.float(), DECAY.float()
    grad = numbers(1).float()
    grad[1] *= 1e25
    moved = [adam.step(weights, grad, lr, decay, EVERY) for _ in range(3)]
    assert weights.isfinite().all()
    assert not moved[-1][1] and moved[-1][[0, 2]].all()


@pytest.mark.parametrize("clip", [None, 0.5], ids=str)
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_kernels_take_the_steps_of_the_definition(triton, monkeypatch, decoupled, clip):
    """Over several blocks of weights; of three members one is broken, one not allowed, at times."""
    from pna.ops.triton import adam as kernels

    monkeypatch.setattr(kernels, "_BLOCK", 4)
    monkeypatch.setattr(kernels, "_FINDINGS", 1)
    exact = numbers(0).to(triton.device)
    short = exact.float()
    ours, definition = Adam(short, clip, decoupled), Adam(exact, clip, decoupled)
    lr, decay = LR.to(triton.device), DECAY.to(triton.device)
    for step in range(5):
        grad = numbers(step + 1).to(triton.device)
        if step == 2:
            grad[0, -1] = torch.inf
        allowed = torch.tensor([True, step != 3, True], device=triton.device)
        moved = ours.step(short, grad.float(), lr.float(), decay.float(), allowed)
        assert moved.dtype == torch.bool
        assert torch.equal(moved, definition.step(exact, grad, lr, decay, allowed))
        torch.testing.assert_close(short.double(), exact, rtol=1e-5, atol=1e-6)
        for name, tensor in definition.state().items():
            got = ours.state()[name]
            torch.testing.assert_close(got.double(), tensor, rtol=1e-5, atol=1e-7, msg=name)
