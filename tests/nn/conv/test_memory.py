"""What a layer says that it will need, beside what it is seen to need."""

import pytest
import torch
from torch import nn

import pna
from pna.aggregators import Aggregator, Std
from pna.bench.measure import peak_memory
from pna.nn import PNAConv

SLOWER = pytest.mark.filterwarnings("ignore:.*has hooks or was replaced:UserWarning")


class Midrange(Aggregator):
    """A user's own, of which a layer makes the messages."""

    shift = "unknown"

    def aggregate(self, hood):
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


#: Layers that make messages.
MADE = {
    "messages of two layers": dict(pre_layers=2),
    "messages of two layers, without a kernel": dict(pre_layers=2, aggregators=["mean", Midrange]),
    "a moment, without a kernel": dict(aggregators=["mean", "std", "moment_3"]),
    "two conventions of std": dict(aggregators=["mean", Std(), Std(clamp=True)]),
    "an unknown shift": dict(aggregators=["mean", "std", Midrange]),
    "two unknown shifts": dict(aggregators=[Midrange, Midrange()]),
    "hooks": dict(hooked=True),
    "hooks, few scalers": dict(hooked=True, scalers=["identity"]),
    "hooks, towers and edge types": dict(hooked=True, towers=4, edge_dim=50),
    "hooks, narrow edge features": dict(hooked=True, edge_dim=8, towers=4, divide_input=True),
    "hooks, swapped extrema": dict(hooked=True, swap_extrema=True),
    "hooks, messages of three layers": dict(hooked=True, pre_layers=3),
    "hooks, an unknown shift": dict(hooked=True, aggregators=["mean", "std", Midrange]),
}
LAYERS = MADE | {
    "one tower": dict(),
    "no extrema": dict(aggregators=["sum", "std"]),
    "towers and edge types": dict(towers=4, edge_dim=50),
    "divided": dict(towers=4, divide_input=True),
    "narrow edge features": dict(edge_dim=8),
    "three layers after": dict(post_layers=3),
    "bfloat16": dict(dtype=torch.bfloat16),
    "bfloat16, an unknown shift": dict(dtype=torch.bfloat16, aggregators=["mean", Midrange]),
    "bfloat16, hooks": dict(dtype=torch.bfloat16, hooked=True),
}


def layer(dtype=torch.float32, hooked=False, **arguments):
    given = dict(
        in_channels=64,
        out_channels=64,
        aggregators=["mean", "std", "max", "min"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.tensor([0, 10, 10]),
    )
    conv = PNAConv(**(given | arguments)).to(dtype)
    if hooked:
        conv.pre[0].register_forward_hook(lambda *_: None)
    return conv


def assert_near_what_is_needed(arguments, training, nodes, edges, device):
    conv = layer(**arguments).to(device)
    dtype = conv.lin.weight.dtype
    edge_index = torch.randint(nodes, (2, edges), device=device)
    x = torch.randn(nodes, 64, device=device, dtype=dtype, requires_grad=training)
    edge = None
    if conv.edge_dim == 50:
        edge = (torch.randn(4, 50, device=device), torch.randint(4, (edges,), device=device))
    elif conv.edge_dim:
        edge = torch.randn(edges, conv.edge_dim, device=device)

    def step():
        adjacency = pna.Adjacency.from_edge_index(edge_index, nodes)
        with torch.set_grad_enabled(training):
            out = conv(x, adjacency, edge)
        if training:
            out.sum().backward()
            x.grad = None
            conv.zero_grad()

    step()
    needed = peak_memory(step, device)
    assert conv.memory(nodes, edges, training) == pytest.approx(needed, rel=0.25)


modes = pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])


@SLOWER
@pytest.mark.gpu
@modes
@pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("size", [(50_000, 400_000), (10_000, 60_000)], ids=["large", "small"])
def test_near_what_a_gpu_needs(arguments, training, size):
    assert_near_what_is_needed(arguments, training, *size, "cuda")


@SLOWER
@modes
@pytest.mark.parametrize("arguments", MADE.values(), ids=MADE)
@pytest.mark.parametrize("size", [(500, 8000), (1000, 6000)], ids=["dense", "sparse"])
def test_near_what_a_cpu_needs_where_messages_are_made(cpu, arguments, training, size):
    assert_near_what_is_needed(arguments, training, *size, cpu.device)


@pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
def test_training_takes_more_and_so_do_larger_graphs(arguments):
    conv = layer(**arguments)
    assert conv.memory(1000, 5000) > conv.memory(1000, 5000, training=False) > 0
    assert conv.memory(2000, 10_000) > 1.9 * conv.memory(1000, 5000) > 0


def test_no_row_of_features_for_an_edge():
    graph = 4 * 4  # bytes of an edge in an Adjacency
    nodes = 10**5  # too many for a small graph
    more = layer().memory(nodes, 20_000) - layer().memory(nodes, 10_000)
    assert more == graph * 10_000


def test_a_small_graph_takes_a_row_of_features_for_an_edge():
    row = 4 * 4 + 64 * 4
    assert layer().memory(1000, 20_000) - layer().memory(1000, 10_000) == row * 10_000


def test_half_precision_takes_less():
    """About half of all tensors but the rows of receivers: only those of float32 fit into the
    memory of gradients."""
    assert layer(torch.bfloat16).memory(10**5, 0) < 0.75 * layer().memory(10**5, 0)


def test_wide_edge_features_of_many_edges_are_multiplied_in_blocks():
    conv, messages = layer(edge_dim=50), 10**6 * 64 * 4
    more = conv.memory(10**5, 10**6, table=False) - conv.memory(10**5, 10**6)
    assert more < 0.3 * 2 * messages  # C e and its gradient
    conv, messages = layer(edge_dim=50, towers=2, divide_input=True), 10**4 * 64 * 4  # not small
    more = conv.memory(1000, 10**4, table=False) - conv.memory(1000, 10**4)
    assert more == messages
    assert layer(edge_dim=8).memory(10, 10**6) == layer(edge_dim=8).memory(10, 10**6, table=False)


def test_messages_count_for_as_long_as_a_part_is_called():
    conv, messages = layer(), 10**6 * 64 * 4
    without = conv.memory(1000, 10**6)
    handle = conv.post[0].register_forward_hook(lambda *_: None)
    assert conv.memory(1000, 10**6) > without + 4 * messages
    assert conv.memory(1000, 10**6, training=False) > 4 * messages
    handle.remove()
    assert conv.memory(1000, 10**6) == without
    conv.pre[0] = nn.Sequential(conv.pre[0], nn.Tanh())
    assert conv.memory(1000, 10**6) > without + 4 * messages
