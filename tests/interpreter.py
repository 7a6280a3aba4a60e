"""Triton's interpreter, with the same results in a tenth of the time.

At every launch and at every call inside a kernel, it patches `triton.language`. For every tensor,
it builds a table of types. For every sum of integers, it computes whether the sum overflows, and
reports it only if `debug` is set. Together these take two thirds of its time. Half of what remains
goes into types of blocks, shapes and constants, which it builds anew for every tensor, and into
broadcasts before an operation of NumPy, which broadcasts by itself.
"""

import builtins
from dataclasses import replace
from functools import cache, cached_property
from typing import Any


class _Kept:
    """Takes the place of the scope that undoes the patches after a launch."""

    def restore(self) -> None:
        pass


def make_faster() -> None:
    """Patch `triton.language` once in this process, cache types, and skip the unused check.

    The patches are never undone: a process that interprets kernels compiles none.
    """
    import triton
    from triton.runtime import interpreter

    patch, numpy_type = interpreter._patch_lang, interpreter._get_np_dtype
    done: dict[int, dict[str, Any]] = {}  # by id; kept, so that no id is used twice

    def patch_once(function: Any) -> _Kept:
        if id(function.__globals__) not in done:
            patch(function)
            done[id(function.__globals__)] = function.__globals__
        return _Kept()

    interpreter._patch_lang = patch_once
    of_scalar = cache(numpy_type)

    def numpy_type_once(kind: Any) -> Any:
        return numpy_type(kind) if kind.scalar.is_ptr() else of_scalar(kind.scalar)

    interpreter._get_np_dtype = numpy_type_once
    options = getattr(interpreter.interpreter_builder, "options", None)  # not in every version
    if hasattr(options, "sanitize_overflow") and not options.debug:
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    if triton.__version__.startswith("3.7."):  # other versions build types in other ways
        _call_directly()
        _build_types_once()
        _skip_what_changes_nothing()
        _expand_quickly()
        _leave_broadcasts_to_numpy()


