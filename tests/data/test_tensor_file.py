"""The file of a GraphSet: what is read is what was written, or an error that names the file."""

import errno
import json
import os
import resource
import stat
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from pna import GraphSet
from pna.data import tensor_file
from tests.data.graph_sets import assert_same, graph_sets, make


def example():
    edges = [[(2, 0), (0, 1), (1, 0), (0, 1), (2, 2)], [], [], [(1, 0)]]
    return make([3, 0, 2, 2], edges)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sets")


@settings(deadline=None, max_examples=40)
@given(gs=graph_sets())
def test_saved_and_loaded(folder, gs):
    file = folder / "set.safetensors"
    gs.save(file, force=True)
    loaded = GraphSet.load(str(file))
    assert_same(loaded, gs)
    for name in ("degree", "senders", "receivers", "out_ranks"):
        assert getattr(loaded, name).dtype == getattr(gs, name).dtype
    loaded[1::2].save(file, force=True)  # what is mapped may be replaced
    assert_same(GraphSet.load(file), gs[1::2])
    assert_same(loaded, gs)


def test_facts_are_kept(path):
    facts = {"protocol": "paper", "seed": 3, "nested": {"a": [1, 2.5, None]}}
    GraphSet.from_arrays(
        [1, 1],
        [[], []],
        [0, 0],
        x=[0.1, 0.2],
        y_graph=np.array([0.1, 0.7]),
        node_features=["mass of a node"],
        graph_targets=["δ"],
        split=["train", "test"],
        metadata=facts,
    ).save(path)
    loaded = GraphSet.load(path)
    assert (loaded.node_features, loaded.graph_targets) == (("mass of a node",), ("δ",))
    assert (loaded.splits, loaded.graph_scale) == (("train", "test"), (0.1,))
    assert loaded.metadata == facts


def test_is_mapped(path):
    example().save(path)
    loaded = GraphSet.load(path)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()
    assert_same(loaded, example())


