"""The benchmark as a whole: the same everywhere, with the splits and facts that it is known for."""

import hashlib

import numpy as np
import pytest
import torch

from pna.data.multitask import generate, multitask
from pna.data.multitask.families import FAMILIES

SMALL = {"train": 20, "validation": 4, "test": 8}


def small(seed=0, protocol="paper", **arguments):
    given = dict(sizes=(15, 16), counts=SMALL)
    return multitask(seed, protocol, **(given | arguments))


def fingerprint(graphs):
    """Of structure, types, sources and whole-numbered labels."""
    names = ("node_offsets", "edge_offsets", "senders", "receivers", "type_of_graph")
    whole = [getattr(graphs, name) for name in names]
    whole += [graphs.x[:, 0], graphs.y_node[:, :2], graphs.y_graph[:, :2]]
    digest = hashlib.sha256()
    for tensor in whole:
        digest.update(np.ascontiguousarray(tensor.numpy().astype("<i4")).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    "protocol, seed, expected, laplacian, radius",
    [
        ("paper", 0, "97d85e2478a487da", 1210.4, 338.074),
        ("paper", 1, "dd13ae07b8714fea", 1117.16, 321.699),
        ("published", 0, "e8d51ec4682adebc", 1154.04, 316.923),
    ],
)
def test_what_a_seed_stands_for_never_changes(protocol, seed, expected, laplacian, radius):
    """Written down once; a change of what a seed stands for is a new `generate.VERSION`."""
    graphs = small(seed, protocol)
    assert generate.VERSION == 1
    assert fingerprint(graphs) == expected
    assert float(graphs.y_node[:, 2].double().abs().sum()) == pytest.approx(laplacian, rel=1e-5)
    assert float(graphs.y_graph[:, 2].double().sum()) == pytest.approx(radius, rel=1e-5)


def test_neither_workers_nor_global_state_matter():
    np.random.seed(1)
    torch.manual_seed(1)
    alone = small(counts=SMALL | {"train": 300})
    np.random.seed(2)
    torch.manual_seed(2)
    many = small(counts=SMALL | {"train": 300}, workers=3)
    assert fingerprint(alone) == fingerprint(many)
    assert torch.equal(alone.x, many.x) and torch.equal(alone.y_graph, many.y_graph)


def test_graphs_are_drawn_again_with_other_inputs_and_their_targets():
    once, thrice = small(), small(draws=3)
    assert thrice.metadata["draws"] == 3 and "draws" not in once.metadata
    first = thrice[: len(once)]
    for name in ("x", "y_node", "y_graph"):
        assert torch.equal(getattr(first, name), getattr(once, name))
    train = once.split("train")
    for again in (thrice[len(once) :][: len(train)], thrice[len(once) + len(train) :]):
        assert torch.equal(again.senders, train.senders)
        assert torch.equal(again.receivers, train.receivers)
        assert torch.equal(again.y_graph, train.y_graph)
        assert torch.equal(again.y_node[:, 1], train.y_node[:, 1])  # eccentricities
        assert not torch.equal(again.x[:, 0], train.x[:, 0])
        source = again.x[:, 0] == 1
        assert source.sum() == len(again) and (again.y_node[source, 0] == 0).all()
    assert len(thrice) == len(once) + 2 * len(train)
    assert (thrice.node_scale, thrice.graph_scale) == (once.node_scale, once.graph_scale)
    with pytest.raises(ValueError, match="got draws=0"):
        small(draws=0)


def test_one_split_does_not_touch_another():
    few, later = small(), small(counts=SMALL | {"test": 9})
    assert few.split("train").sizes.tolist() == [15] * 20 + [16] * 20
    assert torch.equal(few.split("train").senders, later.split("train").senders)
    assert len(small(counts=SMALL | {"train": 276}).split("train")) == 2 * 276


def test_a_seed_is_a_whole_number():
    assert fingerprint(small(np.int64(1))) == fingerprint(small(1))
    with pytest.raises(TypeError):
        small(1.0)


def test_labels_are_of_the_features_that_are_kept():
    graphs = small(draws=2)
    for graph in graphs.to_pyg()[:10] + graphs.to_pyg()[-10:]:
        x = graph.x[:, 1].double()
        degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
        around = torch.zeros_like(x).index_add(0, graph.edge_index[1], x[graph.edge_index[0]])
        torch.testing.assert_close(
            graph.y_node[:, 2].double(), degree * x - around, rtol=1e-6, atol=1e-6
        )


def test_splits_sizes_and_names():
    graphs = small()
    assert graphs.splits == ("train", "validation", "test")
    assert len(graphs) == 2 * (20 + 4 + 8)
    assert graphs.types == tuple(family.name for family in FAMILIES)
    assert graphs.node_features == ("source", "feature")
    assert graphs.node_targets == ("sssp", "eccentricity", "laplacian")
    assert graphs.graph_targets == ("connected", "diameter", "spectral_radius")
    assert graphs.metadata["protocol"] == "paper" and graphs.metadata["seed"] == 0


