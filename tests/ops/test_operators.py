"""Operators are registered whole: what is missing, misspelt or contradictory is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import pna
from pna.ops.backend import choose
from pna.ops.degree_linear import degree_linear_backward, degree_linear_operator
from pna.ops.operators import OPERATORS, gradient_operator, operator
from pna.ops.product import Product
from pna.ops.request import Messages, Request
from pna.ops.statistics import statistics_operator
from pna.ops.vmap_rules import Fold

TESTS = Path(__file__).parents[1]
SOURCE = Path(pna.__file__).parent


class Two(NamedTuple):
    out: Tensor
    spare: Tensor


def double(x: Tensor, y: Tensor, keep: bool) -> Tensor:
    return 2 * x


def allocate(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def both(x: Tensor, y: Tensor) -> Two:
    return Two(2 * x, 3 * y)


def allocate_both(x: Tensor, y: Tensor) -> Two:
    return Two(torch.empty_like(x), torch.empty_like(y))


def doubled(grad: Tensor) -> Tensor:
    return 2 * grad


#: The description of an operator that is complete.
WHOLE = {
    "forward": double,
    "fake": allocate,
    "backward": doubled,
    "differentiable": ("x",),
    "vmap": Fold({"x": 0}, results=(0,), join=False),
}


def not_annotated(x, y: Tensor, keep: bool) -> Tensor:
    return 2 * x


def of_no_schema_type(x: Tensor, y: dict[str, Tensor]) -> Tensor:
    return 2 * x


def no_return_type(x: Tensor, y: Tensor, keep: bool):
    return 2 * x


def reads_what_is_not_there(grad: Tensor, z: Tensor) -> Tensor:
    return grad * z


def reads_no_gradient(x: Tensor) -> Tensor:
    return x


def only_of_the_second(grad_spare: Tensor) -> tuple[Tensor, Tensor]:
    return grad_spare, grad_spare


def in_another_order(grad_spare: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * grad_out, 3 * grad_spare


TWO = {"forward": both, "fake": allocate_both, "differentiable": ("x", "y")}

#: What is wrong, with the error.
REFUSED = {
    "no annotation": ({"forward": not_annotated}, "got a parameter x: None"),
    "another type": ({"forward": of_no_schema_type}, "got a parameter y: dict"),
    "no return type": ({"forward": no_return_type}, "forward returns None"),
    "fake of other results": ({"fake": allocate_both}, "fake returns .*Two"),
    "differentiable": ({"differentiable": ("w",)}, r"got \['w'\] in `differentiable`"),
    "mutates": ({"mutates": ("w",)}, r"got \['w'\] in `mutates`"),
    "axes": ({"vmap": Fold({"w": 0}, results=(0,))}, r"got \['w'\] in `axes`"),
    "rows": ({"vmap": Fold({"x": 0}, (0,), rows=("w",))}, r"got \['w'\] in `rows`"),
    "axes of results": ({"vmap": Fold({"x": 0}, results=(0, 1))}, "got 2 axes for the 1 results"),
    "terms of the gradient": ({"backward": reads_what_is_not_there}, r"got \['z'\] in the grad"),
    "no upstream gradient": ({"backward": reads_no_gradient}, r"upstream gradients \[\]"),
    "linear": ({"linear": True}, "whose gradient does not read its arguments y, keep"),
    "second result only": (
        {**TWO, "backward": only_of_the_second},
        r"upstream gradients \['grad_spare'\].*expected .*out, spare",
    ),
    "results in another order": (
        {**TWO, "backward": in_another_order},
        r"upstream gradients \['grad_spare', 'grad_out'\]",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_incomplete_operators_are_refused(wrong):
    change, message = REFUSED[wrong]
    with pytest.raises(TypeError, match=message):
        operator("refused", **{**WHOLE, **change})
    assert "refused" not in OPERATORS and not hasattr(torch.ops.pna, "refused")


@pytest.mark.parametrize("missing", WHOLE)
def test_no_part_has_a_default(missing):
    with pytest.raises(TypeError, match=f"missing .*{missing}"):
        operator("refused", **{name: part for name, part in WHOLE.items() if name != missing})


def write(grad: Tensor, x: Tensor, gradients: tuple[Tensor]) -> None:
    gradients[0].copy_(2 * grad)


def write_nowhere(grad: Tensor, x: Tensor) -> None:
    """Has no parameter `gradients`."""


def reads_w(w: Tensor, tangents: Sequence[Tensor | None]) -> Tensor:
    return w


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (write, {}, "expected one"),
        (write, {"like": ("x",), "allocate": allocate}, "expected one"),
        (write, {"like": ("w",)}, r"got \['w'\] in `like`"),
        (write_nowhere, {"like": ("x",)}, "without a parameter `gradients`"),
        (write, {"like": ("x",), "tangent": doubled}, "without a parameter `tangents`"),
        (write, {"like": ("x",), "tangent": reads_w}, r"got \['w'\] in `tangent`"),
    ],
)
def test_incomplete_gradients_are_refused(function, given, message):
    with pytest.raises(TypeError, match=message):
        gradient_operator("refused", function, **({"tangent": "no second derivative"} | given))
    assert "refused" not in OPERATORS


def test_a_gradient_says_whether_it_has_a_tangent():
    with pytest.raises(TypeError, match=r"missing .*tangent"):
        gradient_operator("refused", write, like=("x",))


@pytest.fixture
def forgotten():
    """Operators of a test are no part of the package."""
    known = set(OPERATORS)
    yield
    for name in set(OPERATORS) - known:
        del OPERATORS[name]


def test_as_many_gradients_as_arguments(forgotten):
    gradient = gradient_operator("one_gradient", write, tangent="a test", like=("x",))
    with pytest.raises(TypeError, match="got 1 gradients for the 2 differentiable"):
        operator("refused", **{**WHOLE, "backward": gradient, "differentiable": ("x", "y")})


def test_a_whole_operator_is_registered(forgotten):
    call = operator("doubled_by_a_test", **WHOLE)
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    torch.library.opcheck(call.overload, (x, x.detach(), False))
    vmapped = torch.vmap(lambda one: call(one, x, False))(x)
    assert torch.equal(vmapped, 2 * x)


def test_opcheck_finds_a_fake_of_another_shape(forgotten):
    def transposed(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[::-1])

    call = operator("wrong_fake_of_a_test", **{**WHOLE, "fake": transposed})
    with pytest.raises(torch.testing._internal.optests.generate_tests.OpCheckError):
        torch.library.opcheck(call.overload, (torch.ones(2, 3), torch.ones(2, 3), False))


def test_every_operator_has_an_opcheck():
    """Schema, fake tensors and gradients of each one are checked somewhere in the tests."""
    for path in SOURCE.rglob("*.py"):
        if re.search(r"^\w+ = (gradient_)?operator\($", path.read_text(), re.MULTILINE):
            module = path.relative_to(SOURCE).with_suffix("").parts
            importlib.import_module(".".join(("pna", *module)))
    call = re.compile(r"opcheck\(\s*torch\.ops\.pna\.(\w+)\.default")
    checked = {name for path in TESTS.rglob("test_*.py") for name in call.findall(path.read_text())}
    assert set(OPERATORS) == checked


def test_operators_are_registered_only_here():
    """No other file registers with torch by hand."""
    by_hand = re.compile(r"library\.(define|impl|custom_op|register_\w+|Library|triton_op)\b")
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if by_hand.search(path.read_text())
    }
    assert users == {"ops/operators.py"}


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_direct_call_gives_the_same_and_passes_modes_that_listen():
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    messages = Messages(torch.randn(3, 5), None, None, adjacency)
    request = Request(("mean", "std", "max"), 1e-5, False)
    backend = choose(messages.x.device)
    expected = statistics_operator(messages, request, backend)
    for got, wanted in zip(
        statistics_operator.directly(messages, request, backend), expected, strict=True
    ):
        assert torch.equal(got, wanted)
    with Seen() as seen:
        statistics_operator.directly(messages, request, backend)
    assert "pna.statistics.default" in seen.names


def test_a_direct_call_is_direct(monkeypatch):
    """Of the operators that layers call so, each with its own first argument."""
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    messages = Messages(torch.randn(3, 5), None, None, adjacency)
    product = Product(
        torch.randn(3, 2, 1, 4), torch.randn(2, 1, 8, 5), torch.ones(3, 2), None, (1, 0),
        adjacency.indptr, adjacency.by_degree,
    )  # fmt: skip
    for called, first in (
        (statistics_operator, messages),
        (degree_linear_operator, product),
        (degree_linear_backward, torch.randn(3, 1, 5)),
    ):
        monkeypatch.setattr(called, "implementation", lambda *values: "direct")
        assert called.directly(first) == "direct"


def test_a_direct_call_gives_no_fake_tensor_to_a_kernel():
    """It would read at an address that is 0."""
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    messages = Messages(mode.from_tensor(torch.randn(3, 5)), None, None, adjacency)
    request = Request(("mean", "std", "max"), 1e-5, False)
    found = statistics_operator.directly(messages, request, choose(torch.device("cpu")))
    assert all(isinstance(tensor, FakeTensor) for tensor in found if tensor.numel())


def test_a_direct_call_of_a_gradient_gives_the_same():
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    z, weight, shift = torch.randn(3, 2, 1, 4), torch.randn(2, 1, 8, 5), torch.randn(3, 1, 4)
    product = Product(
        z, weight, torch.ones(3, 2), shift, (1, 0), adjacency.indptr, adjacency.by_degree
    )
    given = (torch.randn(3, 1, 5), [True, True, False, True], product, choose(z.device))
    for got, wanted in zip(
        degree_linear_backward.directly(*given), degree_linear_backward(*given), strict=True
    ):
        assert torch.equal(got, wanted)
