"""Compile every kernel that a few calls would launch, for a GPU that need not be here.

The interpreter forgives what the compiler does not. Run as a program, in a process of its own:
Triton decides when it is imported whether it interprets. It notes what would be launched, chooses
for each kernel enough launches for every type and every constant of each parameter to occur (of
whole numbers the least and the largest), and compiles those. By default only the one with the
largest tiles is compiled to the end, and the others to Triton's first code (TTIR), which tells most
mistakes; `--every` compiles all to the end. Tells each kernel's shared memory,
the most numbers that it moves at a time, and whether its widths were "even" but not multiples of
sixteen, or "any". Raises if a kernel takes other parameters than those that
`pna.ops.triton.driver` would pass.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from multiprocessing import get_context
from typing import Any

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend
from triton.runtime.jit import JITFunction

import pna.baselines.attention
import pna.baselines.gates
import pna.baselines.neighbour_sum
import pna.ops.degree_linear
import pna.population.batch_norm
import pna.population.dropout
import pna.population.gru
import pna.population.linears
import pna.population.recurrence
import pna.population.set2set  # noqa: F401  (registers the operator, as do those above)
from pna.adjacency import Adjacency
from pna.baselines.graph import Graph
from pna.ops.precision import multiplied
from pna.ops.product import Product
from pna.ops.request import KINDS, Messages, Request
from pna.ops.small import SmallLayer, small_layer
from pna.ops.statistics import statistics
from pna.ops.triton.driver import parameter_formats
from pna.ops.triton.launcher import Kernel, PreparedKernel
from pna.ops.triton.sums import column_sums
from tests.covering import covering
from tests.ops.cases import pack, widened

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@dataclass
class Launch:
    """What the compiler is told of a launch."""

    kernel: JITFunction
    options: dict[str, Any]
    signature: dict[str, str] = field(default_factory=dict)
    constants: dict[tuple[int], Any] = field(default_factory=dict)
    known: dict[tuple[int], list[list[Any]]] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Each parameter's type, or its value if it is a constant, and each option. `EDGE` is two
        parameters in one number: the form of edge terms, and whether messages are products."""
        names = self.kernel.arg_names
        given = {names[place]: value for (place,), value in self.constants.items()} | self.options
        if "EDGE" in given:
            given |= {"EDGE": str(abs(given["EDGE"])), "product": given["EDGE"] < 0}
        return self.signature | given

    def size(self) -> int:
        """Grows with the tiles, and so with the shared memory."""
        whole = [value for value in self.constants.values() if isinstance(value, int) and value > 1]
        return prod(whole)


#: The launches noted, in their order.
LAUNCHES: list[Launch] = []


