"""Compile every kernel that a few calls would launch, for a GPU that need not be here.

The interpreter forgives what the compiler does not. Run as a program, in a process of its own:
Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

import pna.ops.degree_linear  # noqa: F401  (registers the operator)
from pna.adjacency import Adjacency
from pna.ops.request import KINDS, Request
from pna.ops.statistics import statistics
from tests.ops.cases import widened

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


def compile_instead(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """What `JITFunction.run` is replaced by: the launch's kernel compiled, and not launched."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    signature, constants = {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values.pop(parameter.name)
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(i,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
        else:
            signature[parameter.name] = "i64" if abs(value) >= 2**31 else "i32"
    compiled = compile(ASTSource(kernel, signature, constants), target=TARGET, options=values)
    print(kernel.fn.__name__, compiled.metadata.shared, flush=True)


def main() -> None:
    JITFunction.run = compile_instead
    spokes = torch.stack([torch.arange(600) % 20, torch.zeros(600, dtype=torch.int64)])
    edge_index = torch.cat([spokes, spokes.flip(0)], dim=1)  # rows long enough to be cut
    adjacency = Adjacency.from_edge_index(edge_index, 20)
    edges = adjacency.num_edges
    cases = (  # type, features, and the edge term: none, dense, a table, coefficients
        (torch.float32, 128, None, None),
        (torch.float64, 33, torch.randn(edges, 33), None),
        (torch.bfloat16, 16, torch.randn(3, 16), torch.arange(edges) % 3),
        (torch.float16, 7, torch.randn(2, 7), torch.randn(edges, 2)),
    )
    for dtype, features, edge, at in cases:
        x = torch.randn(20, features, dtype=dtype, requires_grad=True)
        edge = None if edge is None else edge.to(dtype).requires_grad_()
        if at is not None and at.is_floating_point():
            at = at.to(dtype).requires_grad_()
        for graph in (adjacency, widened(adjacency)):
            out = statistics(x, graph, Request(KINDS, 1e-5, False), edge, at, "triton")
            out.sum().backward()
            if dtype != torch.float64:
                compile_degree_linear(x, graph)


def compile_degree_linear(x: torch.Tensor, adjacency: Adjacency) -> None:
    """A layer of one tower and five scalers, and one of four towers and three."""
    for towers, scalers in ((1, 5), (4, 3)):
        z = x[:, None, None].expand(-1, 2, towers, -1).detach().requires_grad_()
        weight = torch.randn(scalers, towers, 2 * x.shape[1], 24, dtype=x.dtype).requires_grad_()
        base = torch.randn(x.shape[0], towers, 24, dtype=x.dtype)
        factors, shift = torch.randn(x.shape[0], scalers), z.detach()[:, 0]
        graph = (adjacency.indptr, adjacency.by_degree)
        out = torch.ops.pna.degree_linear(
            z, weight, factors, base, shift, [towers % 3, 2], *graph, "triton"
        )
        out.sum().backward()


if __name__ == "__main__":
    main()
