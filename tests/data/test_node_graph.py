"""One graph is written, read back and checked."""

import dataclasses

import numpy as np
import pytest
import torch

from pna import GraphSet
from pna.data import GraphElements, NodeGraph, tensor_file
from pna.data.columns import Categories, Numbers
from pna.data.elements import ElementColumns
from pna.data.node_graph import KIND, VERSION, assemble, directions
from pna.data.texts import Texts


def made():
    """Four nodes and three edges, with everything that a graph may have."""
    numbers = Numbers(np.array([1, np.nan, 3, 4], np.float32))
    codes = Categories(np.array([0, 1, -1, 1], np.int32), ("a", "b"))
    values = Numbers(np.array([np.nan, 5, 7, 6], np.float32))
    split = np.array([[1, 1], [1, 3], [2, 1], [3, 2]], np.int8)
    nodes = ElementColumns(
        "node", 4, str, {"n": numbers, "c": codes},
        {"label": Categories(np.array([0, 1, 1, 0], np.int32), ("no", "yes")), "value": values},
        split, Texts.of([["α", "b", "", "d d"]]),
    )  # fmt: skip
    edges = ElementColumns("edge", 3, str, {"w": Numbers(np.array([1, 2, 3], np.float32))}, {})
    sends = directions(np.array([[0, 1, 2], [1, 2, 2]]), False, str)
    return assemble(nodes, edges, sends, {"title": "four", "source": ["here"]})


def assert_same(one, two):
    for f in dataclasses.fields(one):
        a, b = getattr(one, f.name), getattr(two, f.name)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a.nan_to_num(-9), b.nan_to_num(-9)), f.name
        elif isinstance(a, GraphElements):
            assert_same(a, b)
        elif f.name == "targets":
            for mine, other in zip(a, b, strict=True):
                assert_same(mine, other)
        elif isinstance(a, Texts):
            assert [*a] == [*b]
        else:
            assert a == b, f.name


@pytest.fixture
def path(tmp_path):
    made().save(tmp_path / "g.safetensors")
    return tmp_path / "g.safetensors"


def test_saved_and_loaded(path):
    graph = made()
    assert_same(graph, NodeGraph.load(path))
    assert [*graph.summary()] == [*NodeGraph.load(path).summary()]
    assert NodeGraph.verify(path) and repr(graph).startswith("NodeGraph(4 nodes, 3 edges, targets")
    with pytest.raises(FileExistsError):
        graph.save(path)
    graph.save(path, force=True)


def test_a_graph_without_edges_and_features(tmp_path):
    nodes = ElementColumns("node", 2, str, {}, {})
    empty = np.zeros((2, 0), np.int64)
    graph = assemble(
        nodes, ElementColumns("edge", 0, str, {}, {}), directions(empty, True, str), {}
    )
    graph.save(tmp_path / "g")
    assert_same(graph, NodeGraph.load(tmp_path / "g"))
    assert "nothing to train" in " ".join(graph.summary())


def test_the_wrong_kind_of_file(tmp_path):
    GraphSet.from_arrays([2], [[0], [1]], [1]).save(tmp_path / "set")
    with pytest.raises(ValueError, match=r"expected one of pna.NodeGraph; .* pna data graph"):
        NodeGraph.load(tmp_path / "set")


def with_tensor(name, change):
    def changed(tensors, facts):
        tensors[name] = change(tensors[name])

    return changed


def with_fact(where, name, value):
    def changed(tensors, facts):
        (facts[where] if where else facts)[name] = value

    return changed


def without(name):
    return lambda tensors, facts: tensors.pop(name)


@pytest.mark.parametrize(
    "change, words",
    [
        (with_tensor("edge_index", lambda t: t + 2), "edge_index has numbers that are not in 0"),
        (with_tensor("edge_index", lambda t: t.float()), "are not of the same edges"),
        (with_tensor("edge_index", lambda t: t.roll(1, 1)), "not every edge once"),
        (with_tensor("edge_row", lambda t: t[:-1]), "are not of the same edges"),
        (with_tensor("edge_row", lambda t: t * 0), "not every edge once"),
        (with_tensor("is_reverse", lambda t: ~t), "not every edge once"),
        (with_fact("", "directed", True), "not every edge once"),
        (with_fact("", "directed", 1), "directed of the header is 1, expected true or false"),
        (with_tensor("nodes.x", lambda t: t[:3]), r"nodes.x has shape \(3, 2\) .* expected \(4, 2"),
        (with_tensor("nodes.x", lambda t: t / 0), "that are not finite"),
        (with_tensor("nodes.std", lambda t: t * 0), "that are not finite"),
        (with_tensor("nodes.mean", lambda t: t[:1]), r"nodes.mean has shape"),
        (with_tensor("nodes.codes", lambda t: t - 1), "nodes.codes has numbers that are not in 0"),
        (with_tensor("nodes.split", lambda t: t + 1), "nodes.split has numbers .* in 0 to 3"),
        (with_tensor("nodes.split", lambda t: t[:, 0]), "nodes.split is not of 4 rows"),
        (with_tensor("nodes.targets.0", lambda t: t + 1), "label has numbers .* in -1 to 1"),
        (with_tensor("nodes.targets.0", lambda t: t.int()), "nodes.targets.0 has shape"),
        (with_tensor("nodes.targets.1", lambda t: t / 0), "the target value is not finite"),
        (with_tensor("nodes.names.offsets", lambda t: t[1:]), "offsets of texts do not go from 0"),
        (with_tensor("nodes.names.utf8", lambda t: t | 128), "codec can't decode"),
        (with_fact("nodes", "count", -1), "nodes has a count of -1"),
        (with_fact("nodes", "features", ["a", "a"]), "with 'a' twice"),
        (with_fact("nodes", "features", "ab"), "features of nodes is 'ab', expected a list"),
        (with_fact("nodes", "categories", {"c": ["a"]}), "nodes.codes has numbers"),
        (with_fact("nodes", "targets", [{"name": "label"}]), "a target of nodes lacks classes"),
        (with_fact("metadata", "notes", 3), "notes of metadata is 3"),
        (without("nodes.x"), "it lacks 'nodes.x'"),
        (without("edge_row"), "it lacks 'edge_row'"),
        (lambda tensors, facts: tensors.update(odd=torch.ones(1)), "it has odd, which is not"),
    ],
)  # fmt: skip
def test_contents_that_do_not_fit(path, change, words):
    tensors, facts = tensor_file.read(path, kind=KIND, version=VERSION)
    change(tensors, facts)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    tensor_file.write(path, tensors, facts, kind=KIND, version=VERSION, force=True)
    with pytest.raises(
        ValueError, match=f"with contents that do not fit: .*{words}.*; copy or mak"
    ):
        NodeGraph.load(path)


def test_damage_is_found(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="its checksum is not that of its contents"):
        NodeGraph.load(path)
