"""Trace calls as Inductor does for a GPU that need not be here, and check what it would compile.

Run as a program, in a process of its own, with the names of cases: Triton decides when it is
imported whether it interprets, and the tests' own process does. Tensors stay on the CPU, where the
operators are told to use Triton. Nothing runs: the joint graph of forward and backward pass is all
that is made. Prints a line for each case: its name, the number of nodes, and the kernels.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor.codegen.wrapper import (
    user_defined_triton_kernel_transitive_closure_source_code as source_of,
)
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import pna.baselines.attention
import pna.baselines.gates
import pna.baselines.neighbour_sum
import pna.population.batch_norm
import pna.population.dropout
import pna.population.gru
import pna.population.linears
import pna.population.set2set  # noqa: F401  (registers the operator, as do those above)
from pna import fast_paths
from pna.adjacency import Adjacency
from pna.baselines.graph import Graph
from pna.nn import PNAConv
from pna.ops import backend, edges, operators
from pna.ops.request import KINDS, Messages, Request
from pna.ops.statistics import statistics
from tests.ops.cases import pack

NODES, EDGES = 3001, 6503

#: Sizes of other batches, for which the same code must do.
OTHERS = ((1009, 2003), (40, 50), (9973, 16001))


class Device:
    """A GPU for which Triton parses kernels."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


