"""Sampled neighbours against an oracle of plain Python, and their distribution."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from itertools import chain, permutations

import numpy as np
import pytest
import torch

from pna import DegreeStats, GraphSet
from pna.data import NeighbourBatches, NodeGraph
from pna.data.neighbours import entries_at_once, entries_in_turn, shuffled
from pna.nn import PNAConv, Stacked, Standard
from pna.ops.hashing import scramble


def random_graph(nodes=40, edges=160, seed=0, loops=True):
    """With repeated edges, self-loops, a hub, and nodes without edges."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, nodes - 3, (2, edges))
    index[1, : edges // 4] = 5
    if not loops:
        index[0] = np.where(index[0] == index[1], (index[1] + 1) % (nodes - 3), index[0])
    y = rng.random((nodes, 2))
    y[::2] = np.nan
    return GraphSet.from_arrays(
        [nodes],
        index,
        [edges],
        x=rng.random((nodes, 3)),
        edge_attr=np.arange(2 * edges, dtype=float).reshape(edges, 2),
        y_node=y,
    )


def with_labels(graphs):
    """Some pairs of nodes to predict: repeated, turned round, and a node with itself."""
    ends = torch.tensor([[1, 2], [2, 1], [1, 2], [7, 7], [39, 5], [5, 1], [9, 20]])
    return replace(
        graphs,
        y_node=None,
        node_targets=(),
        label_offsets=torch.tensor([0, len(ends)]),
        label_ends=ends.int(),
        label_attr=torch.arange(14.0).view(7, 2),
        y_edge=torch.arange(7.0)[:, None],
        edge_targets=("y",),
    )


def wrapped(number):
    """As int64."""
    return (number + 2**63) % 2**64 - 2**63


def hashed(number):
    """`scramble` with Python's integers."""
    golden, mix = 0x1E3779B97F4A7C15, 0x45D9F3B3335B369
    number = wrapped((number + 1) * golden)
    for shift in (29, 32):
        number = wrapped((number ^ (number >> shift)) * mix)
    return number ^ (number >> 30)


def neighbours_of(graphs, node, count, seed, epoch):
    """The edges that a node receives from, by a shuffle of all of them."""
    start = int(graphs.degree.long()[:node].sum())
    edges = list(range(start, start + int(graphs.degree[node])))
    key = hashed(wrapped(node + hashed(wrapped(hashed(seed) + epoch))))
    for i in range(min(count, len(edges))):
        bits = hashed(wrapped(key + i * 0x1E3779B97F4A7C15)) & (2**62 - 1)
        other = i + bits % (len(edges) - i)
        edges[i], edges[other] = edges[other], edges[i]
    return edges[:count]


def edges_of(batch, layer):
    """Sender, receiver and index of every edge of a layer, in numbers of the whole graph."""
    adjacency = batch.layers[layer].adjacency
    senders, receivers = batch.nodes[adjacency.edge_index.long()].tolist()
    ids = batch.layers[layer].edge_ids.tolist()
    return list(zip(senders, receivers, ids, strict=True))


@pytest.mark.parametrize("fan_out", [(3, 2), (2, 3), (4, 1, 2), (50,)])
def test_as_the_oracle(fan_out):
    """Every layer has the first edges of every node that the next layer needs."""
    graphs = random_graph()
    senders = graphs.senders.tolist()
    batches = NeighbourBatches(graphs, fan_out, 6, seed=7)
    for batch in batches.epoch(3):
        needed = batch.nodes[: batch.num_seeds].tolist()
        for layer, count in zip(reversed(range(len(fan_out))), fan_out, strict=True):
            sampled = batch.layers[layer]
            assert batch.nodes[: sampled.adjacency.num_receivers].tolist() == needed
            expected = [
                (senders[edge], node, edge)
                for node in needed
                for edge in neighbours_of(graphs, node, count, 7, 3)
            ]
            assert edges_of(batch, layer) == expected
            new = dict.fromkeys(sender for sender, _, _ in expected)
            needed += [node for node in new if node not in needed]
            assert batch.nodes[: sampled.adjacency.num_senders].tolist() == needed
            own = graphs.degree.long()[torch.tensor(needed)]
            assert torch.equal(sampled.degree, own)
            assert torch.equal(
                sampled.adjacency.degree.long(), own[: len(sampled.adjacency.degree)]
            )
            assert torch.equal(sampled.edge_attr, graphs.edge_attr[sampled.edge_ids])
        assert batch.nodes.tolist() == needed
        assert torch.equal(batch.x, graphs.x[batch.nodes])
        assert torch.equal(batch.y_node, graphs.y_node[batch.nodes[: batch.num_seeds]])


def test_an_epoch_has_every_node_with_a_target_once():
    batches = NeighbourBatches(random_graph(), (2,), 6)
    assert len(batches) == 4
    first, second = ([b.nodes[: b.num_seeds].tolist() for b in batches] for _ in range(2))
    assert [len(seeds) for seeds in first] == [6, 6, 6, 2]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(1, 40, 2))
    assert first != second
    batches.next_epoch = 0
    assert [b.nodes[: b.num_seeds].tolist() for b in batches] == first


