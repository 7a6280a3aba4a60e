"""What the tests of the baseline convolutions share: each is held against an oracle, then against
itself under what may happen to a layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import pna
from tests.nn.cases import GRAPHS as COMMON
from tests.nn.cases import assert_equal_in_norm, numbers, outcome
from tests.ops.cases import Graph

GRAPHS = COMMON | {
    "one node": Graph([], 1),
    "one node with self-loops": Graph([(0, 0), (0, 0)], 1),
}

Make = Callable[..., nn.Module]
Oracle = Callable[[nn.Module, Tensor, Tensor, Tensor | None], Tensor]


def made(make: Make, device: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A layer with every parameter drawn, those that start at 0 or 1 as well."""
    torch.manual_seed(seed)
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.to(device, dtype)


def inputs_of(
    layer: Any, graph: str, device: Any, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor | None]:
    edge_index = GRAPHS[graph].edge_index(device)
    x = numbers(GRAPHS[graph].nodes, layer.in_channels, dtype=dtype, device=device, seed=1)
    if getattr(layer, "edge_dim", None) is None:
        return x, edge_index, None
    shape = (edge_index.shape[1], layer.edge_dim)
    return x, edge_index, numbers(*shape, dtype=dtype, device=device, seed=2)


def everything(
    layer: nn.Module, run: Callable[..., Tensor], x: Tensor, edges: Any, edge_attr: Any
) -> dict[str, Tensor]:
    """The output, and the gradients of x, of edge features and of every parameter."""
    leaves = {"x": x.detach().clone()}
    if edge_attr is not None:
        leaves["edge_attr"] = edge_attr.detach().clone()
    return outcome(
        lambda: run(leaves["x"], edges, leaves.get("edge_attr")),
        leaves | dict(layer.named_parameters()),
    )


def assert_as_oracle(make: Make, oracle: Oracle, graph: str, device: Any) -> None:
    layer = made(make, device)
    inputs = inputs_of(layer, graph, device)
    got = everything(layer, layer, *inputs)
    assert got["out"].shape == (GRAPHS[graph].nodes, layer.out_channels)
    expected = everything(layer, lambda *given: oracle(layer, *given), *inputs)
    assert_equal_in_norm(got, expected, 1e-11)


def assert_alike_on(backend: Any, make: Make, graph: str = "isolated") -> None:
    """In float32, as the definition in float64."""
    layer = made(make, backend.device)
    inputs = inputs_of(layer, graph, backend.device)
    with pna.backend("reference"):
        expected = everything(layer, layer, *inputs)
    layer = layer.float()
    x, edges, edge_attr = inputs
    edge_attr = None if edge_attr is None else edge_attr.float()
    got = everything(layer, layer, x.float(), edges, edge_attr)
    assert all(value.dtype == torch.float32 for value in got.values())
    assert_equal_in_norm(got, expected, 1e-5)


def assert_compiles(make: Make, device: Any) -> None:
    torch._dynamo.reset()
    layer = made(make, device)
    x, edge_index, edge_attr = inputs_of(layer, "random", device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got = everything(layer, whole, x, adjacency, edge_attr)
    expected = everything(layer, layer, x, adjacency, edge_attr)
    assert_equal_in_norm(got, expected, 1e-12)


def assert_members_are_layers_alone(make: Make, device: Any, own_x: bool) -> None:
    """vmap over stacked parameters, the losses summed, one ordinary backward()."""
    layers = [made(make, device, seed=seed) for seed in range(3)]
    parameters, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    x, edge_index, edge_attr = inputs_of(layers[0], "random", device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    xs = torch.stack([x, 2 * x, x + 1]) if own_x else x

    def run(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(skeleton, (parameters, buffers), (x, adjacency, edge_attr))

    out = torch.vmap(run, (0, 0, 0 if own_x else None))(parameters, buffers, xs)
    out.square().sum().backward()
    for i, layer in enumerate(layers):
        alone = layer(xs[i] if own_x else x, adjacency, edge_attr)
        alone.square().sum().backward()
        torch.testing.assert_close(out[i], alone)
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffers[name][i], buffer)


def assert_captures(run: Callable[[], tuple[Tensor, ...]], x: Tensor) -> None:
    """Captured in a CUDA graph, then replayed for another x: what `run` gives for that one."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()  # kernels are compiled here, not captured
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = run()
    with torch.no_grad():
        x.mul_(2)
    captured.replay()
    assert all(torch.equal(a, b) for a, b in zip(results, run(), strict=True))


def assert_layer_captures(make: Make, device: Any) -> None:
    layer = made(make, device, torch.float32)
    x, edge_index, edge_attr = inputs_of(layer, "random", device, torch.float32)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    leaves = [x.requires_grad_(), *layer.parameters()]

    def run() -> tuple[Tensor, ...]:
        out = layer(x, adjacency, edge_attr)
        return out, *torch.autograd.grad(out, leaves, torch.ones_like(out))

    assert_captures(run, x)


def assert_equivariant(make: Make, device: Any) -> None:
    """Nodes renumbered and edges in another order: the same results, renumbered."""
    layer = made(make, device)
    x, edge_index, edge_attr = inputs_of(layer, "random", device)
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randperm(x.shape[0], generator=generator).to(device)
    edges = torch.randperm(edge_index.shape[1], generator=generator).to(device)
    place = torch.empty_like(nodes)
    place[nodes] = torch.arange(x.shape[0], device=device)
    edge_attr_there = None if edge_attr is None else edge_attr[edges]
    got = layer(x[nodes], place[edge_index[:, edges]], edge_attr_there)
    torch.testing.assert_close(got, layer(x, edge_index, edge_attr)[nodes])


def assert_reads_any_form(make: Make, device: Any) -> None:
    """Strided tensors, an Adjacency for the edge_index, edge features as (table, index)."""
    layer = made(make, device)
    x, edge_index, edge_attr = inputs_of(layer, "random", device)
    expected = layer(x, edge_index, edge_attr)
    strided = x.repeat(1, 2)[:, ::2].copy_(x), edge_index.t().contiguous().t()
    columns = None if edge_attr is None else edge_attr.t().contiguous().t()
    near = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)  # products by other kernels
    near(layer(*strided, columns), expected)
    near(layer(x.t().contiguous().t(), edge_index, columns), expected)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    assert torch.equal(layer(x, adjacency, edge_attr), expected)
    if edge_attr is None:
        return
    table, index = edge_attr[:3].clone(), torch.arange(len(edge_attr), device=device) % 3
    leaves = {"x": x, "table": table} | dict(layer.named_parameters())
    got = outcome(lambda: layer(x, adjacency, (table, index)), leaves)
    rows = outcome(lambda: layer(x, adjacency, table[index]), leaves)
    assert_equal_in_norm(got, rows, 1e-12)


def assert_autocasts(make: Make, device: torch.device) -> None:
    layer = made(make, device, torch.float32)
    inputs = inputs_of(layer, "random", device, torch.float32)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got = everything(layer, layer, *inputs)
    assert got["out"].dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for name, value in got.items() if name != "out")
    assert_equal_in_norm(got, everything(layer, layer, *inputs), 0.1)


def assert_resets(make: Make) -> None:
    """Parameters are drawn anew, as when the layer was made."""
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(100)
    layer.reset_parameters()
    assert all(parameter.abs().max() < 5 for parameter in layer.parameters())


def count(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())
