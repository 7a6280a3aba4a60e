"""Register a torch operator, and all that torch needs to know about it, from one description.

`operator` and `gradient_operator` take plain functions with annotated parameters. They derive the
schema, the implementation, the fake kernel for `torch.compile`, the gradients and the vmap rule. A
description that is incomplete, or whose parts disagree, is a TypeError at registration.

The compiler traces into implementations made of Triton kernels, as into those of
`torch.library.triton_op`. So Inductor launches the kernels itself, records them in CUDA graphs and
packages them.

`torch.library.register_autograd` would do the same at three times the cost of a small call.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from pna import fast_paths
from pna import torch_internals as internals
from pna.ops.backend import interpreting
from pna.ops.derivatives import gradients_of, no_autocast, refuse_batch
from pna.ops.schemas import NestedParameter, Signature, pick_items
from pna.ops.tracing import tracing
from pna.ops.vmap_rules import Fold, one_by_one
from pna.visible import has_memory

library = torch.library.Library("pna", "FRAGMENT")

#: Every registered operator by its name. The tests pass each one to `torch.library.opcheck`.
OPERATORS: dict[str, Operator] = {}

INSTEAD = "run it inside `with pna.backend('reference'):`"


def no_forward_mode(ctx: Any, *_: Any) -> Any:
    """The `jvp` of a function without forward-mode derivatives."""
    raise RuntimeError(
        "got a derivative in forward mode (torch.func.jvp, jacfwd, hessian), which the fast "
        f"kernels do not have; {INSTEAD}"
    )


def no_second_derivative(of: str) -> str:
    """The error message of a gradient without a `tangent`."""
    return f"got a second derivative of {of}, which its fast kernels do not have; {INSTEAD}"


def empty_gradient(tensor: Tensor | None, needed: bool, like: Tensor) -> Tensor:
    """Allocate the gradient of `tensor`; without elements if it is not needed."""
    if tensor is None or not needed:
        return like.new_empty(0)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


class Operator:
    """A torch operator, called with the parameters of the function that it was made from."""

    def __init__(self, name: str, signature: Signature, results: Sequence[str] | None) -> None:
        self.name, self.signature, self._pack = name, signature, signature.pack
        self.results = results  # names of the results; None for a list of any length
        self.implementation: Callable[..., Any] | None = None

    def define(self, mutates: Sequence[str] = ()) -> None:
        """Register the schema."""
        letters = dict(zip(mutates, "abcdefgh", strict=False))
        arguments = ", ".join(
            f"{kind}({letters[name]}!) {name}" if name in letters else f"{kind} {name}"
            for name, kind in self.signature.arguments
        )
        count = len(self.results or ())
        given = f"({', '.join(['Tensor'] * count)})" if count else "Tensor[]"
        library.define(f"{self.name}({arguments}) -> {given if count != 1 else 'Tensor'}")
        self.overload: Any = getattr(torch.ops.pna, self.name).default
        OPERATORS[self.name] = self

    def refuse_unknown(self, what: str, names: Iterable[str]) -> None:
        """Raise unless these are names of arguments; `what` has them."""
        if unknown := sorted(set(names) - set(self.signature.names)):
            raise TypeError(
                f"got {unknown} in `{what}` of {self.name}, expected some of its arguments: "
                + ", ".join(self.signature.names)
            )

    def __call__(self, *values: Any) -> Any:
        return self.overload(*self._pack(*values))

    def directly(self, *values: Any) -> Any:
        """The same in eager code below autograd. It does not pass torch's dispatcher, which takes
        the host as long as several launches, unless a mode listens there or the first tensor has
        no memory, as fake tensors."""
        if self.implementation is None or internals.has_dispatch_mode():
            return self(*values)
        first = values[0]
        if not isinstance(first, Tensor):
            first = next(iter(vars(first).values()))
        return (self.implementation if has_memory(first) else self)(*values)


def operator(
    name: str,
    forward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    backward: Operator | Callable[..., Any],
    differentiable: Sequence[str],
    vmap: Fold | Callable[..., Any],
    mutates: Sequence[str] = (),
    linear: bool = False,
    opaque: bool = False,
) -> Operator:
    """Register an operator.

    Args:
        name: its name in `torch.ops.pna`.
        forward: the implementation. Its annotations define the schema. A parameter `keeping: bool`
            is set to True if gradients will be needed.
        fake: allocates the results; takes some of the parameters of `forward`. Its return type,
            that of `forward`, names the results: a named tuple or dataclass, a tensor (`out`), or a
            list.
        backward: returns the gradients of the `differentiable` arguments, in that order. Its
            parameters are matched by name. The upstream gradients are `grad`, if only the first
            result has gradients; or `grad_y` for each result y that has them, which are the first
            ones, in their order; or `grads` of a list.
            `needs` has a bool for each differentiable argument. All others are arguments or results
            of the operator, which are saved. `backward` is made by `gradient_operator`, or is a
            function of operators that have gradients themselves.
        differentiable: the arguments that have gradients.
        vmap: a `Fold`, or the rule itself.
        mutates: the arguments that are written to.
        linear: whether it is linear in its first argument, and so has forward-mode derivatives.
            `backward` must then read all other arguments, in their order.
        opaque: whether the compiler calls the operator as a whole. Otherwise it traces `forward`
            for tensors on a GPU, if `backend` (where there is such a parameter) is "triton".
    """
    made = _return_type(name, forward, fake)
    structure = NestedParameter(made) if is_dataclass(made) or hasattr(made, "_fields") else None
    results = None
    if structure is not None:
        results = [n for n, _ in structure.arguments]
    elif made is Tensor:
        results = ["out"]
    call = Operator(name, Signature(forward), results)
    call.refuse_unknown("differentiable", differentiable)
    call.refuse_unknown("mutates", mutates)
    if isinstance(vmap, Fold):
        vmap.check(call)  # before anything is registered
    _check_backward(call, backward, differentiable, linear)
    call.define(mutates)
    if "keeping" not in call.signature.names:
        call.implementation = forward
        if structure is not None:
            call.implementation = lambda *values: structure.pack(forward(*values))
    implementation = _by_name(call.signature, forward, structure)
    torch.library.impl(library, name, "CompositeExplicitAutograd")(implementation)
    allocation = _by_name(call.signature, fake, structure)
    torch.library.register_fake(f"pna::{name}", allocation, lib=library)
    if not opaque:
        _show_to_compiler(call, implementation)
    _differentiate(call, backward, differentiable, linear)
    rule = vmap.rule(call) if isinstance(vmap, Fold) else vmap
    torch.library.register_vmap(f"pna::{name}", rule, lib=library)
    return call


def gradient_operator(
    name: str,
    write: Callable[..., None],
    *,
    tangent: Callable[..., Any] | str,
    like: Sequence[str] = (),
    allocate: Callable[..., tuple[Tensor, ...]] | None = None,
    opaque: bool = False,
) -> Operator:
    """Register the gradient of an operator as an operator.

    Args:
        name: its name in `torch.ops.pna`.
        write: writes to its parameter `gradients`, a tuple. Its other parameters define the schema.
            It is not called if the upstream gradients have no elements: all gradients are then 0.
        tangent: the derivative of the operator's results in the direction `tangents`, for second
            derivatives. It takes some of the parameters of `write`, and `tangents`: those of the
            operator's arguments, in the order of the gradients, or None. It uses operations with
            gradients only. If there are no second derivatives, it is the error message.
        like: for each gradient, the argument whose shape it has. A gradient has no elements if
            `needs` (where there is such a parameter) is False for it, or if the argument is None.
        allocate: makes the gradients instead of `like`; takes some of the parameters of `write`.
            Its return type says how many there are.
        opaque: as in `operator`, of `write`.

    If it is vmapped, one member runs after another.
    """
    if bool(like) == (allocate is not None):
        raise TypeError(f"got {name} with like={like!r} and allocate={allocate}, expected one")
    if "gradients" not in inspect.signature(write).parameters:
        raise TypeError(f"got {name} without a parameter `gradients`, to which it writes")
    call = Operator(name, Signature(write, without=("gradients",)), like)
    parameters = call.signature.parameters
    by_name = None
    if allocate is not None:
        by_name = _by_name(call.signature, allocate)
        count = len(get_args(get_type_hints(allocate).get("return")))
        call.results = [str(i) for i in range(count)]
    call.refuse_unknown("like", like)
    tangent_of = _tangent_by_name(call, tangent)
    call.define()
    indices = [call.signature.names.index(name) for name in like]
    needs = call.signature.names.index("needs") if "needs" in parameters else None
    above = [i for i, n in enumerate(call.signature.names) if n.startswith("grad")]

    def make(arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        if by_name is not None:
            return by_name(*arguments)
        given = [arguments[i] for i in indices]
        needed = arguments[needs] if needs is not None else [True] * len(given)
        return tuple(empty_gradient(t, n, given[0]) for t, n in zip(given, needed, strict=True))

    def written(arguments: Sequence[Any], write_to: Callable[[Any], None]) -> Any:
        gradients = make(arguments)
        if any(_has_elements(arguments[i]) for i in above):
            write_to(gradients)
        else:
            for gradient in gradients:
                gradient.zero_()
        return _alone(gradients)

    def run(*arguments: Any) -> Any:
        given = call.signature.unpack
        return written(arguments, lambda to: write(**given(arguments), gradients=to))

    def run_directly(*values: Any) -> Any:
        return written(call.signature.pack(*values), lambda to: write(*values, gradients=to))

    call.implementation = run_directly
    torch.library.impl(library, name, "CompositeExplicitAutograd")(run)
    torch.library.register_fake(f"pna::{name}", lambda *a: _alone(make(a)), lib=library)
    if not opaque:
        _show_to_compiler(call, run)
    _differentiate_gradient(call, tangent_of)
    torch.library.register_vmap(f"pna::{name}", one_by_one(call.overload), lib=library)
    return call


def _show_to_compiler(call: Operator, implementation: Callable[..., Any]) -> None:
    """Let the compiler trace the implementation where it consists of Triton kernels."""
    names = call.signature.names
    backend = names.index("backend") if "backend" in names else None
    traced = (Tensor, internals.FunctionalTensor)

    def rule(mode: Any, overload: Any, types: Any, arguments: Any, named: Any) -> Any:
        is_triton = _is_on_gpu(arguments) if backend is None else arguments[backend] == "triton"
        if not is_triton or interpreting() or internals.keeps_operators():
            return mode.__torch_dispatch__(overload, types, arguments, named)
        if any(kind not in traced and not issubclass(kind, internals.FakeTensor) for kind in types):
            return NotImplemented
        with mode, tracing():
            return implementation(*arguments)

    torch.library.register_torch_dispatch(
        f"pna::{call.name}", internals.FunctionalTensorMode, rule, lib=library
    )
    internals.kernels_of_operators[f"pna::{call.name}"] = [SOURCE]


def _is_on_gpu(arguments: Sequence[Any]) -> bool:
    return any(isinstance(each, Tensor) and each.is_cuda for each in _flattened(arguments)[0])


class _Source:
    """What the compiler's cache on disk knows of an operator, in the form of a Triton kernel.

    Its source is a hash of this package: what is traced depends on the code around kernels too.
    """

    __name__ = "pna"

    @staticmethod
    def fn() -> None:
        """The cache looks here for other kernels."""

    @property
    def src(self) -> str:
        return f"{_hash_of_package()}, without {sorted(fast_paths.off())}"


@cache
def _hash_of_package() -> str:
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


SOURCE = _Source()


def _return_type(name: str, forward: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    made, allocated = (get_type_hints(function).get("return") for function in (forward, fake))
    is_known = made in (Tensor, list[Tensor]) or is_dataclass(made) or hasattr(made, "_fields")
    if made != allocated or not is_known:
        raise TypeError(
            f"got {name} whose forward returns {made} and whose fake returns {allocated}, expected "
            "one type for both: a tensor, a list of tensors, or a named tuple or dataclass of them"
        )
    return made


def _check_backward(
    call: Operator,
    backward: Operator | Callable[..., Any],
    differentiable: Sequence[str],
    linear: bool,
) -> None:
    """Refuse a `backward` that reads what is not there, or gives too few gradients."""
    own = backward.signature if isinstance(backward, Operator) else Signature(backward)
    above, results = _upstream(own, call.results), call.results or ()
    if (
        above not in (["grad"], ["grads"], [f"grad_{r}" for r in results][: len(above)])
        or not above
    ):
        raise TypeError(
            f"got the upstream gradients {above} in the gradient of {call.name}, expected grad, "
            f"grads, or those of its first results in their order: {', '.join(results)}"
        )
    read = {*own.names} - {*above, "needs", *call.signature.names, *results}
    if read:
        raise TypeError(
            f"got {sorted(read)} in the gradient of {call.name}, expected its arguments and results"
        )
    if linear and [n for n in own.names if n not in above] != call.signature.names[1:]:
        raise TypeError(
            f"got the linear operator {call.name}, whose gradient does not read its arguments "
            f"{', '.join(call.signature.names[1:])}, in this order"
        )
    if isinstance(backward, Operator) and len(backward.results or ()) != len(differentiable):
        raise TypeError(
            f"got {len(backward.results or ())} gradients for the {len(differentiable)} "
            f"differentiable arguments of {call.name}"
        )


def _upstream(signature: Signature, results: Sequence[str] | None) -> list[str]:
    """The parameters of a gradient that are upstream gradients."""
    known = ("grad", "grads", *(f"grad_{r}" for r in results or ()))
    return [name for name in signature.names if name in known]


def _alone(results: tuple[Tensor, ...]) -> Any:
    return results[0] if len(results) == 1 else results


def _has_elements(grad: Any) -> bool:
    if isinstance(grad, list | tuple):
        return any(map(_has_elements, grad))
    return grad is not None and grad.numel() > 0


def _by_name(
    signature: Signature, function: Callable[..., Any], structure: NestedParameter | None = None
) -> Callable[..., Any]:
    """Wrap a function so that it takes all schema arguments and passes on those that it names. A
    result that is a structure is flattened."""
    own = Signature(function)
    pick = pick_items([signature.names.index(name) for name in own.names])

    def run(*arguments: Any) -> Any:
        picked = pick(arguments)
        results = function(*picked) if own.is_flat else function(**own.unpack(picked))
        if structure is None:
            return results
        return structure.pack(results)

    return run


class Function(internals.SingleLevelFunction):
    """An operator as autograd records it."""

    jvp = staticmethod(no_forward_mode)


def _below_autograd(overload: Any, keyset: Any, inputs: Sequence[Any]) -> Any:
    """Run the operator itself from inside the `forward` of its `Function`.

    Recording is off there, which is meant for one level of derivatives. Inside `torch.func`, the
    call still passes through the outer levels, which would treat its inputs as constants. So
    recording is turned on again.
    """
    with contextlib.ExitStack() as around:
        if internals.in_transform():
            around.enter_context(torch.enable_grad())
            around.enter_context(internals.set_forward_mode(True))
        around.enter_context(internals.below_autograd())
        return overload.redispatch(keyset & internals.keys_after_autograd, *inputs)


def _register_autograd(call: Operator, function: type[Function], keep: Any = None) -> None:
    """Register a function as the autograd kernel of the operator.

    Its `forward` takes a keyset, the lengths of lists, and then all inputs, with lists flattened:
    autograd does not look into lists. `torch.func` transforms pass one level at a time to an
    autograd kernel, which is all that is needed here; the `apply` of a plain
    `torch.autograd.Function` refuses to run there.
    """
    run: Callable[..., Any] = function.apply  # type: ignore[attr-defined]
    has_lists = any(
        kind.endswith("[]") and "Tensor" in kind for _, kind in call.signature.arguments
    )

    def apply(keyset: Any, *inputs: Any) -> Any:
        flat, lengths = _flattened(inputs) if has_lists else (inputs, None)
        if keep is not None:
            flat = keep(flat)
        if not internals.in_transform():
            results = run(keyset, lengths, *flat)
        else:
            with internals.single_level():
                results = run(keyset, lengths, *flat)
        return list(results) if call.results is None else results

    library.impl(call.name, apply, "Autograd", with_keyset=True)


def _flattened(inputs: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """Inputs with lists of tensors flattened, and the length of each; -1 for no list."""
    flat: list[Any] = []
    lengths = []
    for value in inputs:
        is_list = isinstance(value, list | tuple) and not any(isinstance(v, int) for v in value)
        lengths.append(len(value) if is_list else -1)
        flat += value if is_list else [value]
    return flat, lengths


def _grouped(flat: Sequence[Any], lengths: Sequence[int] | None) -> Sequence[Any]:
    """The inverse of `_flattened`."""
    if lengths is None:
        return flat
    left = iter(flat)
    return [next(left) if n < 0 else [next(left) for _ in range(n)] for n in lengths]


def _tangent_by_name(
    call: Operator, tangent: Callable[..., Any] | str
) -> Callable[[Sequence[Any], Sequence[Tensor | None]], Sequence[Tensor]]:
    """Wrap `tangent` so that it takes all schema arguments, and returns a list of tensors."""
    if isinstance(tangent, str):

        def refuse(arguments: Sequence[Any], tangents: Sequence[Tensor | None]) -> Any:
            raise RuntimeError(tangent)

        return refuse
    if "tangents" not in inspect.signature(tangent).parameters:
        raise TypeError(f"got a `tangent` of {call.name} without a parameter `tangents`")
    own = Signature(tangent, without=("tangents",))
    call.refuse_unknown("tangent", own.names)
    pick = pick_items([call.signature.names.index(name) for name in own.names])

    def run(arguments: Sequence[Any], tangents: Sequence[Tensor | None]) -> Sequence[Tensor]:
        found = tangent(**own.unpack(pick(arguments)), tangents=tangents)
        return [found] if isinstance(found, Tensor) else found

    return run


def _differentiate_gradient(call: Operator, tangent: Callable[..., Sequence[Tensor]]) -> None:
    """Register the autograd kernel of a gradient Jᵀg, where g are the upstream gradients.

    Its product with a direction u is ⟨u, Jᵀg⟩ = ⟨Ju, g⟩. So the derivative by g is the tangent Ju,
    and all others are gradients of Ju with g upstream.
    """
    above = [i for i, name in enumerate(call.signature.names) if name.startswith("grad")]

    class Gradient(Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, lengths: Any, *flat: Any) -> Any:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*[v if isinstance(v, Tensor) else None for v in flat])
            ctx.numbers = [None if isinstance(v, Tensor) else v for v in flat]
            ctx.lengths = lengths
            return _below_autograd(call.overload, keyset, _grouped(flat, lengths))

        @staticmethod
        def backward(ctx: Any, *directions: Tensor | None) -> Any:
            refuse_batch(directions, f"the second derivative of pna::{call.name}")
            tangents = [None if t is None or t.numel() == 0 else t for t in directions]

            def results(*flat: Any) -> Sequence[Tensor]:
                return tangent(_grouped(flat, ctx.lengths), tangents)

            saved = zip(ctx.saved_tensors, ctx.numbers, strict=True)
            flat = [number if tensor is None else tensor for tensor, number in saved]
            places = _grouped(range(len(flat)), ctx.lengths)
            places = [p for i in above for p in _as_list(places[i])]
            upstream, needs = [flat[p] for p in places], ctx.needs_input_grad[2:]
            with no_autocast(next(t for t in flat if isinstance(t, Tensor)).device):
                made, given = gradients_of(
                    results, flat, needs, upstream, create_graph=torch.is_grad_enabled()
                )
            for p, result in zip(places, made, strict=True):
                given[p] = result if needs[p] else None
            return None, None, *given

    _register_autograd(call, Gradient)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _differentiate(
    call: Operator,
    backward: Operator | Callable[..., Any],
    differentiable: Sequence[str],
    linear: bool,
) -> None:
    """Register the autograd kernel, which saves what `backward` reads and calls it."""
    names, results = call.signature.names, call.results
    own = backward.signature if isinstance(backward, Operator) else Signature(backward)
    above = _upstream(own, results)
    outputs = len(above)
    read = [name for name in own.names if name not in (*above, "needs")]
    kinds = dict(call.signature.arguments)
    tensors = [n for n in read if n in names and "Tensor" in kinds[n]]
    made = [n for n in read if n not in names]
    numbers = [n for n in read if n in names and "Tensor" not in kinds[n]]
    pick_tensors = pick_items([names.index(n) for n in tensors])
    pick_made = pick_items([(results or []).index(n) for n in made])
    pick_numbers = pick_items([names.index(n) for n in numbers])
    pool = [*above, "needs", *tensors, *made, *numbers]
    pick = pick_items([pool.index(n) for n in own.names])
    indices = [names.index(n) for n in differentiable]

    def gradients(arguments: Sequence[Any]) -> Any:
        if isinstance(backward, Operator):
            return backward.overload(*arguments)
        return backward(**own.unpack(arguments))

    class Differentiable(Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, lengths: Any, *flat: Any) -> Any:
            inputs = _grouped(flat, lengths)
            output = _below_autograd(call.overload, keyset, inputs)
            every = (output,) if isinstance(output, Tensor) else tuple(output)
            if results is not None and outputs < len(every):
                ctx.mark_non_differentiable(*every[outputs:])
            ctx.set_materialize_grads(False)
            saved, ctx.saved_lengths = pick_tensors(inputs), None
            if lengths is not None:
                saved, ctx.saved_lengths = _flattened(saved)
            ctx.save_for_backward(*saved, *pick_made(every))
            ctx.numbers, ctx.lengths = pick_numbers(inputs), lengths
            if linear:
                ctx.save_for_forward(*saved)
            return output if isinstance(output, Tensor) else every

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            flat_needs = ctx.needs_input_grad
            if torch.is_grad_enabled() and not internals.in_transform():
                flat_needs = internals.needed_now(ctx)  # what is not needed would be recorded
            needed = _grouped(flat_needs[2:], ctx.lengths)
            needs = [_is_needed(needed[i]) for i in indices]
            given: list[Any] = [None] * len(needed)
            if any(needs) and any(grad is not None for grad in grads):
                saved = ctx.saved_tensors
                if ctx.saved_lengths is not None:
                    saved = _grouped(saved, [*ctx.saved_lengths, *[-1] * len(made)])
                from_above = grads[:outputs] if results is not None else (list(grads),)
                found = gradients(pick((*from_above, needs, *saved, *ctx.numbers)))
                found = (found,) if isinstance(found, Tensor) else found
                for i, gradient in zip(indices, found, strict=True):
                    given[i] = gradient
            return None, None, *_only_needed(given, needed)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            if not linear:
                no_forward_mode(ctx)
            return call.overload(tangents[2], *ctx.saved_tensors, *ctx.numbers)

    keep = None
    if "keeping" in names:
        place = names.index("keeping")

        def keep(inputs: Sequence[Any]) -> Sequence[Any]:
            needed = torch.is_grad_enabled() and any(inputs[i].requires_grad for i in indices)
            return (*inputs[:place], inputs[place] or needed, *inputs[place + 1 :])

    _register_autograd(call, Differentiable, keep)


def _is_needed(needed: Any) -> bool:
    return any(needed) if isinstance(needed, list) else needed


def _only_needed(given: Sequence[Any], needed: Sequence[Any]) -> Iterator[Any]:
    """Gradients for autograd, with lists flattened; None if not needed."""
    for gradient, wanted in zip(given, needed, strict=True):
        if isinstance(wanted, list):
            parts = gradient if gradient is not None else [None] * len(wanted)
            yield from (g if w else None for g, w in zip(parts, wanted, strict=True))
        else:
            yield gradient if wanted else None