def test_a_sample_does_not_depend_on_the_batch():
    """Also not on the hop: the smaller sample of a node is the beginning of the larger one."""
    graphs = random_graph()
    batches = NeighbourBatches(graphs, (4, 2), 1)
    alone = {node: edges_of(batches.sample(torch.tensor([node]), 2), 1) for node in range(40)}
    for size in (1, 7, 40):
        for seeds in torch.randperm(40, generator=torch.Generator().manual_seed(0)).split(size):
            batch = batches.sample(seeds, 2)
            assert edges_of(batch, 1) == [*chain(*(alone[node] for node in seeds.tolist()))]
            for node in batch.nodes[: batch.layers[0].adjacency.num_receivers].tolist():
                own = [edge for edge in edges_of(batch, 0) if edge[1] == node]
                assert own == alone[node][:2]


def test_small_neighbourhoods_are_whole():
    graphs = random_graph()
    degree = graphs.degree.long()
    batch = NeighbourBatches(graphs, (3,), 40, nodes=torch.arange(40)).sample(torch.arange(40), 0)
    counts = Counter(receiver for _, receiver, _ in edges_of(batch, 0))
    edges = [edge for _, _, edge in edges_of(batch, 0)]
    assert len(set(edges)) == len(edges)  # none twice; edges that are repeated in the graph may be
    assert [counts[node] for node in range(40)] == degree.clamp(max=3).tolist()
    assert degree.min() == 0 and degree.max() > 40  # isolated nodes and a hub


@pytest.mark.parametrize("most", [1, 2, 7, 16])
def test_entries_at_once_are_those_in_turn(most):
    """Also where sizes are small, so that most steps swap places that were swapped before."""
    sizes = torch.randint(most, 2 * most + 1, (500,), generator=torch.Generator().manual_seed(0))
    steps = torch.arange(most)[:, None]
    other = steps + scramble(steps * 500 + torch.arange(500)) % (sizes - steps)
    assert torch.equal(entries_at_once(other), entries_in_turn(other))


def chi_square(counts, expected):
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


def test_samples_are_uniform():
    """All 120 beginnings of a permutation of 6 are as frequent, within 5 deviations."""
    draws = 120_000
    keys = scramble(torch.arange(draws))
    found = shuffled(keys, torch.full((draws,), 6), 3)
    counts = Counter(map(tuple, found.T.tolist()))
    assert counts.keys() == set(permutations(range(6), 3))
    assert chi_square(list(counts.values()), draws / 120) < 119 + 5 * (2 * 119) ** 0.5


