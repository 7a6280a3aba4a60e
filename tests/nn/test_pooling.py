"""`DiffPool` against PyG's `dense_diff_pool` of every graph, and what is read of its clusters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.func import functional_call, stack_module_state
from torch_geometric.nn.dense import dense_diff_pool
from torch_geometric.utils import to_dense_adj

import pna
from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.conv.gated_gcn import GatedGCNConv
from pna.nn.conv.gcn import GCNConv
from pna.nn.conv.sage import SAGEConv
from pna.nn.pooling import ClusterReadout, DiffPool, Pooled, diff_pool
from tests.nn.cases import assert_equal_in_norm, numbers, outcome
from tests.nn.conv.baselines import assert_captures
from tests.nn.graph_cases import SIZES, graphs
from tests.ops.cases import random_edges

F, C = 3, 4


def batch_of(sizes, device, seed=0):
    """An edge_index within graphs of these sizes, directed, with self-loops and repeated edges,
    and the graph of every node."""
    parts, before = [], 0
    for i, size in enumerate(sizes):
        for sender, receiver in random_edges(3 * size, max(size, 1), max(size, 1), seed + i):
            parts.append((sender + before, receiver + before))
        before += size
    edge_index = torch.tensor(parts, dtype=torch.int64, device=device).reshape(-1, 2).t()
    graph_of_node = torch.tensor([i for i, size in enumerate(sizes) for _ in range(size)])
    return edge_index, graph_of_node.long().to(device)


def each_by_pyg(z, logits, edge_index, graph_of_node, num_graphs):
    """The same by PyG, of every graph alone; of no nodes, zeros."""
    whole = to_dense_adj(edge_index.flip(0), max_num_nodes=len(z))[0].to(z.dtype)
    pooled = []
    for graph in range(num_graphs):
        nodes = (graph_of_node == graph).nonzero()[:, 0]
        if len(nodes) == 0:
            nothing = z.new_zeros(1, C, F), z.new_zeros(1, C, C), z.new_zeros(()), z.new_zeros(())
            pooled.append(nothing)
            continue
        own = z[None, nodes], whole[None, nodes][:, :, nodes], logits[None, nodes]
        pooled.append(dense_diff_pool(*own))
    x, coarse, link, entropy = zip(*pooled, strict=True)
    return Pooled(torch.cat(x), torch.cat(coarse), torch.stack(link), torch.stack(entropy))


def everything(run, z, logits):
    """Results, and the gradients of z and logits by each of them."""
    z, logits = z.detach().requires_grad_(), logits.detach().requires_grad_()
    results = run(z, logits)._asdict()
    every = dict(results)
    for name, result in results.items():
        upstream = numbers(*result.shape, dtype=z.dtype, device=z.device, seed=5)
        gradients = torch.autograd.grad(
            result, [z, logits], upstream, retain_graph=True, materialize_grads=True
        )
        every |= {f"{name} by z": gradients[0], f"{name} by logits": gradients[1]}
    return {name: value.detach() for name, value in every.items()}


BATCHES = {
    "ragged": [5, 1, 7, 3],
    "equal": [4, 4],
    "one graph": [6],
    "one node": [1],
    "graphs without nodes": [0, 3, 0, 0, 5, 0],
    # so many that the sum over a graph is cut in segments
    "a large graph": [300, 2],
}


@pytest.mark.parametrize("batch", BATCHES)
def test_as_pyg(device, batch):
    sizes = BATCHES[batch]
    edge_index, graph_of_node = batch_of(sizes, device)
    nodes = sum(sizes)
    z = numbers(nodes, F, dtype=torch.float64, device=device)
    logits = numbers(nodes, C, dtype=torch.float64, device=device, seed=1)
    adjacency = pna.Adjacency.from_edge_index(edge_index, nodes)
    got = everything(lambda z, s: diff_pool(z, s, adjacency, graph_of_node, len(sizes)), z, logits)
    expected = everything(
        lambda z, s: each_by_pyg(z, s, edge_index, graph_of_node, len(sizes)), z, logits
    )
    assert got["x"].shape == (len(sizes), C, F)
    assert got["adjacency"].shape == (len(sizes), C, C)
    assert got["link_loss"].shape == got["entropy_loss"].shape == (len(sizes),)
    assert_equal_in_norm(got, expected, 1e-10)


def test_every_backend(backend):
    sizes = [3, 0, 2]
    edge_index, graph_of_node = batch_of(sizes, backend.device)
    z = numbers(5, F, dtype=torch.float64, device=backend.device)
    logits = numbers(5, C, dtype=torch.float64, device=backend.device, seed=1)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 5)

    def run(z, logits):
        return diff_pool(z, logits, adjacency, graph_of_node, 3)

    with pna.backend("reference"):
        expected = everything(run, z, logits)
    assert_equal_in_norm(everything(run, z.float(), logits.float()), expected, 1e-5)


def test_nodes_in_any_order(device):
    sizes = BATCHES["ragged"]
    edge_index, graph_of_node = batch_of(sizes, device)
    nodes = sum(sizes)
    z = numbers(nodes, F, dtype=torch.float64, device=device)
    logits = numbers(nodes, C, dtype=torch.float64, device=device, seed=1)
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(0)).to(device)
    place = torch.empty_like(order)
    place[order] = torch.arange(nodes, device=device)
    expected = diff_pool(
        z, logits, pna.Adjacency.from_edge_index(edge_index, nodes), graph_of_node, len(sizes)
    )
    there = pna.Adjacency.from_edge_index(place[edge_index], nodes)
    got = diff_pool(z[order], logits[order], there, graph_of_node[order], len(sizes))
    torch.testing.assert_close(got, expected)


def test_padding_is_as_if_it_were_not_there(device):
    """Nodes with self-loops, in a graph of their own or, without edges, in that of others."""
    sizes = BATCHES["ragged"]
    edge_index, graph_of_node = batch_of(sizes, device)
    z = numbers(16, F, dtype=torch.float64, device=device)
    logits = numbers(16, C, dtype=torch.float64, device=device, seed=1)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 16)
    expected = everything(lambda z, s: diff_pool(z, s, adjacency, graph_of_node, 4), z, logits)
    loops = torch.tensor([[16, 16, 17], [16, 16, 17]], device=device)
    longer = pna.Adjacency.from_edge_index(torch.cat([edge_index, loops], 1), 19)
    more = torch.cat([graph_of_node, torch.tensor([4, 4, 1], device=device)])
    mask = torch.arange(19, device=device) < 16

    def run(z, s):
        wide = [torch.cat([part, part.new_full((3, part.shape[1]), 7.0)]) for part in (z, s)]
        pooled = diff_pool(*wide, longer, more, 5, mask)
        assert not any(part[4].any() for part in pooled)
        return Pooled(*[part[:4] for part in pooled])

    assert_equal_in_norm(everything(run, z, logits), expected, 1e-12)


@pytest.mark.parametrize("graphs", [0, 2])
def test_no_nodes(device, graphs):
    empty = torch.zeros(0, F, device=device, requires_grad=True)
    logits = torch.zeros(0, C, device=device, requires_grad=True)
    edge_index, graph_of_node = batch_of([], device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 0)
    got = diff_pool(empty, logits, adjacency, graph_of_node, graphs)
    assert got.x.shape == (graphs, C, F)
    assert all(torch.equal(result, torch.zeros_like(result)) for result in got)
    sum(result.sum() for result in got).backward()
    assert empty.grad.shape == (0, F)


def test_clusters_that_are_cliques(device):
    """Two triangles with self-loops, each node certain of its cluster: nothing is lost."""
    edges = [(i, j) for k in (0, 3) for i in range(k, k + 3) for j in range(k, k + 3)]
    adjacency = pna.Adjacency.from_edge_index(torch.tensor(edges, device=device).t(), 6)
    logits = torch.tensor([[1000.0, 0.0]] * 3 + [[0.0, 1000.0]] * 3, device=device)
    logits.requires_grad_()
    z = torch.arange(6.0, device=device)[:, None]
    graph_of_node = torch.zeros(6, dtype=torch.int64, device=device)
    got = diff_pool(z, logits, adjacency, graph_of_node, 1)
    assert got.x.tolist() == [[[3.0], [12.0]]]
    assert got.adjacency.tolist() == [[[9.0, 0.0], [0.0, 9.0]]]
    assert got.link_loss.item() == 0
    assert got.entropy_loss.item() == 0
    (got.link_loss + got.entropy_loss).backward()
    assert logits.grad.isfinite().all()


def test_half_precision_is_pooled_in_single(device):
    """‖A − S Sᵀ‖² is a small difference of large numbers."""
    edge_index, graph_of_node = batch_of([40, 3], device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 43)
    z = numbers(43, F, dtype=torch.float32, device=device).bfloat16()
    logits = numbers(43, C, dtype=torch.float32, device=device, seed=1).bfloat16()
    got = diff_pool(z, logits, adjacency, graph_of_node, 2)
    expected = diff_pool(z.float(), logits.float(), adjacency, graph_of_node, 2)
    assert got.x.dtype == got.adjacency.dtype == torch.bfloat16
    torch.testing.assert_close(got.x, expected.x.bfloat16())
    torch.testing.assert_close(got[2:], expected[2:])


def module(seed=0, device="cpu"):
    torch.manual_seed(seed)
    return DiffPool(SAGEConv(3, 5), GCNConv(3, C)).to(device, torch.float64)


def test_module(device):
    layer = module(device=device)
    edge_index, graph_of_node = batch_of(BATCHES["ragged"], device)
    x = numbers(16, 3, dtype=torch.float64, device=device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 16)
    z, logits = layer.embed(x, adjacency), layer.assign(x, adjacency)
    expected = diff_pool(z, logits, adjacency, graph_of_node, 4)
    torch.testing.assert_close(layer(x, edge_index, graph_of_node, 4), expected)


def test_module_with_edge_features(device):
    layer = DiffPool(GatedGCNConv(3, 5, edge_dim=2), GatedGCNConv(3, C, edge_dim=2)).to(device)
    edge_index, graph_of_node = batch_of(BATCHES["ragged"], device)
    x = numbers(16, 3, dtype=torch.float32, device=device)
    edge_attr = numbers(edge_index.shape[1], 2, dtype=torch.float32, device=device)
    assert layer(x, edge_index, graph_of_node, 4, edge_attr).x.shape == (4, C, 5)


@pytest.mark.slow
def test_compiled_whole(device):
    torch._dynamo.reset()
    layer = module(device=device)
    edge_index, graph_of_node = batch_of(BATCHES["ragged"], device)
    x = numbers(16, 3, dtype=torch.float64, device=device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 16)
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got, expected = (run(x, adjacency, graph_of_node, 4) for run in (whole, layer))
    torch.testing.assert_close(tuple(got), tuple(expected))
    sum(result.sum() for result in got).backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    sum(result.sum() for result in expected).backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_members_of_a_population_are_modules_alone(device):
    layers = [module(seed, device) for seed in range(3)]
    parameters, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    edge_index, graph_of_node = batch_of(BATCHES["graphs without nodes"], device)
    x = numbers(8, 3, dtype=torch.float64, device=device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, 8)

    def run(parameters, buffers):
        given = (x, adjacency, graph_of_node, 6)
        return tuple(functional_call(skeleton, (parameters, buffers), given))

    out = torch.vmap(run)(parameters, buffers)
    sum(result.square().sum() for result in out).backward()
    for i, layer in enumerate(layers):
        alone = layer(x, adjacency, graph_of_node, 6)
        torch.testing.assert_close(tuple(result[i] for result in out), tuple(alone))
        sum(result.square().sum() for result in alone).backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(triton):
    layer = module(device=triton.device).float()
    edge_index, graph_of_node = batch_of(BATCHES["ragged"], triton.device)
    x = numbers(16, 3, dtype=torch.float32, device=triton.device).requires_grad_()
    adjacency = pna.Adjacency.from_edge_index(edge_index, 16)

    def run():
        pooled = layer(x, adjacency, graph_of_node, 4)
        return *pooled, *torch.autograd.grad(sum(part.sum() for part in pooled), x)

    assert_captures(run, x)


def test_refuses():
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0], [1]]), 2)
    z, logits, graphs = torch.ones(2, F), torch.ones(2, C), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"got z of shape \(2, 3\) and logits of shape \(3, 4\)"):
        diff_pool(z, torch.ones(3, C), adjacency, graphs, 2)
    with pytest.raises(ValueError, match=r"got graph_of_node of.*shape \(1,\).*numbers \(2,\)"):
        diff_pool(z, logits, adjacency, graphs[:1], 2)
    with pytest.raises(ValueError, match="got graphs 0 to 1 in graph_of_node, expected 0 to 0"):
        diff_pool(z, logits, adjacency, graphs, 1)
    with pytest.raises(ValueError, match="got num_graphs=-1, expected a count of at least 0"):
        diff_pool(z, logits, adjacency, graphs, -1)
    with pytest.raises(ValueError, match=r"got a mask of dtype torch.float32 and shape \(2,\)"):
        diff_pool(z, logits, adjacency, graphs, 2, torch.ones(2))
    with pytest.raises(ValueError, match="got x with 1 rows and an adjacency of 2 senders"):
        diff_pool(z[:1], logits[:1], adjacency, graphs[:1], 1)
    with pytest.raises(ValueError, match="got clusters=0, expected at least 1"):
        ClusterReadout(3, 0)


def readout(seed=0, layers=2):
    torch.manual_seed(seed)
    return ClusterReadout(3, C, layers).double()


def test_clusters_pass_messages_and_are_summed():
    """By definition, in every graph, with means over the clusters' neighbours."""
    layer, batch = readout(), graphs(columns=3).batch()
    x = batch.x.double()
    pooled = layer.pool(x, batch.adjacency, batch.graph_of_node, len(SIZES))
    said, loss = layer(x, batch)
    for graph in range(len(SIZES)):
        states, links = pooled.x[graph], pooled.adjacency[graph]
        for linear in layer.layers:
            rows = [row / row.sum() if row.sum() > 0 else row for row in links]
            near = torch.stack([row @ states for row in rows])
            own, of_others = linear.weight[:, 3:], linear.weight[:, :3]
            states = states + torch.relu(near @ of_others.t() + states @ own.t() + linear.bias)
        torch.testing.assert_close(said[graph], states.sum(0))
    torch.testing.assert_close(loss, pooled.link_loss + pooled.entropy_loss)


