"""Compiled by Inductor, torch's default backend, results and gradients are those of eager.

Only Inductor generates code: `aot_eager` runs torch's own kernels, and cannot see a generated loop
that ends too early. Sizes lie on both sides of windows of 4096 rows and segments of 255 slots.
A compilation takes 10 s and more on a CPU, most of it in the C++ compiler, so there are few.
"""

import shutil
from functools import partial

import pytest
import torch

import pna
from pna import Adjacency
from pna.aggregators import Aggregator
from pna.nn import PNAConv
from tests.nn.cases import DEG, assert_equal_in_norm, numbers, outcome

pytestmark = [
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler"
    ),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's own
]

AGGREGATORS = ["mean", "std", "max"]
WIDTH = 2
LAYER = dict(aggregators=AGGREGATORS, scalers=["identity", "amplification"], deg=DEG)


@pytest.fixture(autouse=True)
def compiled_afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def edges_of(nodes, hub, device):
    """Two random edges for each node; then node 0 receives, and node 1 sends, `hub` more."""
    random = torch.Generator().manual_seed(nodes)
    edges = torch.randint(2, nodes, (2, 2 * nodes), generator=random)
    more = torch.randint(2, nodes, (hub,), generator=random)
    into, out_of = torch.stack([more, 0 * more]), torch.stack([0 * more + 1, more])
    return torch.cat([edges, into, out_of], 1).to(device)


class Peak(Aggregator):
    """A user's own: max(m²) − mean(m), of which a layer makes the messages."""

    shift = "unknown"

    def aggregate(self, hood):
        return hood.max(hood.messages**2) - hood.mean(hood.messages)


class Aggregate(torch.nn.Module):
    def __init__(self, aggregators):
        super().__init__()
        self.aggregators = aggregators

    def forward(self, x, edges):
        if isinstance(edges, torch.Tensor):
            edges = Adjacency.from_edge_index(edges, x.shape[0])
        return pna.aggregate(x, edges, self.aggregators).flatten(1)


class Relations(torch.nn.Module):
    """Products with a learned row for each of five types of edges."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x, edges):
        index = torch.arange(edges.num_edges, device=x.device) % 5
        return pna.aggregate(x, edges, AGGREGATORS, (self.table, index), "mul")


MODULES = {
    "aggregate": lambda: Aggregate(AGGREGATORS),
    "relations": Relations,
    "PNAConv": lambda: PNAConv(WIDTH, WIDTH, **LAYER),
    "PNAConv, own": lambda: PNAConv(WIDTH, WIDTH, [Peak], ["identity"], None),
}


def assert_as_eager(name, dynamic, graphs, device, learns=True):
    """Output and gradients of a compiled module on graphs of (nodes, edges)."""
    torch.manual_seed(0)
    module = MODULES[name]().to(device, torch.float64).requires_grad_(learns)
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic)
    for nodes, edges in graphs:
        x = numbers(nodes, WIDTH, dtype=torch.float64, device=device, seed=nodes)
        leaves = {"x": x} | {n: p for n, p in module.named_parameters() if p.requires_grad}
        got, expected = (outcome(partial(f, x, edges), leaves) for f in (compiled, module))
        assert_equal_in_norm(got, expected, 1e-12)


@pytest.mark.slow
def test_edge_index(device):
    """The Adjacency is built by compiled code, and a dozen of its loops take the C++ compiler a
    second each."""
    sizes = [(5000, 300), (60, 0), (4095, 254), (4096, 255), (4097, 256), (9000, 511)]
    graphs = [(nodes, edges_of(nodes, hub, device)) for nodes, hub in sizes]
    assert_as_eager("aggregate", True, graphs, device)


@pytest.mark.parametrize(
    "name, dynamic",
    [
        ("aggregate", None),
        pytest.param("PNAConv", True, marks=pytest.mark.slow),
        pytest.param("relations", True, marks=pytest.mark.slow),
    ],
)
def test_adjacency(device, name, dynamic):
    """Every graph has one long row, because torch compiles lengths of 0 and 1 for themselves.
    Without `dynamic`, the first size is compiled for itself and the second one for all others:
    Inductor is imported and compiles twice, which takes seconds."""
    sizes = [(4097, 256), (4095, 300), (600, 511)]
    graphs = [
        (nodes, Adjacency.from_edge_index(edges_of(nodes, hub, device), nodes))
        for nodes, hub in sizes
    ]
    assert_as_eager(name, dynamic, graphs, device)


@pytest.mark.slow
def test_an_aggregator_of_a_user(device):
    """Compiled once for all sizes, as each has a row of three segments. Weights have no gradients
    here: those would double the code to compile, which takes the C++ compiler ten seconds."""
    sizes = [(4097, 600), (4095, 700), (600, 511)]
    graphs = [
        (nodes, Adjacency.from_edge_index(edges_of(nodes, hub, device), nodes))
        for nodes, hub in sizes
    ]
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_as_eager("PNAConv, own", True, graphs, device, learns=False)


@pytest.mark.slow
def test_one_edge_and_none(device):
    """Torch compiles lengths of 0 and 1 for themselves, each of which takes ten seconds."""
    edges = torch.tensor([[0], [2]], device=device)
    assert_as_eager("aggregate", True, [(3, edges), (3, edges[:, :0])], device)