def test_samples_of_seeds_epochs_and_nodes_are_uniform_and_independent():
    """Two neighbours of 5 of each node, in pairs of two epochs, seeds or nodes: 20 × 20 cases."""
    nodes, epochs = 300, 40
    index = np.stack([np.arange(5 * nodes) % nodes, np.arange(5 * nodes) // 5])
    graphs = GraphSet.from_arrays([nodes], index, [5 * nodes], y_node=np.zeros((nodes, 1)))
    found = []
    for seed in (0, 1):
        batches = NeighbourBatches(graphs, (2,), nodes, seed=seed)
        for epoch in range(epochs):
            edges = batches.sample(torch.arange(nodes), epoch).layers[0].edge_ids.view(nodes, 2)
            pair = edges - 5 * torch.arange(nodes)[:, None]
            found.append(pair[:, 0] * 5 + pair[:, 1])
    case = torch.stack(found).view(2, epochs, nodes)
    for one, other in (
        (case[0], case[1]),
        (case[:, ::2], case[:, 1::2]),
        (case[..., ::2], case[..., 1::2]),
    ):
        joint = torch.bincount((one * 25 + other).flatten(), minlength=625).view(25, 25)
        own = [i for i in range(25) if i // 5 != i % 5]
        rest = joint.sum() - joint[own][:, own].sum()
        assert int(rest) == 0  # no neighbour twice
        expected = float(joint.sum()) / 400
        assert chi_square(joint[own][:, own].flatten(), expected) < 399 + 5 * (2 * 399) ** 0.5


@pytest.mark.parametrize("make", [Stacked, Standard])
@pytest.mark.parametrize("name", ["pna", "gcn", "gin", "gat", "sage", "monet", "pna-simple"])
def test_all_neighbours_give_the_output_of_the_whole_graph(make, name):
    graphs = random_graph(loops=False)  # which GCN counts only if they were sampled
    edges = {} if name in ("gcn", "sage", "pna-simple") else {"edge_dim": 2}
    if make is Stacked and edges:
        edges = {"edge_columns": 2}
    degrees = DegreeStats.from_degrees(graphs.degree.long())
    model = make(name, 3, 8, 2, 0, layers=2, deg=degrees, **edges).double().eval()
    expected = model(graphs.batch()).node
    for batch in NeighbourBatches(graphs, (50, 50), 7):
        seeds = batch.nodes[: batch.num_seeds]
        assert torch.allclose(model(batch).node, expected[seeds], rtol=1e-9, atol=1e-9)


def test_gradients_of_a_sampled_batch():
    """Against torch's differences; the weights of both layers, and features of all hops."""
    graphs = random_graph(12, 30)
    batch = next(iter(NeighbourBatches(graphs, (2, 2), 3)))
    stats = DegreeStats.from_degrees(graphs.degree.long())
    convs = [PNAConv(3, 3, ["mean", "std"], ["identity", "amplification"], stats).double()
             for _ in range(2)]  # fmt: skip

    def out(x):
        for conv, layer in zip(convs, batch.layers, strict=True):
            x = conv((x, x[: layer.adjacency.num_receivers]), layer.adjacency)
        return x

    x = batch.x.clone().requires_grad_()
    assert out(x).shape == (3, 3)
    assert torch.autograd.gradcheck(out, x)


def test_seeds_are_the_ends_of_labelled_edges():
    graphs = with_labels(random_graph())
    batches = NeighbourBatches(graphs, (3, 2), 3, shuffle=False)
    assert len(batches) == 3 and batches.edges.tolist() == list(range(7))
    for start, batch in zip((0, 3, 6), batches, strict=True):
        edges = torch.arange(start, min(start + 3, 7))
        ends = graphs.label_ends[edges].long()
        seeds = [*dict.fromkeys(ends.flatten().tolist())]
        assert batch.nodes[: batch.num_seeds].tolist() == seeds
        assert torch.equal(batch.nodes[batch.labels.edge_index.long()], ends.t())
        assert torch.equal(batch.y_edge, graphs.y_edge[edges])
        assert torch.equal(batch.label_attr, graphs.label_attr[edges])
        alone = batches.sample(torch.tensor(seeds), 0)
        assert edges_of(batch, 0) == edges_of(alone, 0)
    none = batches.sample_edges(torch.zeros(0, dtype=torch.int64), 0)
    assert none.num_seeds == 0 and none.labels.num_edges == 0
    assert NeighbourBatches(graphs, (1,), edges=[4, 2]).edges.tolist() == [4, 2]


@pytest.mark.parametrize("make", [Stacked, Standard])
def test_all_neighbours_give_the_predictions_of_edges_in_the_whole_graph(make):
    graphs = with_labels(random_graph())
    edges = {"edge_columns": 2} if make is Stacked else {"edge_dim": 2}
    degrees = DegreeStats.from_degrees(graphs.degree.long())
    model = make("pna", 3, 8, 0, 0, layers=2, deg=degrees, edge_targets=1, **edges).double().eval()
    expected = model(graphs.batch()).edge
    got = [model(batch).edge for batch in NeighbourBatches(graphs, (50, 50), 3, shuffle=False)]
    assert torch.allclose(torch.cat(got), expected, rtol=1e-9, atol=1e-9)


def test_a_node_graph_and_no_seeds():
    nx = pytest.importorskip("networkx")
    graph = NodeGraph.from_networkx(
        nx.karate_club_graph(), target="club", random_split=(0.5, 0.25, 0.25)
    )
    batches, training = NeighbourBatches(graph, (3, 2)), graph.nodes.part("train")
    assert batches.nodes.tolist() == training.nonzero()[:, 0].tolist() and len(batches) == 1
    none = batches.sample(torch.zeros(0, dtype=torch.int64), 0)
    assert none.num_seeds == none.num_nodes == 0 and len(none.layers) == 2
    with pytest.raises(
        ValueError, match=r"several splits \(train, validation, test\), expected th"
    ):
        NeighbourBatches(graph.graph_set(), (3, 2))
    some = NeighbourBatches(graph.graph_set(), (3, 2), nodes=training)
    assert some.nodes.tolist() == batches.nodes.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(fan_out=(3, 0)), r"got sample=3, 0, expected a number of in-neighbours for each"),
        (dict(fan_out=()), "got sample=nothing, expected"),
        (dict(fan_out=(1.5,)), "got sample=1.5, expected"),
        (dict(fan_out=(1001,)), "from 1 to 1,000"),
        (dict(batch_size=0), "got batch_size=0, expected at least 1"),
        (dict(nodes=torch.tensor([3, 40])), "got seed node 40, expected nodes from 0 to 39"),
        (dict(nodes=torch.ones(39).bool()), r"expected a mask \(40,\), or indices"),
        (dict(nodes=torch.ones(40)), r"expected a mask \(40,\), or indices"),
        (dict(edges=[7]), "got edges for a graph without labelled edges, expected some"),
        (dict(graph=with_labels(random_graph()), edges=[7]), "got seed edge 7, .* from 0 to 6"),
        (dict(nodes=[1], edges=[1]), "got nodes and edges as seeds, expected one"),
        (
            dict(graph=GraphSet.concat([random_graph()] * 2)),
            "got 2 graphs to sample .* expected one",
        ),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        NeighbourBatches(**({"graph": random_graph(), "fan_out": (3, 2)} | change))


def test_moving_a_batch_moves_its_layers():
    batch = next(iter(NeighbourBatches(random_graph(), (2, 2), 4)))
    moved = batch.to("meta")
    assert moved.layers[1].adjacency.senders.is_meta and moved.nodes.is_meta
    assert moved.num_seeds == batch.num_seeds


@pytest.mark.gpu
def test_a_gpu_makes_the_same_batches():
    graphs = random_graph(200, 2000)
    on_gpu = NeighbourBatches(graphs.to("cuda"), (4, 2, 3), 16)
    for batch, expected in zip(on_gpu, NeighbourBatches(graphs, (4, 2, 3), 16), strict=True):
        assert batch.nodes.is_cuda and torch.equal(batch.nodes.cpu(), expected.nodes)
        assert torch.equal(batch.y_node.cpu(), expected.y_node)
        for layer, own in zip(batch.layers, expected.layers, strict=True):
            assert torch.equal(layer.edge_ids.cpu(), own.edge_ids)
            assert torch.equal(layer.adjacency.senders.cpu(), own.adjacency.senders)
            assert torch.equal(layer.adjacency.degree.cpu(), own.adjacency.degree)


@pytest.mark.gpu
def test_a_gpu_is_waited_for_once_per_hop():
    batches = NeighbourBatches(random_graph(200, 2000).to("cuda"), (4, 2, 3), 16)
    seeds = torch.arange(16).cuda()
    batches.sample(seeds, 0)  # kernels are compiled
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            batches.sample(seeds, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert 1 <= len(waits) <= 1 + 3  # and once for the edges of the seeds


@pytest.mark.gpu
def test_a_batch_stays_while_a_slow_step_uses_it():
    """Batches are made on another stream, ahead of the steps."""
    graphs = random_graph(20_000, 200_000).to("cuda")
    batches, work = NeighbourBatches(graphs, (4, 2, 3), 500), torch.rand(2048, 2048, device="cuda")

    def digest(batch):
        ends = [part for layer in batch.layers for part in layer.adjacency.edge_index]
        return torch.stack([part.double().sum() for part in (batch.x, batch.nodes, *ends)])

    found = []
    for batch in batches.epoch(0):
        for _ in range(20):  # the GPU falls behind the host
            work = torch.linalg.matrix_norm(work @ work) / work.numel() * torch.rand_like(work)
        found.append(digest(batch))
    torch.cuda.synchronize()
    for got, batch in zip(found, batches.epoch(0), strict=True):
        torch.cuda.synchronize()
        assert torch.equal(got, digest(batch))