def _call_directly() -> None:
    """Call builtins without the wrapper that looks for `_semantic`, and make handles fast."""
    from triton.language import core
    from triton.runtime import interpreter

    semantic, checking = interpreter.interpreter_semantic, core.builtin(lambda: None).__code__

    def patch(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        code = getattr(member, "__code__", None)
        inner = member.__wrapped__ if code is checking else member

        def call(*args: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return inner(*args, **named)

        scope.set_attr(obj, name, call)

    def init_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if type(dtype) is core.dtype and data.itemsize > (dtype.primitive_bitwidth + 7) // 8:
            self.__post_init__()  # which raises the error

    interpreter._patch_attr = patch
    interpreter.TensorHandle.__init__ = init_handle


def _build_types_once() -> None:
    """Types of tuples and constants are built when asked for; what a shape implies, once."""
    from triton.language import core

    unwrap, kind_of_values = core._unwrap_if_constexpr, core._type_for_tuple_values
    block_type, validate_shape = core.block_type, core.validate_block_shape
    wrappers = (list, builtins.tuple, core.tuple, core.constexpr)

    def unwrap_quickly(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        if kind is core.tuple and "type" not in value.__dict__:
            return core.tuple([unwrap_quickly(one) for one in value.values])
        return unwrap(value) if isinstance(value, wrappers) else value

    def init_constant(self: Any, value: Any) -> None:
        while isinstance(value, core.constexpr):
            value = value.value
        self.value = value

    def init_tuple(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    def equal_tuples(self: Any, other: Any) -> Any:
        if not isinstance(other, (list, builtins.tuple)):
            other = core._normalize_tuple(other).values
        return core.constexpr(self.values == [unwrap_quickly(one) for one in other])

    @cache
    def facts(shape: builtins.tuple[int, ...]) -> tuple[Any, int, Any, Any]:
        """The shape of a type and its size, and those of a tensor."""
        size = validate_shape(shape)
        constants = core.tuple([core.constexpr(length) for length in shape])
        return core.tuple(shape), size, constants, core.constexpr(size)

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        if not shape:
            raise TypeError("0d block_type is forbidden")
        self.element_ty = element_ty
        self.facts = facts(builtins.tuple(unwrap_quickly(length) for length in shape))
        self.shape, self.numel = self.facts[:2]

    def of_other_numbers(self: Any, scalar: Any) -> Any:
        known = scalar.__dict__.setdefault("blocks", {})  # by shape; gone when the scalar type is
        if id(self.facts) not in known:
            known[id(self.facts)] = block_type(scalar, self.shape)
        return known[id(self.facts)]

    nothing = core.tuple([]), core.constexpr(1)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.facts[2:4] if isinstance(type, block_type) else nothing

    for kind, init in (
        (core.constexpr, init_constant),
        (core.tuple, init_tuple),
        (block_type, init_block),
        (core.tensor, init_tensor),
    ):
        kind.__init__ = init
    core._unwrap_if_constexpr = unwrap_quickly
    core.tuple.__eq__ = equal_tuples
    block_type.with_element_ty = of_other_numbers
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    for kind, make in (
        (core.constexpr, lambda self: core.constexpr_type(self.value)),
        (core.tuple, lambda self: kind_of_values(self.values)),
    ):
        kind.type = cached_property(make)
        kind.type.__set_name__(kind, "type")


def _skip_what_changes_nothing() -> None:
    """Casts to the type that a tensor has, and broadcasts to its shape."""
    from triton.language.semantic import TritonSemantic

    cast, broadcast = TritonSemantic.cast, TritonSemantic.broadcast_impl_value

    def cast_if_needed(self: Any, input: Any, dst_ty: Any, *args: Any, **named: Any) -> Any:
        if input.type.scalar is dst_ty.scalar:
            return input
        return cast(self, input, dst_ty, *args, **named)

    def broadcast_if_needed(self: Any, lhs: Any, rhs: Any) -> Any:
        both = lhs.type.is_block() and rhs.type.is_block()
        if both and lhs.type.shape.values == rhs.type.shape.values:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    TritonSemantic.cast, TritonSemantic.broadcast_impl_value = cast_if_needed, broadcast_if_needed


def _expand_quickly() -> None:
    """New axes of blocks, whose types depend on their shape alone."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime.interpreter import TensorHandle

    expand_dims = TritonSemantic.expand_dims
    expanded: dict[Any, Any] = {}  # by the shape, which is kept, and the axis

    def expand_quickly(self: Any, input: Any, axis: int) -> Any:
        given = input.type
        if not isinstance(given, core.block_type) or axis < 0:
            return expand_dims(self, input, axis)
        key = id(given.facts), axis
        if key not in expanded:
            shape = list(given.shape.values)
            shape.insert(axis, 1)
            expanded[key] = core.block_type(core.int1, shape), shape
        kind, shape = expanded[key]
        handle = TensorHandle(input.handle.data.reshape(shape), input.handle.dtype.scalar)
        return core.tensor(handle, kind.with_element_ty(given.scalar))

    TritonSemantic.expand_dims = expand_quickly


def _leave_broadcasts_to_numpy() -> None:
    """Operands get the type of the result, and keep their data; constants are built once."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    check = TritonSemantic.binary_op_type_checking_impl
    tensor, block_type, pointer_type = core.tensor, core.block_type, core.pointer_type
    short = (core.float16, core.bfloat16)  # they are divided in float32
    constants: dict[Any, Any] = {}
    joint: dict[Any, Any] = {}  # by the shapes of two types, which are kept: that of the result

    def joined(a: Any, b: Any) -> Any:
        """A type of the shape to which two types of blocks are broadcast, or None."""
        key = id(a.facts), id(b.facts)
        if key not in joint:
            first, second = a.shape.values, b.shape.values
            length = max(len(first), len(second))
            pairs = [
                {1, *values}
                for values in zip(
                    [1] * (length - len(first)) + first,
                    [1] * (length - len(second)) + second,
                    strict=True,
                )
            ]
            fit = all(len(pair) <= 2 for pair in pairs)
            joint[key] = block_type(core.int1, [max(pair) for pair in pairs]) if fit else None
        return joint[key]

    def broadcast(lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        a_is_block, b_is_block = isinstance(a, block_type), isinstance(b, block_type)
        if a_is_block and b_is_block:
            if a.facts is b.facts:
                return lhs, rhs
            both = joined(a, b)
            if both is None:
                return None
            if both.facts is not a.facts:
                lhs = tensor(lhs.handle, both.with_element_ty(a.scalar))
            if both.facts is not b.facts:
                rhs = tensor(rhs.handle, both.with_element_ty(b.scalar))
        elif a_is_block:
            rhs = tensor(rhs.handle, a.with_element_ty(b))
        elif b_is_block:
            lhs = tensor(lhs.handle, b.with_element_ty(a))
        return lhs, rhs

    def check_quickly(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        slowly = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        if type(lhs) is tensor and type(rhs) is tensor:
            a, b = lhs.dtype, rhs.dtype
            same = a is b and type(a) is core.dtype and not (div_or_mod and a in short)
            pointers = allow_lhs_ptr and type(a) is pointer_type and b.is_int()
            return ((same or pointers) and broadcast(lhs, rhs)) or check(self, lhs, rhs, *slowly)
        given, number = (lhs, rhs) if type(lhs) is tensor else (rhs, lhs)
        plain = type(given) is tensor and type(given.dtype) is core.dtype
        if not plain or type(number) not in (int, float):
            return check(self, lhs, rhs, *slowly)
        key = id(given.dtype), type(number), number, arithmetic_check, div_or_mod
        if key in constants:
            pair = (given, constants[key]) if given is lhs else (constants[key], given)
            return broadcast(*pair)
        both = check(self, lhs, rhs, *slowly)
        unchanged = all(one.dtype is given.dtype for one in both)
        if unchanged and not given.dtype.is_int_unsigned():  # a shift would change those
            constants[key] = self.scalar_constant(number, given.dtype)
        return both

    TritonSemantic.binary_op_type_checking_impl = check_quickly
