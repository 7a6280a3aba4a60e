"""Linear maps with the transpose written out are those of torch, and so are their gradients."""

import pytest
import torch
import torch.nn.functional as F

from pna.population import untransposed
from pna.population.untransposed import linear, tower_linear


@pytest.fixture(autouse=True)
def on_arm(monkeypatch):
    monkeypatch.setattr(untransposed, "_IS_ARM", True)


def einsum(x, weight, bias):
    out = torch.einsum("nti,toi->nto", x, weight)
    return out if bias is None else out + bias


def made(*shape, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).requires_grad_()


#: A function, what it is to be, and the shapes of x, weight and bias.
BOTH = [
    (linear, F.linear, ((7, 3), (5, 3), (5,))),
    (tower_linear, einsum, ((7, 4, 3), (4, 5, 3), (4, 5))),
]


def outcome(function, *tensors):
    """The result and all gradients, of a sum in which every number counts differently."""
    out = function(*tensors)
    loss = (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum()
    wanted = [t for t in tensors if t is not None]
    return [out, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("function, expected, shapes", BOTH, ids=["linear", "towers"])
def test_as_torch(function, expected, shapes, with_bias):
    tensors = [made(*shape, seed=i) for i, shape in enumerate(shapes)]
    if not with_bias:
        tensors[2] = None
    for got, true in zip(outcome(function, *tensors), outcome(expected, *tensors), strict=True):
        torch.testing.assert_close(got, true)


@pytest.mark.parametrize("shared", [None, 0], ids=["one x", "own x"])
@pytest.mark.parametrize("function, expected, shapes", BOTH, ids=["linear", "towers"])
def test_members_of_a_vmap(function, expected, shapes, shared):
    x = made(*([6] if shared == 0 else []), *shapes[0], seed=0)
    parameters = [made(6, *shape, seed=i) for i, shape in enumerate(shapes[1:], 1)]
    of_all = [torch.vmap(f, in_dims=(shared, 0, 0)) for f in (function, expected)]
    results = (outcome(f, x, *parameters) for f in of_all)
    for got, true in zip(*results, strict=True):
        torch.testing.assert_close(got, true)


def test_gradients_of_gradients():
    x, weight, bias = (made(*shape, seed=i) for i, shape in enumerate(BOTH[0][2]))

    def twice(function):
        (grad,) = torch.autograd.grad(function(x, weight, bias).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.pow(2).sum(), weight)[0]

    torch.testing.assert_close(twice(linear), twice(F.linear))


def test_what_is_left_to_torch(monkeypatch):
    def refuse(*_):
        raise AssertionError("taken")

    monkeypatch.setattr(untransposed._Linear, "apply", refuse)
    weight, bias = made(5, 3, seed=0), made(5, seed=1)
    assert linear(made(2, 2, 3, seed=2), weight, bias).shape == (2, 2, 5)
    assert linear(made(4097, 3, seed=2), weight, bias).shape == (4097, 5)
    assert linear(made(2, 3, seed=2).double(), weight.double(), None).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(made(2, 3, seed=2), weight, bias).dtype == torch.bfloat16
    compiled = torch.compile(linear, fullgraph=True, backend="eager")
    assert compiled(made(2, 3, seed=2), weight, bias).shape == (2, 5)
    with pytest.raises(AssertionError, match="taken"):
        linear(made(2, 3, seed=2), weight, bias)
    monkeypatch.setattr(untransposed, "_IS_ARM", False)
    assert linear(made(2, 3, seed=2), weight, bias).shape == (2, 5)


@pytest.mark.parametrize("towers", [False, True])
def test_forward_mode(towers):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 2, 3), torch.randn(2, 4, 3), torch.randn(2, 4)
    if not towers:
        x, weight, bias = x[:, 0], weight[0], bias[0]
    work = untransposed.tower_linear if towers else untransposed.linear
    plain = (lambda x, w, b: torch.einsum("rti,toi->rto", x, w) + b) if towers else F.linear
    given = (x, weight, bias)
    moves = tuple(torch.randn_like(t) for t in given)
    for one, other in zip(
        torch.func.jvp(work, given, moves), torch.func.jvp(plain, given, moves), strict=True
    ):
        torch.testing.assert_close(one, other)
