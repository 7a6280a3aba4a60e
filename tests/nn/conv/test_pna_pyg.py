"""`PNAConv` beside `torch_geometric.nn.PNAConv`: outputs and the gradients of everything."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import coalesce, k_hop_subgraph

import pna
from pna.adjacency import Adjacency
from pna.nn import PNAConv
from pna.nn.conv.pyg import rename_keys
from tests.nn.cases import DEG, GRAPHS, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome

EVERY = ["mean", "std", "max", "min", "sum", "var"]

# Arguments of the layer, where they are not the paper's: 8 features to 10.
LAYERS = {
    "plain": {},
    "every aggregator and scaler": dict(
        aggregators=EVERY, scalers=[*SCALERS, "linear", "inverse_linear"]
    ),
    "one of each": dict(aggregators=["std"], scalers=["amplification"]),
    "narrow edge features": dict(edge_dim=3),
    "edge features as wide as narrow ones get": dict(edge_dim=16),
    "wide edge features": dict(edge_dim=17),
    "towers that all see everything": dict(towers=5),
    "divided towers": dict(in_channels=10, towers=5, divide_input=True),
    "divided towers with edge features": dict(
        in_channels=10, towers=5, divide_input=True, edge_dim=3
    ),
    "deep M": dict(pre_layers=3),
    "deep U": dict(post_layers=3),
    "all deep, with towers and edge features": dict(
        pre_layers=3, post_layers=3, towers=2, edge_dim=3, act="tanh"
    ),
    "deep, wide edge features": dict(pre_layers=2, edge_dim=17, act="leaky_relu"),
    "edges turned round": dict(flow="target_to_source", edge_dim=3),
    "learned δ": dict(train_norm=True, scalers=[*SCALERS, "linear", "inverse_linear"]),
    "softmax with a learned temperature": dict(
        aggregators=["mean", SoftmaxAggregation(t=0.7, learn=True), "max"]
    ),
    "softmax of a given temperature": dict(aggregators=[SoftmaxAggregation(t=2.0), "min"]),
}

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}


def pair(dtype=torch.float64, device="cpu", **arguments):
    """A layer of PyG's and ours made of it."""
    torch.manual_seed(0)
    given = dict(in_channels=8, out_channels=10, aggregators=PAPER, scalers=SCALERS, deg=DEG)
    theirs = pyg.PNAConv(**(given | arguments)).to(device, dtype)
    return theirs, PNAConv.from_pyg(theirs)


def inputs_of(layer, graph, dtype, device):
    edge_index = graph.edge_index(device)
    x = numbers(graph.nodes, layer.in_channels, dtype=dtype, device=device, seed=1)
    if layer.edge_dim is None:
        return x, edge_index, None
    shape = (edge_index.shape[1], layer.edge_dim)
    return x, edge_index, numbers(*shape, dtype=dtype, device=device, seed=2)


def outcome_of(layer, x, edges, edge_attr=None, index=None):
    """Gradients by name: of x, of the edge features, of every parameter. With an index, edge_attr
    is a table, which our layer takes as it is."""
    leaves = {"x": x.detach().clone()}
    if edge_attr is not None:
        leaves["edge_attr"] = edge_attr.detach().clone()

    def run():
        given = leaves.get("edge_attr")
        if index is not None:
            given = (given, index) if isinstance(layer, PNAConv) else given[index]
        return layer(leaves["x"], edges, given)

    return outcome(run, leaves | dict(layer.named_parameters()))