def note_instead(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """What `JITFunction.run` is replaced by: the launch noted, and not done."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    launch = Launch(kernel, values)
    for i, parameter in enumerate(kernel.params):
        value = values.pop(parameter.name)
        if parameter.is_constexpr:
            launch.signature[parameter.name] = "constexpr"
            launch.constants[(i,)] = value
        elif isinstance(value, torch.Tensor):
            launch.signature[parameter.name] = POINTERS[value.dtype]
            launch.known[(i,)] = [["tt.divisibility", 16]]
        else:
            launch.signature[parameter.name] = "i64" if abs(value) >= 2**31 else "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                launch.known[(i,)] = [["tt.divisibility", 16]]
    LAUNCHES.append(launch)


def noted(*calls: Callable[[], None]) -> list[Launch]:
    """What the calls launch."""
    LAUNCHES.clear()
    for call in calls:
        call()
    return list(LAUNCHES)


def chosen(launches: list[Launch], given: list[Launch]) -> list[Launch]:
    """Enough of the launches of one kernel for every value to occur, here or in one of the given.

    Of whole numbers, such as the sizes of tiles, the least and the largest must occur. Launches
    with large tiles come first, because they need the most shared memory.
    """
    launches = sorted(launches, key=Launch.size, reverse=True)
    every = [launch.values() for launch in (*launches, *given)]
    for name in list(every[0]):
        whole = sorted({values[name] for values in every if type(values.get(name)) is int})
        for values in every:
            if values.get(name) in whole[1:-1]:
                del values[name]
    needed = covering(every[: len(launches)], 1, every[len(launches) :])
    return [launch for launch, taken in zip(launches, needed, strict=True) if taken]


def compile_one(launch: Launch, widths: str) -> None:
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.known)
    compiled = compile(source, target=TARGET, options=launch.options)
    check_parameters(compiled)
    vectors = re.findall(r"(?:ld|st)\.global\S*\.v(\d)", compiled.asm["ptx"])
    most = max(map(int, vectors), default=1)
    line = f"{launch.kernel.fn.__name__} {compiled.metadata.shared} {most} {widths}\n"
    os.write(sys.stdout.fileno(), line.encode())  # whole, with other processes writing theirs


def check_meaning(launch: Launch) -> None:
    """Raise where a kernel has no meaning for these types and constants: the first stage alone."""
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.known)
    back = make_backend(TARGET)
    options, context = back.parse_options(launch.options), ir.context()
    ir.load_dialects(context)
    back.load_dialects(context)
    functions = back.get_codegen_implementation(options), back.get_module_map()
    source.make_ir(TARGET, options, *functions, context)


def check_parameters(compiled: Any) -> None:
    """Raise unless the kernel's parameters have the sizes of those that `Launcher` passes."""
    given = parameter_formats(
        [kind for kind in compiled.src.signature.values() if kind != "constexpr"]
    )
    parameters = compiled.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0]
    expected = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", parameters)]
    sizes = [struct.calcsize(f"={part.removesuffix('4x')}") for part in given]
    if sizes != expected:
        raise ValueError(f"{compiled.name} takes {expected} bytes, but would get {sizes}")


#: What to compile, with its widths, or without those what to check: forked processes find it here.
WORK: list[tuple[Launch, str | None]] = []


def main() -> None:
    """Compile what is chosen, as many at a time as there are processors."""
    every = "--every" in sys.argv or not triton.__version__.startswith("3.7.")
    JITFunction.run = note_instead
    Kernel.__getitem__ = lambda kernel, grid: kernel.jit[grid]
    PreparedKernel.__call__ = lambda prepared, grid, *arguments: prepared._kernel[grid](
        *arguments, **prepared._constants
    )
    even = {launch.kernel: launch for launch in noted(launch_even)}
    WORK.extend((launch, "even") for launch in even.values())
    WORK.extend((launch, "any") for launch in noted(failed_before))
    launches: dict[JITFunction, list[Launch]] = {}
    for launch in noted(*families()):
        launches.setdefault(launch.kernel, []).append(launch)
    for kernel, found in launches.items():
        given = [launch for launch, _ in WORK if launch.kernel is kernel]
        taken = chosen(found, given)
        whole = len(taken) if every else 1
        WORK.extend((launch, "any") for launch in taken[:whole])
        WORK.extend((launch, None) for launch in taken[whole:])
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        list(pool.map(compile_number, range(len(WORK))))


def compile_number(number: int) -> None:
    launch, widths = WORK[number]
    if widths is None:
        check_meaning(launch)
    else:
        compile_one(launch, widths)


def families() -> list[Callable[[], None]]:
    """Calls that launch every kernel."""
    found: list[Callable[[], None]] = [launch_set2set, launch_recurrence, launch_training]
    found += [launch_tf32, launch_build]
    for dtype in (torch.float32, torch.bfloat16):  # in float16 as in bfloat16
        heavy = (launch_degree_linear, launch_gru, launch_linears, launch_batch_norm)
        found += [partial(family, dtype) for family in (*heavy, launch_dropout, launch_small)]
    cases = (  # type, features, wide indices, the edge term, and how it is combined with x
        (torch.float32, 128, False, "none", "add"),
        (torch.float64, 33, True, "dense", "add"),
        (torch.bfloat16, 16, False, "table", "add"),
        (torch.float16, 7, True, "coefficients", "add"),
        (torch.float32, 12, False, "weights", "add"),
        (torch.float32, 64, False, "dense", "mul"),
        (torch.float32, 1024, False, "table", "mul"),
        (torch.float32, 33, False, "coefficients", "mul"),
        (torch.float32, 128, False, "weights", "mul"),
        (torch.float64, 12, True, "heads", "mul"),
    )
    found += [partial(launch_statistics, *case) for case in cases]
    heads = (  # type, heads, features of each, edge features, and self-loops
        (torch.float32, 40, 4, False, False),
        (torch.float64, 1, 1, True, True),
        (torch.bfloat16, 3, 33, True, True),
    )
    found += [partial(launch_attention, *case) for case in heads]
    return [*found, launch_gates, launch_neighbour_sum, launch_column_sums]


