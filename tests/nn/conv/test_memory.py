"""What a layer says that it will need, beside what it is seen to need on a GPU."""

import pytest
import torch

import pna
from pna.bench.measure import peak_memory
from pna.nn import PNAConv

LAYERS = {
    "one tower": dict(),
    "no extrema": dict(aggregators=["sum", "std"]),
    "towers and edge types": dict(towers=4, edge_dim=50),
    "divided": dict(towers=4, divide_input=True),
    "narrow edge features": dict(edge_dim=8),
    "messages of two layers": dict(pre_layers=2),
    "three layers after": dict(post_layers=3),
    "a moment, without a kernel": dict(aggregators=["mean", "std", "moment_3"]),
    "bfloat16": dict(dtype=torch.bfloat16),
}


def layer(dtype=torch.float32, **arguments):
    given = dict(
        in_channels=64,
        out_channels=64,
        aggregators=["mean", "std", "max", "min"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.tensor([0, 10, 10]),
    )
    return PNAConv(**(given | arguments)).to(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
def test_near_what_a_gpu_needs(arguments, training):
    nodes, edges = 50_000, 400_000
    conv = layer(**arguments).cuda()
    dtype = conv.lin.weight.dtype
    edge_index = torch.randint(nodes, (2, edges), device="cuda")
    x = torch.randn(nodes, 64, device="cuda", dtype=dtype, requires_grad=training)
    edge = None
    if conv.edge_dim == 50:
        edge = (torch.randn(4, 50, device="cuda"), torch.randint(4, (edges,), device="cuda"))
    elif conv.edge_dim:
        edge = torch.randn(edges, conv.edge_dim, device="cuda")
    before = torch.cuda.memory_allocated()
    adjacency = pna.Adjacency.from_edge_index(edge_index, nodes)
    held = torch.cuda.memory_allocated() - before

    def step():
        with torch.set_grad_enabled(training):
            out = conv(x, adjacency, edge)
        if training:
            out.sum().backward()
            x.grad = None
            conv.zero_grad()

    step()
    needed = peak_memory(step, "cuda") + held
    assert conv.memory(nodes, edges, training) == pytest.approx(needed, rel=0.25)


@pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
def test_training_takes_more_and_so_do_larger_graphs(arguments):
    conv = layer(**arguments)
    assert conv.memory(1000, 5000) > conv.memory(1000, 5000, training=False) > 0
    assert conv.memory(2000, 10_000) > 1.9 * conv.memory(1000, 5000) > 0


def test_no_row_of_features_for_an_edge():
    graph = 4 * 4  # bytes of an edge in an Adjacency
    assert layer().memory(1000, 20_000) - layer().memory(1000, 10_000) == graph * 10_000


def test_half_precision_takes_about_half():
    assert layer(torch.bfloat16).memory(10**5, 0) < 0.65 * layer().memory(10**5, 0)


def test_wide_edge_features_as_numbers_are_made_into_messages():
    conv, messages = layer(edge_dim=50), 10**6 * 64 * 4
    more = conv.memory(1000, 10**6, table=False) - conv.memory(1000, 10**6)
    assert messages < more <= 2 * messages
    assert layer(edge_dim=8).memory(10, 10**6) == layer(edge_dim=8).memory(10, 10**6, table=False)
