"""ZINC-12k: from arrays of two small molecules, and the benchmark itself."""

import json

import numpy as np
import pytest
import torch

from pna.data import zinc as module
from pna.data.zinc import from_arrays, zinc
from tests.data.benchmarks import folder_of, serving
from tests.data.graph_sets import assert_same


def test_both_directions_of_every_bond():
    two = {  # a chain of three atoms, and a pair
        "num_nodes": np.array([3, 2], np.uint8),
        "num_bonds": np.array([2, 1], np.uint8),
        "atom_type": np.array([0, 5, 1, 2, 27], np.uint8),
        "bond_src": np.array([0, 1, 0], np.uint8),
        "bond_dst": np.array([1, 2, 1], np.uint8),
        "bond_type": np.array([1, 3, 2], np.uint8),
        "target": np.array([0.5, -2], np.float32),
        "split": np.array([0, 2], np.uint8),
    }
    graphs = from_arrays(two)
    chain = graphs[0]
    found = {
        (sender, receiver, kind)
        for (sender, receiver), kind in zip(
            chain.edges.T.tolist(), chain.edge_attr[:, 0].tolist(), strict=True
        )
    }
    assert found == {(0, 1, 1), (1, 0, 1), (1, 2, 3), (2, 1, 3)}
    assert graphs.x[:, 0].tolist() == [0, 5, 1, 2, 27]
    assert graphs.y_graph[:, 0].tolist() == [0.5, -2]
    assert graphs.splits == ("train", "validation", "test")
    assert graphs.split_of_graph.tolist() == [0, 2]
    assert graphs.metadata["node_values"] == [28] and graphs.metadata["edge_values"] == [4]


@pytest.mark.parametrize(
    "changes",
    [
        {"y": []},
        {"y": "half"},
        {"node_feat": [[300]]},
        {"node_feat": [[-1]]},
        {"node_feat": [[0.5]]},
        {"node_feat": [[0]] * 256},
        {"edge_index": [[0, 1, 2], [1, 0]]},
        {"edge_index": [[0, 1], [1, 0]], "edge_attr": []},
        {"edge_attr": None},
        {"y": 10**400},
    ],
)
def test_a_line_that_is_no_molecule(changes):
    told = {"node_feat": [[0], [1]], "edge_index": [[0], [1]], "edge_attr": [[1]], "y": [0.5]}
    module._molecule(json.dumps(told).encode(), "line 1")
    with pytest.raises(ValueError, match="got no molecule in line 1"):
        module._molecule(json.dumps(told | changes).encode(), "line 1")


@pytest.fixture(scope="module")
def arrays():
    (file,) = module.SOURCES["zinc"].files
    return module.unpack(file.name, module.read(file, folder_of("zinc")), module._ARRAYS)


@pytest.fixture(scope="module")
def graphs():
    return zinc(folder_of("zinc"))


def test_counts(graphs):
    sizes = {name: len(graphs.split(name)) for name in graphs.splits}
    assert sizes == {"train": 10_000, "validation": 1_000, "test": 1_000}
    assert (int(graphs.sizes.min()), int(graphs.sizes.max())) == (9, 37)


@pytest.mark.parametrize(
    "split, nodes, edges, mean, std",
    [
        ("train", 23.166, 49.856, 0.0153, 2.0108),
        ("validation", 23.083, 49.692, 0.0315, 1.9846),
        ("test", 23.117, 49.720, 0.0124, 2.0170),
    ],
)
def test_published_statistics(graphs, split, nodes, edges, mean, std):
    part = graphs.split(split)
    target = part.y_graph.double()
    assert float(part.sizes.double().mean()) == pytest.approx(nodes, abs=5e-4)
    assert float(part.edge_counts.double().mean()) == pytest.approx(edges, abs=5e-4)
    assert float(target.mean()) == pytest.approx(mean, abs=5e-5)
    assert float(target.std(correction=0)) == pytest.approx(std, abs=2e-4)


def test_the_heavy_tail_is_kept(graphs):
    assert float(graphs.y_graph.min()) == pytest.approx(-42.04, abs=5e-3)


def test_kinds(graphs):
    assert len(graphs.x.unique()) == 21 and len(graphs.split("train").x.unique()) == 21
    assert graphs.edge_attr.unique().tolist() == [1, 2, 3]
    assert not graphs.x.is_floating_point() and not graphs.edge_attr.is_floating_point()


def test_the_first_graph_is_that_of_pyg(graphs):
    first = graphs[0]
    assert (first.num_nodes, first.num_edges) == (29, 64)
    assert float(first.y_graph) == pytest.approx(0.8350355625152588)


def test_the_arrays_are_those_that_are_expected(arrays):
    assert module.digest(arrays) == module.CONTENT


def every_twentieth(arrays):
    taken = np.arange(len(arrays["split"])) % 20 == 0
    rows = {"atom": np.repeat(taken, arrays["num_nodes"])}
    rows["bond"] = np.repeat(taken, arrays["num_bonds"])
    return {name: values[rows.get(name[:4], taken)] for name, values in arrays.items()}


def test_out_of_all_that_is_published(arrays, tmp_path, monkeypatch):
    """Written as it is published, among others and in another order, it is the same to the bit."""
    arrays = every_twentieth(arrays)
    graphs = from_arrays(arrays)
    monkeypatch.setattr(module, "CONTENT", module.digest(arrays))
    names, rng = ("train", "val", "test"), np.random.default_rng(0)
    for name, split in zip(names, graphs.splits, strict=True):
        part = graphs.split(split)
        lines, places = ["{}"] * (3 * len(part)), rng.permutation(3 * len(part))[: len(part)]
        for place, graph in zip(places, (part[i] for i in range(len(part))), strict=True):
            order = rng.permutation(graph.num_edges)
            told = {
                "node_feat": graph.x.tolist(),
                "edge_index": graph.edges[:, order].tolist(),
                "edge_attr": graph.edge_attr[order].tolist(),
                "y": graph.y_graph.flatten().tolist(),
            }
            lines[place] = json.dumps(told)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        (tmp_path / f"{name}.index").write_text(",".join(map(str, places)) + "\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(tmp_path) as address:
        monkeypatch.setattr(module, "PUBLISHED", address + "/{}.jsonl")
        monkeypatch.setattr(module, "INDEX", address + "/{}.index")
        found = zinc("public")
    assert_same(found, graphs)


def test_bonds_go_both_ways(graphs):
    some = graphs[:500]
    assert torch.equal(some.degree, some.out_degree)
    for graph in (some[i] for i in range(0, 500, 50)):
        kinds = {tuple(e): k for e, k in zip(graph.edges.T.tolist(), graph.edge_attr, strict=True)}
        assert len(kinds) == graph.num_edges
        assert all(kinds[receiver, sender] == k for (sender, receiver), k in kinds.items())