def test_does_not_overwrite_unless_told(path):
    example().save(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"set\.safetensors, which exists.*force"):
        example()[:1].save(path)
    assert path.read_bytes() == before
    example()[:1].save(path, force=True)
    assert len(GraphSet.load(path)) == 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_others_may_read_it_and_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "set.safetensors"
    mask = os.umask(0o022)
    try:
        example().save(path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_nothing(path, exists, failing):
    if exists:
        example()[:1].save(path)
    before = [(file.name, file.read_bytes()) for file in path.parent.iterdir()]
    full = OSError(errno.ENOSPC, "No space left on device")
    where = {"fsync": "os.fsync", "replace": "pathlib.Path.replace"}[failing]
    with mock.patch(where, side_effect=full), pytest.raises(OSError, match="No space left"):
        example().save(path, force=True)
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == before


def test_a_full_disk_leaves_nothing(path):
    """Files may grow to a page only, so that the write itself stops half way."""
    gs = GraphSet.from_arrays([100_000], [[], []], [0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError):
            gs.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(path.parent.iterdir()) == []


def test_no_file(path):
    with pytest.raises(FileNotFoundError, match=r"set\.safetensors.*check the path"):
        GraphSet.load(path)


@pytest.mark.parametrize("keep", [-1, 0.5, 40])
def test_truncated(path, keep):
    example().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"set\.safetensors.*truncated or damaged.*again"):
        GraphSet.load(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file, and longer", b"x" * 4])
def test_not_safetensors(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.safetensors, which is no safetensors file"):
        GraphSet.load(path)


@pytest.mark.parametrize("header", [None, {"format": "pt"}])
def test_safetensors_of_something_else(path, header):
    save_file({"weight": torch.ones(2)}, path, metadata=header)
    with pytest.raises(
        ValueError, match=r"set\.safetensors, a safetensors file of.*GraphSet\.save"
    ):
        GraphSet.load(path)


def test_newer_version(path):
    tensor_file.write(path, {"new": torch.ones(2)}, {}, kind="pna.GraphSet", version=2)
    with pytest.raises(ValueError, match=r"set\.safetensors in version 2.*upgrade pna"):
        GraphSet.load(path)


def test_damaged_facts(path):
    for facts in ({}, {"facts": "{"}):
        header = {"format": "pna.GraphSet", "version": "1"} | facts
        save_file({"new": torch.ones(2)}, path, metadata=header)
        with pytest.raises(ValueError, match=r"set\.safetensors, whose facts are damaged"):
            GraphSet.load(path)


def changed(**tensors):
    return lambda held, facts: held.update(tensors)


def written(name, place, value):
    def write(held, facts):
        held[name][place] = value

    return write


def less(name):
    return lambda held, facts: held.pop(name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (less("senders"), "lacks, or has but should not: senders"),
        (changed(more=torch.ones(1)), "lacks, or has but should not: more"),
        (lambda held, facts: facts.pop("splits"), "lacks, or has but should not: splits"),
        (changed(senders=torch.ones(6)), "senders has shape .6,. and type torch.float32"),
        (changed(senders=torch.ones(6, 1, dtype=torch.uint8)), "senders has shape .6, 1."),
        (changed(senders=torch.ones(5, dtype=torch.uint8)), "edge_offsets end at 6 where .* 5"),
        (changed(receivers=torch.ones(5, dtype=torch.uint8)), "senders and receivers have 6 and 5"),
        (changed(degree=torch.ones(8, dtype=torch.uint8)), "node_offsets end at 7 where .* 8"),
        (changed(node_offsets=torch.tensor([0, 7])), "node_offsets and edge_offsets have 2 and 5"),
        (changed(node_offsets=torch.tensor([], dtype=torch.int64)), "node_offsets do not start"),
        (written("node_offsets", 0, 1), "node_offsets do not start at 0"),
        (written("edge_offsets", 1, 9), "edge_offsets do not start at 0, or do not grow"),
        (written("degree", 0, 3), "degree does not sum to the edges of graph 0"),
        (written("out_degree", 6, 9), "out_degree does not sum to the edges of graph 3"),
        (written("senders", 4, 3), "senders lead out of graph 0"),
        (written("receivers", 5, 2), "receivers lead out of graph 3"),
        (written("out_ranks", 5, 1), "out_ranks lead out of graph 3"),
        (
            changed(degree=torch.tensor([300, -300, 5, 0, 0, 0, 1], dtype=torch.int16)),
            "degree is below 0 at node 1",
        ),
        (written("out_ranks", 4, 1), "out_ranks lead out of their receiver at place 4"),
        (written("out_ranks", 0, 1), "edges by sender are not the edges by receiver"),
        (lambda held, facts: facts.update(node_scale=None), "NoneType"),
        (changed(x=torch.ones(6, 2)), r"x has shape \(6, 2\), expected \(7, 2\)"),
        (changed(x=torch.ones(7, 3)), r"x has shape \(7, 3\), expected \(7, 2\)"),
        (less("y_graph"), r"y_graph has shape \(4, 0\)"),
        (written("split_of_graph", 1, 3), "split_of_graph are not 4 places in splits"),
        (lambda held, facts: facts.update(node_scale=[1.0]), "node_scale has 1 numbers"),
    ],
)
def test_contents_that_do_not_fit(path, damage, message):
    example().save(path)
    held, facts = tensor_file.read(path, kind="pna.GraphSet", version=1)
    held = {name: tensor.clone() for name, tensor in held.items()}
    damage(held, facts)
    tensor_file.write(path, held, facts, kind="pna.GraphSet", version=1, force=True)
    with pytest.raises(ValueError, match=rf"set\.safetensors with contents.*{message}.*again"):
        GraphSet.load(path)


def test_is_plain_safetensors(path):
    """Other programs can read it: flat tensors, and facts as JSON in the header."""
    example().save(path)
    tensors = load_file(path)
    assert tensors["senders"].tolist() == [2, 1, 0, 0, 2, 1]
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert header["__metadata__"]["format"] == "pna.GraphSet"
    assert json.loads(header["__metadata__"]["facts"])["types"] == ["star", "path"]


# Checksums.

SOME = {
    "weights": torch.arange(60.0).view(3, 20).bfloat16(),
    "number": torch.tensor(3),  # without a dimension
    "alone": torch.arange(9.0)[::9],  # with a stride that does not matter
    "none": torch.empty(0, 2),
    "alive": torch.tensor([True, False]),
}
AS = {"kind": "pna.GraphSet", "version": 1}


def test_whole_files_pass_their_checksum(path):
    tensor_file.write(path, SOME, {"epoch": 3}, **AS, checksum=True)
    held, facts = tensor_file.read(path, **AS)
    assert facts == {"epoch": 3} and held.keys() == SOME.keys()
    for name, tensor in SOME.items():
        assert held[name].dtype == tensor.dtype and torch.equal(held[name], tensor)


@pytest.mark.parametrize(
    "whole, damaged",
    [
        (SOME["weights"].view(torch.uint8).numpy().tobytes()[40:60], bytes(20)),
        (b'\\"epoch\\": 3', b'\\"epoch\\": 9'),
        (b'"weights"', b'"weighty"'),
        (b'"shape":[3,20]', b'"shape":[20,3]'),
    ],
    ids=["bytes", "facts", "name", "shape"],
)
def test_damage_of_the_same_length_is_found(path, whole, damaged):
    tensor_file.write(path, SOME, {"epoch": 3}, **AS, checksum=True)
    content = path.read_bytes()
    assert content.count(whole) == 1
    path.write_bytes(content.replace(whole, damaged))
    with pytest.raises(
        ValueError, match=r"set\.safetensors, which is damaged \(its checksum.*copy"
    ):
        tensor_file.read(path, **AS)


def test_files_without_a_checksum_are_taken_as_they_are(path):
    tensor_file.write(path, SOME, {}, **AS)
    assert "sha256" not in path.read_bytes()[:400].decode("latin-1")
    assert torch.equal(tensor_file.read(path, **AS)[0]["weights"], SOME["weights"])


def test_many_graphs(path):
    """Not a measurement: a loop over graphs, or a quadratic step, would be felt here."""
    random = np.random.default_rng(0)
    sizes = np.full(10_000, 20)
    ends = random.integers(0, 20, (2, 10_000 * 100))
    gs = GraphSet.from_arrays(sizes, ends, sizes * 5, x=np.zeros((200_000, 2), np.float32))
    gs.save(path)
    assert_same(GraphSet.load(path), gs)


def test_a_table_is_told_what_makes_graphs_of_it(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("smiles,y\nCCO,1\n")
    with pytest.raises(ValueError, match=r"my.csv, a table, expected graphs; .*pna data molecules"):
        GraphSet.load(path)
