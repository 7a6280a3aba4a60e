"""The unstable parts of torch that the package uses still mean what it takes them to mean."""

import re
from pathlib import Path

import pytest
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
    private = re.compile(r"torch(\.[a-z]\w*)*\._[a-zA-Z]|from torch[.\w]* import _")
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if private.search(path.read_text())
    }
    assert users == {"torch_internals.py"}


def test_every_part_is_used_and_tested():
    tests = Path(__file__).read_text()
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for name in internals.__all__:
        assert f"internals.{name}" in tests
        uses = len(re.findall(rf"\b{name}\b", source))
        assert uses > 2 or name == "TESTED_VERSIONS", f"nothing uses {name}"


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


def test_which_gradients_the_running_pass_needs():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, number, y, z):
            return x * y * z

        @staticmethod
        def backward(ctx, grad):
            seen.append(internals.needed_now(ctx))
            return grad, None, grad, None

    leaf, x, z = (torch.ones(2, requires_grad=True) for _ in range(3))
    y = 2 * leaf
    for inputs in ([x], [leaf], [y], [x, y]):
        torch.autograd.grad(Look.apply(x, 3, y, z.detach()).sum(), inputs, retain_graph=True)
    Look.apply(x, 3, y, z.detach()).sum().backward()
    one, other, both = ([*each, False] for each in ([1, 0, 0], [0, 0, 1], [1, 0, 1]))
    assert seen == [one, other, other, both, both]


def test_the_engine_returns_gradients():
    x, given = torch.ones(2, 3, requires_grad=True), torch.arange(6.0).view(2, 3)
    (found,) = internals.run_backward(
        ((x**2),), grad_tensors=(given,), keep_graph=False, create_graph=False,
        inputs=(x,), allow_unreachable=False, accumulate_grad=False,
    )  # fmt: skip
    assert torch.equal(found, 2 * given)
    assert x.grad is None


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


def test_a_single_level_function_runs_inside_a_transform():
    class Double(internals.SingleLevelFunction):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    def inside(x):
        with internals.single_level():
            return Double.apply(x).sum()

    assert torch.func.grad(inside)(torch.ones(2)).shape == (2,)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda x: Double.apply(x).sum())(torch.ones(2))


def test_forward_mode_can_be_turned_off():
    assert not internals.in_forward_mode()
    with torch.autograd.forward_ad.dual_level():
        assert internals.in_forward_mode()
        x = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        for on in (True, False):
            with internals.set_forward_mode(on):
                tangent = torch.autograd.forward_ad.unpack_dual(2 * x).tangent
            assert (tangent is not None) == on


def test_kernels_come_after_autograd():
    keys = torch._C._dispatch_keys(torch.ones(2, requires_grad=True))
    assert keys.has(torch.DispatchKey.AutogradCPU)
    after = keys & internals.keys_after_autograd
    assert after.has(torch.DispatchKey.CPU) and not after.has(torch.DispatchKey.AutogradCPU)


def test_lists_are_added_in_place():
    sums = [torch.zeros(2), torch.ones(1)]
    internals.add_lists_(sums, [torch.ones(2), torch.ones(1)])
    assert [each.tolist() for each in sums] == [[1.0, 1.0], [2.0]]


def test_an_assertion_raises_its_message():
    internals.assert_async(torch.ones(1, dtype=torch.int32), "never")
    with pytest.raises(RuntimeError, match="the message"):
        internals.assert_async(torch.zeros(1, dtype=torch.int32), "the message")


@pytest.mark.gpu
def test_the_current_device():
    torch.cuda.init()
    assert internals.current_device() == torch.cuda.current_device()


@pytest.mark.gpu
def test_the_raw_stream_is_the_current_one():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert internals.raw_stream(torch.cuda.current_device()) == stream.cuda_stream