def failed_before() -> None:
    """Many rows at a time, with which Triton 3.6 has failed."""
    launch_attention(torch.float64, 2, 4, True, False)
    x, ones = torch.randn(9, 6, dtype=torch.float64), torch.ones(9, dtype=torch.float64)
    graph = Adjacency.from_edge_index(torch.arange(9).expand(2, 9), 9)
    torch.ops.pna.neighbour_sum(x, ones, ones, *pack(graph.incoming, graph.outgoing))


def launch_tf32() -> None:
    """Products of float32 where torch is told that TF32 will do."""
    with multiplied(exactly=False):
        launch_linears(torch.float32)
        launch_degree_linear(torch.float32)


def launch_even() -> None:
    """Four models of 75 features side by side; products of 70, 22 and 134 columns in each tower."""
    ring = torch.stack([torch.arange(9), torch.arange(9).roll(1)])
    graph, given = Adjacency.from_edge_index(ring, 9), torch.randn(9, 300, requires_grad=True)
    basis, at = torch.randn(2, 300, requires_grad=True), torch.randn(9, 2)
    request = Request(("mean", "std", "max"), 1e-5, False)
    for result in (
        statistics(Messages(given, basis, at, graph), request, "triton"),
        torch.ops.pna.gated_sum(given, given, given, None, *pack(Graph.of(graph)), True)[0],
        torch.ops.pna.neighbour_sum(given, None, None, *pack(graph.incoming, graph.outgoing)),
    ):
        result.backward(torch.randn_like(result))
    x, state = torch.randn(9, 4, 75, requires_grad=True), [torch.ones(4, 75) for _ in range(4)]
    y = torch.ops.pna.batch_norm(x, torch.ones(9).bool(), *state, 0.1, 1e-5, False, torch.ones(9))[
        0
    ]
    y.backward(torch.randn_like(y))
    x, weight = torch.randn(9, 4, 70, requires_grad=True), torch.randn(4, 70, 70)
    (y,) = torch.ops.pna.linears(x, [weight.requires_grad_()], [None])
    y.backward(torch.randn_like(y))
    z, weight = torch.randn(9, 1, 4, 22, requires_grad=True), torch.randn(1, 4, 22, 22)
    indices, factors = (graph.indptr, graph.by_degree), torch.ones(9, 1)
    y = torch.ops.pna.degree_linear(
        z, weight.requires_grad_(), factors, None, [0], *indices, None, "triton"
    )
    y.backward(torch.randn_like(y))
    ring = torch.stack([torch.arange(3400), torch.arange(3400).roll(1)])
    graph = Adjacency.from_edge_index(ring, 3400)  # nodes enough for the tallest tiles
    z, weight = torch.randn(3400, 2, 10, 134, requires_grad=True), torch.randn(1, 10, 268, 134)
    indices, factors = (graph.indptr, graph.by_degree), torch.ones(3400, 1)
    y = torch.ops.pna.degree_linear(
        z, weight.requires_grad_(), factors, None, [0], *indices, None, "triton"
    )
    y.backward(torch.randn_like(y))


