"""The unstable parts of torch that the package uses still mean what it takes them to mean."""

import re
from pathlib import Path

import torch

import pna
from pna import torch_internals as internals

SOURCE = Path(pna.__file__).parent


def test_torch_is_a_version_that_was_tested():
    version = ".".join(torch.__version__.split(".")[:2])
    assert version in internals.TESTED_VERSIONS, (
        f"got torch {torch.__version__}, expected one of {', '.join(internals.TESTED_VERSIONS)}, "
        "for which the parts of torch without a stable interface were tested; run the tests of "
        "this file and of tests/ops, tests/population and tests/nn with it, and add "
        f"{version!r} to TESTED_VERSIONS in src/pna/torch_internals.py if they pass"
    )


def test_only_one_file_uses_the_internals_of_torch():
    private = re.compile(r"torch\._C|from torch\._|import torch\._|from torch[.\w]* import _")
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if private.search(path.read_text())
    }
    assert users == {"torch_internals.py"}


def test_transforms_and_batches_are_recognised():
    seen = []

    def look(x):
        seen.append((internals.in_transform(), internals.is_batched(x), internals.is_wrapped(x)))
        return x.sum()

    x = torch.ones(2, 3)
    look(x)
    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    assert seen == [(False, False, False), (True, True, True), (True, False, True)]


def test_a_batch_of_gradients_is_recognised():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(internals.is_batch_of_gradients(grad))
            return grad

    x = torch.ones(2, requires_grad=True)
    y = Look.apply(x)
    torch.autograd.grad(y, x, torch.ones(2), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert seen == [False, True]


def test_operators_below_autograd_record_nothing():
    x = torch.ones(2, requires_grad=True)
    with internals.below_autograd():
        assert not (2 * x).requires_grad
    assert (2 * x).requires_grad


def test_a_running_backward_pass_has_a_number():
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: seen.append(internals.backward_pass()))
    assert internals.backward_pass() == -1
    x.sum().backward()
    assert seen[0] >= 0


def test_hooks_of_saved_tensors_are_seen():
    assert internals.saved_tensor_hooks(True) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert internals.saved_tensor_hooks(True) is not None
