"""The parts of torch without a stable interface that this package uses, all in one place.

They are aliases, so that `torch.compile` still recognises them. `tests/test_torch_internals.py`
checks each one and names the torch versions for which that was done.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
from torch._functorch.utils import enable_single_level_autograd_function as single_level
from torch._library import triton as _of_triton
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd.forward_ad import _set_fwd_grad_enabled as set_forward_mode
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction
from torch.export import ExportedProgram

#: The minor versions of torch for which the tests of this file have passed.
TESTED_VERSIONS = ("2.11", "2.12", "2.13")

#: Whether any transform of `torch.func` (grad, vmap, jvp) is active.
in_transform = torch._C._are_functorch_transforms_active

#: Whether a tensor is a batch of `torch.vmap`.
is_batched = torch._C._functorch.is_batchedtensor

#: Whether a tensor is a batch of gradients (`is_grads_batched=True` of `torch.autograd.grad`).
is_batch_of_gradients = torch._C._functorch.is_legacy_batchedtensor

#: Whether a transform of `torch.func` wraps a tensor.
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor

#: A context in which operators skip autograd.
below_autograd = torch._C._AutoDispatchBelowAutograd

#: The dispatch keys that come after autograd.
keys_after_autograd = torch._C._after_autograd_keyset

#: How many modes (`TorchDispatchMode`) listen to operators.
dispatch_modes = torch._C._len_torch_dispatch_stack

#: The number of the running backward pass, or -1.
backward_pass = torch._C._current_graph_task_id

#: The hooks that tensors saved for a backward pass go through, or None; takes True.
saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks

#: What `torch.autograd.grad` calls. That also imports SymPy, for symbolic shapes of the upstream
#: gradient, which takes two seconds.
run_backward = torch.autograd.graph._engine_run_backward

#: Add one list of tensors to another in place, by one kernel.
add_lists_ = torch._foreach_add_

#: Raise with a message at the next synchronisation if a tensor of one element is 0; takes both.
#: On a CPU, raise at once.
assert_async = torch._assert_async

#: The index of the current device, of a program that has initialised CUDA; None without CUDA.
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)

#: The number of the current stream of a device, given its index; None without CUDA.
raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

#: The kernels inside operators, by name; the compiler's cache on disk reads their source.
kernels_of_operators: dict[str, list[object]] = getattr(_of_triton, "triton_ops_to_kernels", {})

#: A check in exported programs that a tensor has the type that it had when it was traced.
type_check = torch.ops.aten._assert_tensor_metadata.default


def compile_package(program: ExportedProgram, path: str, metadata: dict[str, str]) -> None:
    """Compile a program by AOTInductor, for its device, to a package with these metadata."""
    from torch._inductor import aoti_compile_and_package  # imports the compiler

    aoti_compile_and_package(
        program, package_path=path, inductor_configs={"aot_inductor.metadata": metadata}
    )


def has_dispatch_mode() -> bool:
    """Whether a mode, such as that of fake tensors or a counter of operations, sees operators."""
    return bool(dispatch_modes() > 0)


def in_forward_mode() -> bool:
    """Whether `torch.autograd.forward_ad.dual_level` is active."""
    return bool(_forward_ad._current_level >= 0)


def needed_now(ctx: Any) -> list[bool]:
    """For each input of an autograd function, in its `backward`: whether the running pass needs its
    gradient. `ctx.needs_input_grad` says whether some pass may."""
    nodes = iter([node for node, _ in ctx.next_functions if node is not None])
    return [needed and _is_executed(next(nodes)) for needed in ctx.needs_input_grad]


def _is_executed(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # of a leaf, if `torch.autograd.grad` was asked for its gradient
        return True


def keeps_operators() -> bool:
    """Whether operators are being traced for `torch.export`, which keeps them whole."""
    from torch.export._trace import custom_triton_ops_decomposition_disabled  # imports the compiler

    return bool(custom_triton_ops_decomposition_disabled())


def size_hint(size: torch.SymInt, otherwise: int) -> int:
    """The value of a symbolic size in the batch being traced, without a guard on it."""
    return int(size.node.hint) if size.node.has_hint() else otherwise


def known_size(size: torch.SymInt, otherwise: int) -> int:
    """The value of a symbolic size if a guard on it exists."""
    known = size.node.maybe_as_int()
    return otherwise if known is None else known


def is_exporting() -> bool:
    """Whether `torch.export` traces. Compiled by torch 2.11, `torch.compiler.is_exporting` is True
    in all compiled code."""
    return torch.compiler._is_exporting_flag


__all__ = [
    "TESTED_VERSIONS",
    "FakeTensor",
    "FunctionalTensor",
    "FunctionalTensorMode",
    "SingleLevelFunction",
    "add_lists_",
    "assert_async",
    "backward_pass",
    "below_autograd",
    "compile_package",
    "current_device",
    "in_forward_mode",
    "in_transform",
    "is_batch_of_gradients",
    "is_batched",
    "is_exporting",
    "is_wrapped",
    "keeps_operators",
    "kernels_of_operators",
    "keys_after_autograd",
    "known_size",
    "needed_now",
    "raw_stream",
    "run_backward",
    "saved_tensor_hooks",
    "set_forward_mode",
    "single_level",
    "size_hint",
    "type_check",
]