def graph_of(wide: bool) -> Adjacency:
    spokes = torch.stack([torch.arange(600) % 20, torch.zeros(600, dtype=torch.int64)])
    edge_index = torch.cat([spokes, spokes.flip(0)], dim=1)  # rows long enough to be cut
    adjacency = Adjacency.from_edge_index(edge_index, 20)
    return widened(adjacency) if wide else adjacency


def launch_statistics(dtype: torch.dtype, width: int, wide: bool, form: str, combine: str) -> None:
    graph = graph_of(wide)
    x = torch.randn(20, width, dtype=dtype, requires_grad=True)
    edges = graph.num_edges
    terms: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {
        "none": (None, None),
        "dense": (torch.randn(edges, width, dtype=dtype), None),
        "table": (torch.randn(3, width, dtype=dtype), torch.arange(edges) % 3),
        "coefficients": (torch.randn(2, width, dtype=dtype), torch.randn(edges, 2, dtype=dtype)),
        "weights": (torch.randn(edges, 1, dtype=dtype), None),
        "heads": (torch.randn(edges, 3, dtype=dtype), None),
    }
    edge, at = terms[form]
    for part in (edge, at):
        if part is not None and part.is_floating_point():
            part.requires_grad_()
    messages = Messages(x, edge, at, graph, combine)
    out = statistics(messages, Request(KINDS, 1e-5, False), "triton")
    out.sum().backward()


def launch_attention(
    dtype: torch.dtype, heads: int, width: int, edge_features: bool, self_loops: bool
) -> None:
    """With self-loops, indices are wide as well."""
    adjacency, shapes = graph_of(self_loops), ((20, heads, width), (20, heads, 2))
    given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    edge = torch.randn(1200, heads, dtype=dtype) if edge_features else None
    own = torch.randn(20, heads, dtype=dtype) if self_loops else None
    graph = pack(Graph.of(adjacency))
    torch.ops.pna.attention(*given, edge, own, *graph, 0.2)[0].sum().backward()


def launch_gates() -> None:
    """Sums of numbers with four at a time and others; also in wide types and indices."""
    cases = ((torch.float32, 280, False), (torch.float64, 33, True), (torch.bfloat16, 16, True))
    for dtype, width, wide in cases:
        given = [torch.randn(20, width, dtype=dtype, requires_grad=True) for _ in range(3)]
        edge = torch.randn(1200, width, dtype=dtype) if wide else None
        graph = pack(Graph.of(graph_of(wide)))
        out, state, _ = torch.ops.pna.gated_sum(*given, edge, *graph, wide)
        (out.sum() + state.sum()).backward()


def launch_neighbour_sum() -> None:
    for dtype, width, wide in ((torch.float32, 160, False), (torch.bfloat16, 7, True)):
        x = torch.randn(20, width, dtype=dtype, requires_grad=True)
        terms = (torch.ones(20), torch.ones(20)) if wide else (None, None)
        graph = graph_of(wide)
        torch.ops.pna.neighbour_sum(
            x, *terms, *pack(graph.incoming, graph.outgoing)
        ).sum().backward()