def remembered(analyse: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's analysis of a kernel, which depends on the types and constants that it is given. It
    parses the kernel, which takes half of the time, and many graphs have the same kernels."""
    known: dict[Any, Any] = {}

    def kind(value: Any) -> Any:
        sizes = (torch.SymInt, torch.SymFloat, torch.SymBool)
        return (
            value.dtype
            if isinstance(value, Tensor)
            else None
            if isinstance(value, sizes)
            else value
        )

    def look_up(kernel: Any, given: dict[str, Any], *rest: Any) -> Any:
        key = (kernel.fn, *((name, type(value), kind(value)) for name, value in given.items()))
        if key not in known:
            known[key] = analyse(kernel, given, *rest)
        return known[key]

    return look_up


class TracedError(Exception):
    """Ends a compilation."""


class Trace:
    """The joint graph of a function, and the guards on sizes."""

    def __init__(self, function: Callable[..., Any], *inputs: Any) -> None:
        torch._dynamo.reset()
        try:
            torch.compile(function, backend=self._take, dynamic=True, fullgraph=True)(*inputs)
        except Exception as problem:
            if "TracedError" not in repr(problem):
                raise

    def _take(self, module: Any, inputs: Any) -> Any:
        def stop(graph: Any, *_: Any, **__: Any) -> Any:
            self.graph = graph.graph
            raise TracedError

        context = TracingContext.get()
        assert context.fake_mode is not None
        try:
            aot_module_simplified(
                module, inputs, fw_compiler=stop, bw_compiler=stop, partition_fn=stop
            )
        finally:
            self.sizes = context.fake_mode.shape_env

    def launches(self) -> Iterator[tuple[JITFunction, Any]]:
        for node in self.graph.nodes:
            if "triton_kernel_wrapper" in str(node.target):
                kernel = triton_kernel_wrap.kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                yield kernel if isinstance(kernel, JITFunction) else kernel.fn, node

    def check(self, mutated: int = 0) -> None:
        """Inductor launches every kernel; only as many inputs as this are written to; no guard
        fails for batches of other sizes."""
        left = [str(n.target) for n in self.graph.nodes if str(n.target).startswith("pna.")]
        assert not left, left
        written = set()
        for kernel, node in self.launches():
            assert_complete(kernel)
            for name in node.kwargs["tensors_to_clone"]:
                given = node.kwargs["kwargs"][name]
                while given.op != "placeholder" and _is_view(given):
                    given = given.args[0]
                if given.op == "placeholder":
                    written.add((kernel.__name__, name))
        assert len(written) == mutated, written
        for nodes, edges_of in OTHERS:
            given = {NODES: nodes, NODES + 1: nodes + 1, EDGES: edges_of}
            for guard in self.sizes.guards:
                values = {s: _value(self.sizes, s) for s in guard.expr.free_symbols}
                holds = guard.expr.subs({s: given.get(v, v) for s, v in values.items()})
                assert holds == True, (nodes, guard.expr)  # noqa: E712  (of sympy)


def _is_view(node: Any) -> bool:
    views = ("view", "slice", "select", "unsqueeze", "squeeze", "permute", "t.", "detach")
    return str(node.target).startswith(tuple(f"aten.{view}" for view in views))


def _value(sizes: Any, symbol: Any) -> Any:
    known = getattr(sizes, "backed_var_to_val", None) or sizes.var_to_val
    return int(known[symbol]) if symbol in known and known[symbol].is_integer else known[symbol]


def assert_complete(kernel: JITFunction) -> None:
    """The source that Inductor would write has every name that it uses, with one meaning."""
    meaning: dict[str, Any] = {}
    found, source = [kernel], source_of(kernel)
    while found:
        function = found.pop().fn
        names = {i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"}
        for name in names - {"tl", "triton"} - set(dir(builtins)):
            value = function.__globals__[name]
            assert meaning.setdefault(name, value) is value, f"two functions {name}"
            assert f"def {name}(" in source or f"{name} = " in source, f"{name} is left out"
            if isinstance(value, JITFunction):
                found.append(value)


def graph_of(hub: bool = False) -> Adjacency:
    """With a hub, half of all edges lead to three nodes, and the other half come from them."""
    edge_index = torch.randint(NODES, (2, EDGES))
    if hub:
        edge_index[0, ::2] %= 3
        edge_index[1, 1::2] %= 3
    return Adjacency.from_edge_index(edge_index, NODES)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def layer() -> nn.Module:
    degrees, scalers = torch.tensor([1, 9, 5]), ["identity", "amplification", "attenuation"]
    return PNAConv(64, 64, ["mean", "min", "max", "std"], scalers, degrees)


def trace_layer() -> Trace:
    return Trace(layer(), numbers(NODES, 64), torch.randint(NODES, (2, EDGES)))


def trace_layer_of_adjacency() -> Trace:
    return Trace(layer(), numbers(NODES, 64), graph_of())


def trace_narrow() -> Trace:
    module = PNAConv(16, 16, ["mean", "max"], ["identity", "amplification"], torch.tensor([1, 9]))
    return Trace(module, numbers(NODES, 16), graph_of())


def trace_one_scaler() -> Trace:
    module = PNAConv(80, 24, ["mean", "std"], ["identity"], None)
    return Trace(module, numbers(NODES, 80), graph_of())


def trace_statistics(
    form: str, dtype: torch.dtype = torch.float32, hub: bool = False, combine: str = "add"
) -> Trace:
    terms = {
        "none": (None, None),
        "dense": (numbers(EDGES, 20, dtype=dtype), None),
        "few types": (numbers(3, 20, dtype=dtype), torch.randint(3, (EDGES,))),
        "some types": (numbers(9, 20, dtype=dtype), torch.randint(9, (EDGES,))),
        "many types": (numbers(40, 20, dtype=dtype), torch.randint(40, (EDGES,))),
        "basis": (numbers(3, 20, dtype=dtype), torch.randn(EDGES, 3, dtype=dtype)),
        "coefficients": (numbers(3, 20, dtype=dtype), numbers(EDGES, 3, dtype=dtype)),
        "weights": (numbers(EDGES, 1, dtype=dtype), None),
    }
    request = Request(KINDS, 1e-5, False)

    def run(x: Tensor, edge: Tensor | None, at: Tensor | None, graph: Adjacency) -> Tensor:
        return statistics(Messages(x, edge, at, graph, combine), request, "triton")

    return Trace(run, numbers(NODES, 20, dtype=dtype), *terms[form], graph_of(hub=hub))


def trace_edges() -> Trace:
    def run(x: Tensor, graph: Adjacency) -> Tensor:
        return edges.sum_to_receivers(edges.from_senders(x, graph).exp(), graph)

    return Trace(run, numbers(NODES, 20), graph_of())


def trace_attention() -> Trace:
    def run(*given: Tensor) -> Tensor:
        return torch.ops.pna.attention(*given, 0.2)[0]

    given = (numbers(NODES, 2, 8), numbers(NODES, 2, 2), numbers(EDGES, 2), numbers(NODES, 2))
    return Trace(run, *given, *pack(Graph.of(graph_of(hub=True))))


def trace_gates() -> Trace:
    def run(*given: Tensor) -> Tensor:
        return torch.ops.pna.gated_sum(*given, True)[0]

    given = (*(numbers(NODES, 8) for _ in range(3)), numbers(EDGES, 8))
    return Trace(run, *given, *pack(Graph.of(graph_of())))


def trace_neighbour_sum() -> Trace:
    graph, factor = graph_of(hub=True), torch.ones(NODES)
    given = pack(graph.incoming, graph.outgoing)
    return Trace(torch.ops.pna.neighbour_sum, numbers(NODES, 8), factor, factor, *given)


def trace_linears() -> Trace:
    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.cat(torch.ops.pna.linears(x, weights, [None] * len(weights)), 2)

    return Trace(run, numbers(NODES, 1, 16), numbers(1, 16, 16), numbers(1, 8, 16))


def trace_gru() -> Trace:
    def run(*given: Tensor) -> Tensor:
        return torch.ops.pna.gru_cell(*given, None, 3, False)

    shapes = ((48, 16), (48, 16), (48,), (48,))
    parameters = [numbers(1, *shape) for shape in shapes]
    return Trace(run, numbers(NODES, 1, 16), numbers(NODES, 1, 16), *parameters)


def trace_batch_norm() -> Trace:
    def run(x: Tensor, real: Tensor, *state: Tensor) -> Tensor:
        return torch.ops.pna.batch_norm(x, real, *state, 0.1, 1e-5, True, None)[0]

    state = (numbers(1, 16), numbers(1, 16), torch.zeros(1, 16), torch.ones(1, 16))
    return Trace(run, numbers(NODES, 1, 16), torch.ones(NODES).bool(), *state)


def trace_dropout() -> Trace:
    def run(x: Tensor, seed: Tensor, passes: Tensor) -> Tensor:
        return torch.ops.pna.dropout(x, 0.3, seed, passes, 3, None, None)[0]

    zero = torch.zeros(1, dtype=torch.int64)
    return Trace(run, numbers(NODES, 1, 16), zero, zero.clone())


def trace_set2set() -> Trace:
    def run(x: Tensor, indptr: Tensor, steps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.pna.set2set(x, indptr, steps, weight, bias, 4, "triton")[0]

    graphs = torch.tensor([0, 3, NODES]), torch.tensor([3, 4])
    return Trace(run, numbers(NODES, 1, 16), *graphs, numbers(1, 64, 32), numbers(1, 64))


def large(trace: Callable[[], Trace]) -> Callable[[], Trace]:
    """The same as if the graph were large."""

    def run() -> Trace:
        with fast_paths.without("small"):
            return trace()

    return run


#: Each case, and how many inputs it writes to.
CASES: dict[str, tuple[Callable[[], Trace], int]] = {
    "small layer of an Adjacency": (trace_layer_of_adjacency, 0),
    "layer": (large(trace_layer), 0),
    "narrow": (large(trace_narrow), 0),
    "one scaler": (large(trace_one_scaler), 0),
    "statistics": (lambda: trace_statistics("none", torch.bfloat16, True), 0),
    "dense edge features": (lambda: trace_statistics("dense"), 0),
    "few edge types": (lambda: trace_statistics("few types"), 0),
    "some edge types": (lambda: trace_statistics("some types"), 0),
    "basis of edge features": (lambda: trace_statistics("basis"), 0),
    "coefficients": (lambda: trace_statistics("coefficients", torch.float64), 0),
    "edge weights": (lambda: trace_statistics("weights", combine="mul"), 0),
    "products with edge types": (lambda: trace_statistics("many types", combine="mul"), 0),
    "edges": (trace_edges, 0),
    "attention": (trace_attention, 0),
    "gates": (trace_gates, 0),
    "neighbour sum": (trace_neighbour_sum, 0),
    "linears": (trace_linears, 0),
    "gru": (trace_gru, 0),
    "batch norm": (trace_batch_norm, 2),
    "dropout": (trace_dropout, 0),
    "set2set": (trace_set2set, 0),
}


def main() -> None:
    triton.runtime.driver.set_active(Device())
    backend._chosen, backend._runs_on = "triton", lambda name, device: True
    operators._is_on_gpu = lambda arguments: True
    # Otherwise torch traces again once it finds that a kernel needs the value of a float.
    torch._dynamo.config.specialize_float = True
    found = remembered(triton_kernel_wrap.identify_accessed_tensors)
    triton_kernel_wrap.identify_accessed_tensors = found
    for name in sys.argv[1:]:
        trace_of, mutated = CASES[name]
        trace = trace_of()
        trace.check(mutated)
        kernels = sorted({kernel.__name__ for kernel, _ in trace.launches()})
        print(f"{name}: {len(trace.graph.nodes)}", *kernels, flush=True)


if __name__ == "__main__":
    main()