def test_clusters_are_blind_to_padding():
    """What real graphs are given, and all gradients of it, with nodes and edges left over."""
    layer, made = readout(), graphs(columns=3)
    ids = [4, 0, 3]
    padded = PaddedBatches(made).batch(torch.tensor([*ids, -1]), Shape(4, 40, 60))
    found = []
    for batch in (padded, made.batch(ids)):
        weights = dict(layer.named_parameters())

        def run(batch=batch):
            said, loss = layer(batch.x.double(), batch)
            return torch.cat([said[:3], loss[:3, None]], 1)

        found.append(outcome(run, weights))
    assert padded.num_nodes == 40 and padded.num_graphs == 5
    assert_equal_in_norm(found[0], found[1], 1e-11)


def test_cluster_readouts_of_a_population():
    layers = [readout(seed) for seed in range(3)]
    parameters, buffers = stack_module_state(layers)
    batch = graphs(columns=3).batch()
    x = batch.x.double()

    def run(parameters, buffers):
        return functional_call(layers[0], (parameters, buffers), (x, batch))

    said, losses = torch.vmap(run)(parameters, buffers)
    (said.square().sum() + losses.square().sum()).backward()
    for i, layer in enumerate(layers):
        alone, loss = layer(x, batch)
        torch.testing.assert_close((said[i], losses[i]), (alone, loss))
        (alone.square().sum() + loss.square().sum()).backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)