def launch_column_sums() -> None:
    """Of two matrices of one type, also of one column and not contiguous."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for columns in (33, 1):
            wide = torch.randn(1000, 2 * columns, dtype=dtype)
            column_sums(wide[:, ::2], torch.randn(1000, 7, dtype=dtype))


def launch_degree_linear(dtype: torch.dtype) -> None:
    """A layer of one tower and five scalers, one of four towers and three, and one of which the
    outputs of all scalers stand side by side."""
    wide = dtype == torch.float32
    adjacency, x = graph_of(wide), torch.randn(20, 128 if wide else 16, dtype=dtype)
    for towers, scalers, outputs in ((1, 5, 24), (4, 3, 24), (5, 3, 15)):
        z = x[:, None, None].expand(-1, 2, towers, -1).detach().requires_grad_()
        weight = torch.randn(scalers, towers, 2 * x.shape[1], outputs, dtype=x.dtype)
        weight.requires_grad_()
        base = torch.randn(x.shape[0], towers, outputs, dtype=x.dtype)
        factors, shift = torch.randn(x.shape[0], scalers), z.detach()[:, 0].requires_grad_()
        graph = (adjacency.indptr, adjacency.by_degree)
        product = Product(z, weight, factors, shift, [towers % 3, 2], *graph)
        out = torch.ops.pna.degree_linear(*pack(product), base, "triton")
        out.sum().backward()


def launch_small(dtype: torch.dtype) -> None:
    """The layer of a small graph: wide without edges, and of two towers with a basis of edges."""
    ring = torch.stack([torch.arange(9), torch.arange(9).roll(1)])
    graph, factors = Adjacency.from_edge_index(ring, 9), torch.ones(9, 2, dtype=dtype)
    kinds = ("mean", "sum", "var", "std", "max", "min")
    cases = ((1, 64, kinds[3:], None), (2, 3, kinds, torch.randn(2, 6, dtype=dtype)))
    for towers, width, chosen_kinds, edge in cases:
        inputs = width * (1 + 2 * len(chosen_kinds))
        layer = SmallLayer(
            torch.randn(9, width, dtype=dtype, requires_grad=True),
            *(torch.randn(s, dtype=dtype) for s in ((towers, width, 2 * width), (towers, width))),
            *(torch.randn(s, dtype=dtype) for s in ((towers, 4, inputs), (towers, 4))),
            *(torch.randn(s, dtype=dtype) for s in ((4 * towers, 4 * towers), 4 * towers)),
            edge, None if edge is None else torch.randn(9, 2, dtype=dtype), factors, graph,
            Request(chosen_kinds, 1e-5, False), [1] * len(chosen_kinds),
        )  # fmt: skip
        small_layer(layer)[0].sum().backward()


def launch_build() -> None:
    """An Adjacency of few edges, with and without long rows, and one of many edges."""
    from pna.ops.triton import adjacency

    for dtype, long in ((torch.int64, (1, 2)), (torch.int32, (0, 0)), (torch.uint8, (0, 0))):
        for count in (300, adjacency.MOST_RANKED + 1):
            sizes = adjacency.Sizes(count, 9, 9, 255, 12)
            adjacency.build(torch.zeros(2, count, dtype=dtype), sizes, long)


def launch_training() -> None:
    """What there is around the layers: a batch, factors, sums by kind, and Adam."""
    from pna.ops.triton import assemble, factors
    from pna.population.triton import adam

    offsets, short = torch.arange(3), torch.zeros(4, dtype=torch.uint8)
    indptr = torch.arange(5)
    for loose in (False, True):
        assemble.lay_out(offsets, 8, 9, (offsets, offsets), (indptr, indptr), (short,) * 3, loose)
    indptr = indptr.int()
    for several in (False, True):
        assemble.by_length(indptr, indptr, assemble.windows(4, [], indptr.device), several)
    ring = torch.stack([torch.arange(9), torch.arange(9).roll(1)])
    request, graph = Request(KINDS, 1e-5, False), Adjacency.from_edge_index(ring, 9)
    factors.factors(graph, torch.ones(1), torch.ones(1), [0, 1, 2, 3, 4])
    table, kinds = torch.randn(4, 75, requires_grad=True), torch.arange(9) % 4
    for also_x in (False, True):  # sums by kind alone, and on the way to the gradient of x
        x = torch.randn(9, 75, requires_grad=also_x)
        for combine in ("add", "mul"):
            messages = Messages(x, table, kinds, graph, combine)
            statistics(messages, request, "triton").sum().backward()
    statistics(Messages(x, table, torch.randn(9, 4), graph), request, "triton").sum().backward()
    row = torch.zeros(2)
    for decoupled in (False, True):
        *rows, loss = (torch.zeros(2, 5) for _ in range(5))
        stand = row.bool(), row.bool()
        moments = adam.Moments(*rows[2:], row)
        settings = adam.AdamSettings(row, row, (0.9, 0.999), 1e-8, decoupled)
        adam.step(*rows[:2], moments, settings, loss, *stand)


def launch_linears(dtype: torch.dtype) -> None:
    """The narrow maps of a population, in one kernel each way, the widest of these, some of which a
    block and a rest are taken, and wide ones."""
    widths = (
        (16, (16, 16, 16)),
        (16, (48,)),
        (5, (1, 3, 16, 7)),
        (128, (128, 100)),
        (75, (70,)),
        (190, (190,)),
    )
    for inputs, outputs in widths:
        x = torch.randn(1000, 2, inputs, dtype=dtype, requires_grad=True)
        weights = [torch.randn(2, n, inputs, dtype=dtype).requires_grad_() for n in outputs]
        biases = [torch.randn(2, n, dtype=dtype) if n > 1 else None for n in outputs]
        results = torch.ops.pna.linears(x, weights, biases)
        torch.cat(results, 2).sum().backward()


def launch_gru(dtype: torch.dtype) -> None:
    for inputs, hidden in ((16, 16), (20, 32)):
        x = torch.randn(1000, 2, inputs, dtype=dtype, requires_grad=True)
        h = torch.randn(1000, 2, hidden, dtype=dtype, requires_grad=True)
        shapes = ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))
        parameters = [torch.randn(2, *shape, dtype=dtype).requires_grad_() for shape in shapes]
        for until in (None, torch.arange(1000)):
            torch.ops.pna.gru_cell(x, h, *parameters, until, 3, False).sum().backward()


def launch_recurrence() -> None:
    """Steps that begin sums and go on with them, for all nodes and for some of them."""
    adjacency, state = graph_of(False), torch.randn(20, 2, 16, requires_grad=True)
    shapes = ((16, 16), (16,), (16, 16), (16, 16), (16,)), ((48, 16), (48, 16), (48,), (48,))
    layer, unit = ([torch.randn(2, *shape) for shape in part] for part in shapes)
    parameters = (*layer, torch.randn(3, 2, 64, 16), *unit, torch.randn(20, 3))
    request = Request(("mean", "std", "max", "min"), 1e-5, False)
    graph = pack(adjacency, request)
    for until, swapped, front in ((None, True, []), (torch.arange(20), False, [20, 16])):
        how = (until, [1, 0, 1, 1], 0.01, swapped, 2, front, front, False)
        torch.ops.pna.recurrence(state, *parameters, *how, *graph)[0].sum().backward()


def launch_batch_norm(dtype: torch.dtype) -> None:
    """A block of columns, and few; with factors and a ReLU, and without."""
    for width, relu in ((20, True), (3, False)):
        x = torch.randn(1000, 2, width, dtype=dtype, requires_grad=True)
        weight, bias, mean, var = (torch.ones(2, width) for _ in range(4))
        state = weight.requires_grad_(), bias.requires_grad_(), mean, var
        real = torch.arange(1000) < 900
        factors = torch.ones(1000) if relu else None
        torch.ops.pna.batch_norm(x, real, *state, 0.1, 1e-5, relu, factors)[0].sum().backward()


def launch_dropout(dtype: torch.dtype) -> None:
    """Of nodes of graphs, and of rows that are all there is."""
    seed, number = torch.zeros(2, dtype=torch.int64), torch.arange(1000)
    for told in ((number, number), (None, None)):
        x = torch.randn(1000, 2, 75, dtype=dtype, requires_grad=True)
        torch.ops.pna.dropout(x, 0.3, seed, seed, 3, *told)[0].sum().backward()


def launch_set2set() -> None:
    """The width of a population, the widest there is, an odd one and one."""
    for width, index in ((16, torch.int64), (64, torch.int32), (5, torch.int32), (1, torch.int64)):
        x = torch.randn(40, 2, width, requires_grad=True)
        weight = torch.randn(2, 4 * width, 2 * width, requires_grad=True)
        bias = torch.randn(2, 4 * width, requires_grad=True)
        graph = torch.tensor([0, 3, 40], dtype=index), torch.tensor([3, 4], dtype=index)
        torch.ops.pna.set2set(x, *graph, weight, bias, 4, "triton")[0].sum().backward()


if __name__ == "__main__":
    main()