def _traced(function, *inputs):
    """Run the function as the compiler traces it; sizes are symbols."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def functional(*given):
        with internals.FunctionalTensorMode():
            return function(*map(internals.FunctionalTensor.to_functional, given))

    return make_fx(functional, tracing_mode="symbolic")(*inputs)


def test_a_rule_runs_while_the_compiler_traces():
    library = torch.library.Library("pna_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    torch.library.impl(library, "twice", "CompositeExplicitAutograd")(lambda x: 2 * x)
    seen = []

    def rule(mode, operator, types, inputs, named):
        seen.append((mode, types))
        with mode:
            return inputs[0] + inputs[0]

    torch.library.register_torch_dispatch(
        "pna_test::twice", internals.FunctionalTensorMode, rule, lib=library
    )
    torch.ops.pna_test.twice(torch.ones(2))
    assert not seen
    graph = _traced(lambda x: torch.ops.pna_test.twice(x).elem, torch.ones(3, 4))
    assert len(seen) == 1 and isinstance(seen[0][0], internals.FunctionalTensorMode)
    assert seen[0][1] == (internals.FunctionalTensor,)
    targets = [str(node.target) for node in graph.graph.nodes]
    assert "aten.add.Tensor" in targets and "pna_test.twice.default" not in targets


def test_sizes_have_hints_and_may_be_known():
    seen = []

    def look(x):
        seen.append([type(n) for n in x.shape])
        seen.append([internals.size_hint(n, 7) for n in x.shape])
        seen.append([internals.known_size(n, 7) for n in x.shape])
        sizes = tuple(x.shape)
        int(sizes[1])  # a guard
        seen.append([internals.known_size(n, 7) for n in sizes])
        return x.elem + 1

    _traced(look, torch.ones(3, 4))
    assert seen == [[torch.SymInt] * 2, [3, 4], [7, 7], [7, 4]]


def test_an_export_keeps_operators():
    from torch.export._trace import _disable_custom_triton_op_functional_decomposition

    assert not internals.keeps_operators()
    with _disable_custom_triton_op_functional_decomposition():
        assert internals.keeps_operators()


def test_an_export_checks_types():
    class Widen(torch.nn.Module):
        def forward(self, x):
            return x.to(torch.float64)

    program = torch.export.export(Widen(), (torch.ones(2),))
    assert internals.type_check in [node.target for node in program.graph.nodes]


def test_a_package_is_compiled_with_options_that_inductor_has(monkeypatch):
    """`tests/train/test_exporting.py` compiles a package, and reads its metadata in C++."""
    seen = []
    monkeypatch.setattr(
        "torch._inductor.aoti_compile_and_package",
        lambda program, *, package_path, inductor_configs: seen.append(inductor_configs),
    )
    internals.compile_package(None, "told.pt2", {"said": "so"})
    assert seen == [{"aot_inductor.metadata": {"said": "so"}}]
    with torch._inductor.config.patch(seen[0]):
        assert torch._inductor.config.aot_inductor.metadata == {"said": "so"}


def test_fake_tensors_have_no_values():
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []
    make_fx(lambda x: seen.append(type(x)) or x + 1, tracing_mode="fake")(torch.ones(2))
    assert issubclass(seen[0], internals.FakeTensor)


def test_the_cache_of_the_compiler_reads_the_source_of_kernels():
    from torch._library.triton import get_triton_kernels_for_op

    kernels = internals.kernels_of_operators
    kernels["pna_test::some"] = ["a kernel"]
    assert get_triton_kernels_for_op("pna_test::some") == ["a kernel"]
    del kernels["pna_test::some"]


class _Told(torch.nn.Module):
    def forward(self, x):
        return x + 1 if internals.is_exporting() else x - 1


@pytest.mark.parametrize("strict", [False, True])
def test_exporting_is_not_compiling(strict):
    x, module = torch.zeros(2), _Told()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    program = torch.export.export(module, (x,), strict=strict)
    assert module(x).tolist() == compiled(x).tolist() == [-1, -1]
    assert program.module()(x).tolist() == [1, 1]