def assert_same(theirs, ours, x, edge_index, edge_attr=None, index=None, edges=None):
    """PyG's is run in float64 whatever the type: its own float32 gradient of std is further off
    than ours may be, as E[x²] − E[x]² leaves little of a small variance, and std divides by it."""
    got = outcome_of(ours, x, edge_index if edges is None else edges, edge_attr, index)
    wide = None if edge_attr is None else edge_attr.double()
    expected = outcome_of(theirs.double(), x.double(), edge_index, wide, index)
    rename_keys(ours, expected, "")
    assert set(dict(ours.named_parameters())) < set(expected)
    assert_equal_in_norm(got, expected, TOLERANCES[x.dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("arguments", LAYERS)
def test_layers(device, arguments, dtype):
    theirs, ours = pair(dtype, device, **LAYERS[arguments])
    assert_same(theirs, ours, *inputs_of(ours, GRAPHS["random"], dtype, device))


@pytest.mark.parametrize("graph", [g for g in GRAPHS if g != "random"])
@pytest.mark.parametrize(
    "arguments",
    [
        "every aggregator and scaler",
        "divided towers with edge features",
        "deep, wide edge features",
    ],
)
def test_graphs(device, arguments, graph):
    theirs, ours = pair(device=device, **LAYERS[arguments])
    assert_same(theirs, ours, *inputs_of(ours, GRAPHS[graph], torch.float64, device))


@pytest.mark.parametrize(
    "arguments, graph",
    [
        ("every aggregator and scaler", "repeated edges"),
        ("towers that all see everything", "isolated"),
        ("divided towers with edge features", "random"),
        ("all deep, with towers and edge features", "self-loops"),
        ("plain", "no nodes"),
    ],
)
def test_every_backend(backend, arguments, graph):
    theirs, ours = pair(torch.float32, backend.device, **LAYERS[arguments])
    assert_same(theirs, ours, *inputs_of(ours, GRAPHS[graph], torch.float32, backend.device))


@pytest.mark.parametrize("edge_dim", [3, 17])
@pytest.mark.parametrize("pre_layers", [1, 2])
def test_types_of_edges(device, edge_dim, pre_layers):
    """Given as (table, index), they are PyG's table[index]."""
    theirs, ours = pair(device=device, edge_dim=edge_dim, towers=2, pre_layers=pre_layers)
    x, edge_index, _ = inputs_of(ours, GRAPHS["random"], torch.float64, device)
    table = numbers(4, edge_dim, dtype=x.dtype, device=device, seed=3)
    index = torch.arange(edge_index.shape[1], device=device) % 3
    assert_same(theirs, ours, x, edge_index, table, index)


def test_an_adjacency_or_several_in_place_of_the_edges(device):
    theirs, ours = pair(device=device, edge_dim=3)
    x, edge_index, edge_attr = inputs_of(ours, GRAPHS["random"], torch.float64, device)
    adjacency = Adjacency.from_edge_index(edge_index, x.shape[0])
    assert_same(theirs, ours, x, edge_index, edge_attr, edges=adjacency)
    parts = [adjacency, adjacency]
    doubled = torch.cat([edge_index, edge_index + x.shape[0]], 1)
    twice = (torch.cat([x, 2 * x]), doubled, torch.cat([edge_attr, -edge_attr]))
    assert_same(theirs, ours, *twice, edges=parts)


class SparseTensor:
    """What layers use of torch_sparse's class, which takes long to build."""

    def __init__(self, edge_index, values, nodes):
        receivers, order = edge_index[1].sort(stable=True)
        counts = torch.bincount(receivers, minlength=nodes)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self._csr = ends, edge_index[0][order], None if values is None else values[order]
        self._sizes = (nodes, nodes)

    def csr(self):
        return self._csr

    def sparse_sizes(self):
        return self._sizes


def test_a_sparse_matrix_holds_the_edge_features(device):
    theirs, ours = pair(device=device, edge_dim=3)
    x, edge_index, edge_attr = inputs_of(ours, GRAPHS["random"], torch.float64, device)
    edge_index, edge_attr = coalesce(edge_index, edge_attr, x.shape[0])
    edge_attr.requires_grad_()
    hybrid = torch.sparse_coo_tensor(edge_index.flip(0), edge_attr, (x.shape[0], x.shape[0], 3))

    def results(layer, *edges):
        out = layer(x, *edges)
        return out, *torch.autograd.grad(out.square().sum(), edge_attr, retain_graph=True)

    expected = results(theirs, edge_index, edge_attr)
    torch.testing.assert_close(results(theirs, hybrid.coalesce()), expected)
    for matrix in (hybrid.coalesce(), SparseTensor(edge_index, edge_attr, x.shape[0])):
        torch.testing.assert_close(results(ours, matrix), expected)
    with pytest.raises(ValueError, match=r"not coalesced, .*; call matrix\.coalesce"):
        ours(x, hybrid)
    bare = SparseTensor(edge_index, None, x.shape[0])
    theirs, ours = pair(device=device)
    torch.testing.assert_close(ours(x, bare), theirs(x, edge_index))


def test_bare_edges_are_sorted_once(device):
    theirs, ours = pair(device=device)
    x, edge_index, _ = inputs_of(ours, GRAPHS["random"], torch.float64, device)
    with mock.patch.object(Adjacency, "from_edge_index", wraps=Adjacency.from_edge_index) as build:
        first, second = ours(x, edge_index), ours(x, edge_index)
    assert build.call_count == 1
    assert torch.equal(first, second)
    torch.testing.assert_close(second, theirs(x, edge_index))


def test_sampled_neighbourhoods(device):
    """Batches as a loader of neighbours makes them: one hop around some seeds, renumbered, each
    of another size; δ stays that of the whole."""
    theirs, ours = pair(device=device, edge_dim=3)
    x, edge_index, edge_attr = inputs_of(ours, GRAPHS["random"], torch.float64, device)
    sizes = set()
    for seeds in ([0], [5, 9], [3, 11, 12]):
        subset, edges, _, mask = k_hop_subgraph(
            seeds, 1, edge_index, relabel_nodes=True, num_nodes=x.shape[0]
        )
        sizes.add(len(subset))
        assert_same(theirs, ours, x[subset], edges, edge_attr[mask])
    assert len(sizes) > 1


def test_batch_of_a_loader(device):
    theirs, ours = pair(device=device, edge_dim=3)
    graphs = []
    for name in ("random", "isolated", "no edges", "repeated edges"):
        x, edge_index, edge_attr = inputs_of(ours, GRAPHS[name], torch.float64, device)
        graphs.append(Data(x=x, edge_index=edge_index, edge_attr=edge_attr))
    (batch,) = DataLoader(graphs, batch_size=4)
    assert_same(theirs, ours, batch.x, batch.edge_index, batch.edge_attr)


@pytest.mark.parametrize("arguments", LAYERS)
def test_names_of_pyg_load_as_they_are(arguments):
    """Without `from_pyg`: a layer made by PyG's arguments, its state loaded, even nested."""
    theirs, made = pair(**LAYERS[arguments])
    fresh = PNAConv.from_pyg(theirs)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(1)
    nested = torch.nn.Sequential(fresh)
    nested.load_state_dict({f"0.{name}": value for name, value in theirs.state_dict().items()})
    for name, value in made.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name


def test_arguments_of_pyg_are_ours():
    """The same call makes either layer, in the same order of arguments."""
    positional = (8, 10, PAPER, SCALERS, DEG, 3, 2, 2, 2, False, "relu", None, True)
    theirs, ours = pyg.PNAConv(*positional), PNAConv(*positional, std="pyg")
    ours.load_state_dict(theirs.state_dict())
    x, edge_index, edge_attr = inputs_of(ours, GRAPHS["random"], torch.float32, "cpu")
    out = ours(x, edge_index, edge_attr)
    torch.testing.assert_close(out, theirs(x, edge_index, edge_attr), rtol=1e-4, atol=1e-5)
    assert repr(ours) == repr(theirs)


def test_δ_of_a_histogram_is_that_of_pyg():
    theirs = pyg.PNAConv(8, 10, PAPER, SCALERS, DEG)
    ours = PNAConv(8, 10, PAPER, SCALERS, DEG).neighbourhood
    torch.testing.assert_close(ours.mean_degree, theirs.aggr_module.avg_deg_lin)
    torch.testing.assert_close(ours.mean_log_degree, theirs.aggr_module.avg_deg_log)
    stats = pna.DegreeStats.from_histogram(DEG)
    assert PNAConv(8, 10, PAPER, SCALERS, stats).neighbourhood.mean_degree == ours.mean_degree
