"""Every fast path, switched off: what runs without it gives the same outputs and gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pna
from pna import fast_paths
from pna.baselines.attention import attention
from pna.baselines.edge_features import to_slots
from pna.baselines.gates import gated_sum
from pna.baselines.neighbour_sum import neighbour_sum
from pna.bench.epochs import trainer_of
from pna.bench.molecules import molecules
from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.data.padded import PaddedBatches
from pna.fast_paths import FAST_PATHS, FastPath
from pna.nn import PNAConv
from pna.nn.architectures import Recurrent
from pna.ops.degree_linear import degree_linear
from pna.ops.edges import weighted_sum
from pna.population.batch_norm import Norm, batch_norm
from pna.population.dropout import dropout
from pna.population.gru import gru_cell
from pna.population.linears import linear
from pna.population.set2set import set2set
from pna.train.optimiser import Adam
from pna.train.settings import ModelSettings, Settings
from tests.conftest import DEVICE
from tests.ops.cases import Graph, random_edges

SOURCES = Path(pna.__file__).parent
USUAL = ("mean", "std", "max", "min")
SCALERS = ("identity", "amplification", "attenuation")

SPARSE = Graph(random_edges(20, 9, 9), 9)
DENSE = Graph(random_edges(60, 4, 4), 4)  # more than eight edges for each node, none of them long
MANY = Graph(random_edges(700, 600, 600), 600)  # many nodes of each degree

Outcome = list[Tensor]
Case = Callable[[torch.device], Outcome]


def normal(device: torch.device, seed: int, *shape: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(device).requires_grad_()


def outcome(out: Tensor, *leaves: Tensor) -> Outcome:
    """The output, then the gradients of the leaves, from above with one that differs everywhere."""
    above = torch.linspace(-1, 2, out.numel(), device=out.device).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, above.to(out.dtype))]


def of_aggregate(graph: Graph = SPARSE, table: bool = False) -> Case:
    def run(device: torch.device) -> Outcome:
        adjacency = graph.exact_adjacency(device)
        x, types = normal(device, 0, adjacency.num_senders, 3), normal(device, 1, 3, 3)
        index = torch.arange(adjacency.num_edges, device=device) % 3
        edge = (types, index) if table else None
        out = pna.aggregate(x, adjacency, USUAL, edge)
        return outcome(out, x, *([types] if table else []))

    return run


def of_degree_linear(width: int, outputs: int, factors: int = 3, nodes: int = 40) -> Case:
    def run(device: torch.device) -> Outcome:
        edges = [(i, (i * k + 1) % nodes) for k in (1, 1, 0) for i in range(nodes - k * nodes // 2)]
        adjacency = Graph([(j % nodes, i) for i, j in edges], nodes).adjacency(device)
        z, weight = (
            normal(device, 0, nodes, 2, 1, width),
            normal(device, 1, factors, 1, 2 * width, outputs),
        )
        share = torch.rand(nodes, factors, generator=torch.Generator().manual_seed(2)).to(device)
        out = degree_linear(z, weight, share[adjacency.degree], adjacency)
        return outcome(out, z, weight)

    return run


def of_layer(
    channels: int = 4, call: Callable[[PNAConv], Callable[..., Tensor]] = lambda conv: conv,
    edge_types: int = 0, edge_features: int = 0, graph: Graph = SPARSE, **arguments: object,
) -> Case:  # fmt: skip
    def run(device: torch.device) -> Outcome:
        adjacency = graph.adjacency(device)
        torch.manual_seed(0)
        deg = torch.bincount(adjacency.degree.cpu())
        given = dict(arguments) | ({"edge_dim": 3} if edge_types or edge_features else {})
        conv = PNAConv(channels, channels, list(USUAL), list(SCALERS), deg, **given).to(device)
        x = normal(device, 0, adjacency.num_receivers, channels)
        table = normal(device, 1, max(edge_types, 1), 3)
        index = torch.arange(adjacency.num_edges, device=device) % max(edge_types, 1)
        edge = ((table, index),) if edge_types else ()
        if edge_features:
            table = normal(device, 1, adjacency.num_edges, 3)
            edge = (table,)
        leaves = (x, *([table] if edge else []), *conv.parameters())
        return outcome(call(conv)(x, adjacency, *edge), *leaves)

    return run


def of_attention(device: torch.device) -> Outcome:
    values, scores = normal(device, 0, 9, 2, 3), normal(device, 1, 9, 2, 2)
    return outcome(attention(values, scores, SPARSE.adjacency(device), 0.2), values, scores)


def of_gates(device: torch.device) -> Outcome:
    terms = [normal(device, seed, 9, 3) for seed in range(3)]
    out, state = gated_sum(*terms, SPARSE.adjacency(device))
    return outcome(torch.cat([out, state]), *terms)


def of_build(device: torch.device) -> Outcome:
    """All arrays but those of long rows: there are none, and their spare entries may differ."""
    adjacency = SPARSE.adjacency(device)
    arrays = [adjacency.edge_ids, adjacency.out_ranks, adjacency.by_degree, adjacency.degree]
    for rows in (adjacency.incoming, adjacency.outgoing):
        arrays += [rows.indptr, rows.neighbours, rows.long_rank, rows.order]
    return [torch.cat(arrays).double()]


def of_neighbour_sum(device: torch.device) -> Outcome:
    x, factor = normal(device, 0, 9, 3), normal(device, 1, 9).detach()
    return outcome(neighbour_sum(x, SPARSE.adjacency(device), factor), x)


def of_small_tables(device: torch.device) -> Outcome:
    adjacency, table = SPARSE.adjacency(device), normal(device, 0, 4, 6)
    index = torch.arange(adjacency.num_edges, device=device) % 4
    return outcome(to_slots((table, index), adjacency), table)


def of_edges(features: int) -> Case:
    def run(device: torch.device) -> Outcome:
        adjacency = SPARSE.adjacency(device)
        x = normal(device, 0, 9, 2, features)
        weights = normal(device, 1, adjacency.num_edges, 2)
        return outcome(weighted_sum(x, weights, adjacency), x, weights)

    return run


def of_linear(inputs: int, outputs: int) -> Case:
    def run(device: torch.device) -> Outcome:
        given = normal(device, 0, 5, inputs), normal(device, 1, outputs, inputs)
        bias = normal(device, 2, outputs)
        return outcome(linear(*given, bias), *given, bias)

    return run


def of_gru(device: torch.device) -> Outcome:
    given = [
        normal(device, k, *shape)
        for k, shape in enumerate([(6, 4), (6, 4), (12, 4), (12, 4), (12,), (12,)])
    ]
    return outcome(gru_cell(*given[:2], given[2:]), *given)


def of_set2set(width: int) -> Case:
    def run(device: torch.device) -> Outcome:
        indptr, steps = torch.tensor([0, 3, 7], device=device), torch.tensor([2, 3], device=device)
        shapes = [
            (7, width),
            (4 * width, 2 * width),
            (4 * width, width),
            (4 * width,),
            (4 * width,),
        ]
        x, *weights = (normal(device, k, *shape) for k, shape in enumerate(shapes))
        return outcome(set2set(x, indptr, steps, *weights, 3), x, *weights)

    return run


def of_batch_norm(device: torch.device) -> Outcome:
    x, weight, bias = normal(device, 0, 6, 3), normal(device, 1, 3), normal(device, 2, 3)
    real = torch.tensor([True] * 5 + [False], device=device)
    mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
    out = batch_norm(x, real, Norm(weight, bias, mean, var, 0.1, 1e-5))
    return [*outcome(out, x, weight, bias), mean, var]


def of_dropout(device: torch.device) -> Outcome:
    x, number = normal(device, 0, 6, 3), torch.tensor(5, device=device)
    return outcome(dropout(x, 0.5, number, number), x)


def of_adam(device: torch.device) -> Outcome:
    weights, grad = normal(device, 0, 2, 5).detach(), normal(device, 1, 2, 5).detach()
    adam = Adam(weights, None, False)
    rates = torch.tensor([0.1, 0.01], device=device)
    alive = torch.ones(2, dtype=torch.bool, device=device)
    for _ in range(2):
        adam.step(weights, grad, rates, rates, grad[:, :1], alive, ~alive)
    return [weights, adam.mean, adam.square]


def of_padded(device: torch.device) -> Outcome:
    """What is summed over neighbours in a padded batch of molecules."""
    graphs = molecules(4).to(device)
    padded = PaddedBatches(graphs)
    (shape, *_) = padded.shapes(2)[::-1]
    ids = shape.arrange(
        torch.tensor([2, 0]).numpy(),
        graphs.sizes[[2, 0]].numpy(),
        graphs.edge_counts[[2, 0]].numpy(),
    )
    assert ids is not None
    batch = padded.batch(torch.from_numpy(ids).to(device), shape)
    assert batch.x is not None and batch.y_graph is not None
    adjacency = batch.adjacency
    by_degree = adjacency.degree[adjacency.by_degree.long()]
    out = pna.aggregate(batch.x.float(), adjacency, ["sum", "max"])
    return [out, batch.y_graph, batch.sizes, batch.graph_of_node, by_degree]


def recurrent(graphs: GraphSet, **arguments: object) -> Recurrent:
    """As little of the recurrent model as has a recurrence: no targets of nodes, no Set2Set."""
    deg = torch.bincount(graphs.degree.long())
    torch.manual_seed(0)
    return Recurrent("pna", 2, 4, 0, 1, readout="sum", deg=deg, **arguments)


def of_recurrent(device: torch.device) -> Outcome:
    """Two steps on one graph."""
    graphs = multitask(0, "published", sizes=(4,), counts={"train": 1, "validation": 0, "test": 0})
    model = recurrent(graphs, depth=3).to(device)
    read = model(graphs.to(device).batch([0])).graph
    return outcome(read, *model.again.parameters(), *model.gru.parameters())


def of_fronts(device: torch.device) -> Outcome:
    """A padded batch of graphs that take two and three steps."""
    counts = {"train": 1, "validation": 0, "test": 0}
    graphs = multitask(0, "published", sizes=(4, 6), counts=counts)
    model, graphs = recurrent(graphs).to(device), graphs.to(device)
    padded = PaddedBatches(graphs)
    shape = padded.shapes(2, model.levels(4, 6))[-1]
    ids = shape.arrange(np.arange(2), graphs.sizes.numpy(), graphs.edge_counts.numpy())
    assert ids is not None
    batch = padded.batch(torch.from_numpy(ids).to(device), shape)
    assert batch.real is not None and batch.graph_ids is not None
    (places,) = batch.real.nonzero(as_tuple=True)
    in_order = places[batch.graph_ids[places].argsort()]
    return outcome(model(batch).graph[in_order], *model.again.parameters())


def of_trainer(device: torch.device) -> Outcome:
    """Weights after some epochs, in the third of which steps are captured."""
    counts = {"train": 2, "validation": 1, "test": 0}
    graphs = multitask(0, "published", sizes=(4, 7), counts=counts)
    model = ModelSettings(hidden=8, arguments={"towers": 2})
    settings = Settings(batch_size=4, shuffle=False, patience=None)
    parts = graphs.split("train"), graphs.split("validation")
    trainer = trainer_of(*parts, model, settings, "mse", device)
    for epoch in range(4):
        trainer.run_epoch(epoch)
    return [trainer.population.flat.detach().clone()]


LAYER = of_layer()


def of_few_nodes(device: torch.device) -> Outcome:
    with fast_paths.without("small"):
        return LAYER(device)


CASES: dict[str, Case] = {
    "build": of_build,
    "cpu": of_aggregate(),
    "statistics": of_aggregate(),
    "short_rows": of_aggregate(),
    "sums_by_kind": of_aggregate(table=True),
    "kind_gradient": of_aggregate(DENSE, table=True),
    "add_up": of_aggregate(DENSE, table=True),
    "edges": of_edges(3),
    "degree_linear": of_degree_linear(3, 4),
    "degree_groups": of_degree_linear(64, 64, nodes=700),
    "narrow_linear": of_degree_linear(3, 4),
    "scaled_linear": of_degree_linear(70, 4),
    "degree_spread": of_degree_linear(70, 4),
    "wide_linear": of_degree_linear(70, 70, factors=1),
    "factors": LAYER,
    "split": LAYER,
    "fused": LAYER,
    "small": LAYER,
    "small_cpu": LAYER,
    "grouped": of_layer(graph=MANY),
    "few_nodes": of_few_nodes,
    "divided": of_layer(towers=2, divide_input=True),
    "edge_products": of_layer(edge_features=3),
    "joined_towers": of_layer(call=lambda conv: conv.prepared(), towers=2),
    "prepared": of_layer(call=lambda conv: conv.prepared()),
    "attention": of_attention,
    "gates": of_gates,
    "neighbour_sum": of_neighbour_sum,
    "small_tables": of_small_tables,
    "linears": of_linear(4, 6),
    "gru": of_gru,
    "recurrence": of_recurrent,
    "fronts": of_fronts,
    "set2set": of_set2set(8),
    "set2set_cpu": of_set2set(8),
    "batch_norm": of_batch_norm,
    "dropout": of_dropout,
    "adam": of_adam,
    "capture": of_trainer,
    "streams": of_trainer,
    "assemble": of_padded,
    "ranking": of_padded,
}

#: What Triton's interpreter cannot stand for.
NEEDS_A_GPU = ("capture", "streams")

BOTH_SIDES = [(name, device) for name, path in FAST_PATHS.items() for device in path.devices]


@pytest.mark.parametrize(("name", "device"), BOTH_SIDES)
def test_a_path_that_is_off_changes_nothing_but_time(name: str, device: str) -> None:
    """Fails too if the path is not asked for: a switch that is not wired switches nothing.

    The recurrent model takes some seconds in Triton's interpreter.
    """
    if device == "cuda" and name in NEEDS_A_GPU and DEVICE.type != "cuda":
        pytest.skip("needs a GPU")
    where, chosen = (torch.device("cpu"), "cpu") if device == "cpu" else (DEVICE, "triton")
    with pna.backend(chosen) if name not in NEEDS_A_GPU else nullcontext():
        with fast_paths.queried() as queried:
            expected = CASES[name](where)
        with fast_paths.without(name), fast_paths.queried() as queried_without:
            got = CASES[name](where)
    assert name in queried
    assert queried_without.isdisjoint(FAST_PATHS[name].needed_by)
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(float(theirs.abs().max()), 1e-6)
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=2e-5)


def test_every_path_has_a_case() -> None:
    assert set(CASES) == set(FAST_PATHS)


def test_every_path_is_asked_for_in_its_file_and_nothing_else_is() -> None:
    queried: dict[str, set[str]] = {}
    for source in SOURCES.rglob("*.py"):
        for name in re.findall(r'fast_paths\.is_on\("(\w+)"\)', source.read_text()):
            queried.setdefault(name, set()).add(str(source.relative_to(SOURCES)))
    assert set(queried) == set(FAST_PATHS)
    for name, path in FAST_PATHS.items():
        assert path.file in queried[name], name


def test_needed_by_names_paths_and_runs_on_their_devices() -> None:
    for path in FAST_PATHS.values():
        for name in path.needed_by:
            assert set(path.devices) & set(FAST_PATHS[name].devices), name


def test_an_entry_that_is_not_whole_is_refused() -> None:
    with pytest.raises(TypeError):
        FastPath(("cpu",), "ops/cpu.py", "Something.")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="devices"):
        FastPath(("tpu",), "ops/cpu.py", "Something.", ())
    with pytest.raises(ValueError, match="full stop"):
        FastPath(("cpu",), "ops/cpu.py", "Something", ())


def test_a_path_is_off_inside_the_block_alone() -> None:
    with fast_paths.without("cpu", "gru"):
        assert not fast_paths.is_on("cpu") and not fast_paths.is_on("gru")
        with fast_paths.without("adam"):
            assert not fast_paths.is_on("cpu") and not fast_paths.is_on("adam")
        assert fast_paths.is_on("adam")
    assert fast_paths.is_on("cpu")


def test_an_unknown_path_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="unknown fast path 'few_node'"),
        fast_paths.without("few_node"),
    ):
        pass


def test_what_is_asked_inside_is_heard_outside_too() -> None:
    with fast_paths.queried() as outer:
        with fast_paths.queried() as inner:
            fast_paths.is_on("gru")
        fast_paths.is_on("cpu")
    assert inner == {"gru"} and outer == {"gru", "cpu"}