def test_default_counts():
    parts = generate.MultitaskSettings().parts()
    totals = {}
    for part in parts:
        totals[part.split] = totals.get(part.split, 0) + part.count
    assert totals == {"train": 5120, "validation": 1280, "test": 2560}
    assert sorted({part.size for part in parts}) == list(range(15, 25))


def test_extrapolation():
    parts = generate.MultitaskSettings(extrapolation=True).parts()
    spans = {}
    for part in parts:
        spans.setdefault(part.split, []).append(part.size)
    assert spans["train"] == list(range(15, 25))
    assert spans["validation"] == list(range(25, 30))
    tests = [split for split in spans if split.startswith("test")]
    assert tests == [f"test {a}-{a + 4}" for a in (20, 25, 30, 35, 40, 45, 60, 75, 95)]
    assert spans["test 95-99"] == list(range(95, 100))


def test_a_test_for_each_type():
    graphs = small(types=True, counts=SMALL | {"test": 3})
    for family in FAMILIES:
        chosen = graphs.split(f"test {family.name}")
        assert len(chosen) == 6
        assert {graphs.types[i] for i in chosen.type_of_graph.tolist()} == {family.name}


def test_each_graph_has_one_source_and_features_between_0_and_1():
    graphs = small()
    for graph in graphs.to_pyg():
        assert graph.x[:, 0].sum() == 1
        assert ((graph.x[:, 1] >= 0) & (graph.x[:, 1] < 1)).all()


def test_other_tasks():
    graphs = small(tasks=["degree", "bipartite", "pagerank"])
    assert graphs.node_targets == ("degree", "pagerank")
    assert graphs.graph_targets == ("bipartite",)
    assert torch.equal(graphs.y_node[:, 0], graphs.degree.float())
    for graph in graphs.to_pyg():
        assert graph.y_node[:, 1].sum() == pytest.approx(1, abs=1e-5)


def test_progress_is_told():
    told = []
    small(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (64, 64) and told == sorted(told)


@pytest.fixture(scope="module")
def published():
    return multitask(0, "published")


def baseline(graphs):
    """log10 MSE of predicting the mean of training, for every target scaled by its maximum."""
    train, test = graphs.split("train"), graphs.split("test")
    logs = []
    for level, scale in (("y_node", graphs.node_scale), ("y_graph", graphs.graph_scale)):
        known, asked = (getattr(part, level) / torch.tensor(scale) for part in (train, test))
        logs += ((asked - known.mean(0)) ** 2).mean(0).log10().tolist()
    return logs


@pytest.mark.slow
def test_the_published_facts(published):
    """Half of the connected graphs called disconnected, mean degree 5.2, δ 1.52, and the average
    baseline's logs, within sampling error of 8,960 graphs."""
    train = published.split("train")
    stats = train.degree_stats()
    assert stats.mean == pytest.approx(5.2, abs=0.2)
    assert stats.mean_log == pytest.approx(1.52, abs=0.025)
    expected = [-1.87, -1.50, -1.58, -0.62, -1.30, -1.39]
    assert baseline(published) == pytest.approx(expected, abs=0.03)


@pytest.mark.slow
def test_about_half_of_the_published_connectivity_labels_are_wrong():
    """Generates two sets of graphs, with enough of them for a share, which takes seconds."""
    tasks = ["connected", "bipartite"]
    labels = multitask(3, "published", tasks=tasks, counts={"train": 256}).split("train").y_graph
    right = multitask(3, "published", tasks=["sssp", "connected"], counts={"train": 256})
    called = labels[:, 0].bool()
    truly = torch.tensor(
        [
            _is_connected(graph.edge_index, graph.num_nodes)
            for graph in right.split("train").to_pyg()
        ]
    )
    assert (called != truly).float().mean() == pytest.approx(0.49, abs=0.04)
    assert truly.float().mean() == pytest.approx(6323 / 7040, abs=0.03)


def _is_connected(edge_index, num_nodes):
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(edge_index.shape[1])
    matrix = coo_array((ones, edge_index.numpy()), shape=(num_nodes, num_nodes))
    return connected_components(matrix)[0] == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(protocol="paperr"), "unknown protocol 'paperr'.*'paper'"),
        (dict(tasks=["diametre"]), "unknown task 'diametre'.*'diameter'"),
        (dict(tasks=[]), "no tasks, expected some of sssp"),
        (dict(sizes=()), "no sizes, expected at least one"),
        (dict(sizes=(3,)), "a size of 3 nodes, expected 4 to 120"),
        (dict(sizes=(130,)), "a size of 130 nodes, expected 4 to 120.*isolated node"),
        (dict(sizes=(15, 15)), r"sizes \[15\] more than once"),
        (dict(counts={"train": 0}), "0 graphs to train, expected some"),
        (dict(counts={"train": -1}), "-1 graphs to train, expected 0 or more"),
        (dict(counts={"trian": 3}), "unknown split 'trian'.*'train'"),
        (dict(workers=0), "workers=0, expected at least 1"),
        (dict(mixture={"star": -1}), "share of -1 for star, expected a whole number"),
        (dict(mixture={}), "expected some of them above 0"),
        (dict(mixture={"moon": 1}), "unknown type of graph 'moon'"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        multitask(**arguments)
