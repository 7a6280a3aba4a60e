"""The file of a GraphSet: what is read is what was written, or an error that names the file."""

import errno
import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


@pytest.fixture
def mapped(monkeypatch):
    """As if every file were a large one."""
    monkeypatch.setattr(tensor_file, "IN_MEMORY", -1)


@settings(max_examples=40)
@given(gs=graph_sets(), most=st.sampled_from([-1, tensor_file.IN_MEMORY]))
def test_saved_and_loaded(folder, gs, most):
    """Read into memory or mapped."""
    file = folder / "set.safetensors"
    gs.save(file, force=True)
    with mock.patch.object(tensor_file, "IN_MEMORY", most):
        loaded = GraphSet.load(str(file))
    assert (loaded.watch is None) == (most > 0)
    loaded = replace(loaded, watch=None)
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


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
@pytest.mark.parametrize("most, is_mapped", [(tensor_file.IN_MEMORY, False), (-1, True)])
def test_large_files_are_mapped(path, monkeypatch, most, is_mapped):
    monkeypatch.setattr(tensor_file, "IN_MEMORY", most)
    example().save(path)
    loaded = GraphSet.load(path)
    assert (str(path) in Path("/proc/self/maps").read_text()) == is_mapped
    assert_same(replace(loaded, watch=None), example())


def test_small_sets_do_not_mind_what_happens_to_their_file(path):
    example().save(path)
    loaded = GraphSet.load(path)
    os.truncate(path, 10)
    loaded.check_unchanged()
    assert_same(loaded, example())


def test_a_mapped_file_that_is_changed_is_noticed(path, mapped):
    example().save(path)
    loaded = GraphSet.load(path)
    part, chosen, joined = loaded[1:], loaded[[3, 0]], GraphSet.concat([loaded, loaded])
    loaded.check_unchanged()
    os.utime(path, ns=(0, 0))
    for still_mapped in (loaded, part):
        with pytest.raises(ValueError, match=r"set\.safetensors, which was changed while.*restore"):
            still_mapped.check_unchanged()
    for copied in (chosen, joined):
        copied.check_unchanged()


READING = {
    "batch": lambda gs: gs.batch(),
    "batch of some": lambda gs: gs.batch([2, 0]),
    "batch side by side": lambda gs: gs.batch([1, 2]),
    "item": lambda gs: gs[1],
    "select": lambda gs: gs.select(size=[1, 2]),
    "split": lambda gs: gs.split("train"),
    "to": lambda gs: gs.to("meta"),
    "concat": lambda gs: GraphSet.concat([example(), gs]),
    "save": lambda gs: gs.save(gs.watch.path.with_name("copy.safetensors")),
    "save in place": lambda gs: gs.save(gs.watch.path, force=True),
}


def cut(path):
    os.truncate(path, path.stat().st_size - 1)  # in the last page: what is cut reads as 0


def overwrite(path):
    """By as many bytes, which no size tells."""
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes(9))


@pytest.mark.parametrize("change", [cut, overwrite])
@pytest.mark.parametrize("what", READING)
def test_a_mapped_file_that_was_changed_is_not_read(path, mapped, what, change):
    """Cut by more, it ended the process; overwritten, it gave other numbers."""
    example().save(path)
    os.utime(path, ns=(10**9, 10**9))  # clocks of file systems may stand still for a while
    loaded = GraphSet.load(path)
    READING[what](loaded)
    path.with_name("copy.safetensors").unlink(missing_ok=True)
    if what == "save in place":  # which made another file of it
        loaded = GraphSet.load(path)
    change(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"set\.safetensors, which was changed while.*restore"):
        READING[what](loaded)
    assert path.read_bytes() == before and not path.with_name("copy.safetensors").exists()


def test_a_part_of_a_mapped_file_that_was_changed_is_not_read(path, mapped):
    example().save(path)
    part = GraphSet.load(path)[1:]
    cut(path)
    with pytest.raises(ValueError, match=r"set\.safetensors, which was changed while"):
        part.batch()


def test_a_mapped_file_that_was_changed_does_not_become_pyg_graphs(path, mapped):
    pytest.importorskip("torch_geometric")
    example().save(path)
    loaded = GraphSet.load(path)
    cut(path)
    with pytest.raises(ValueError, match=r"set\.safetensors, which was changed while"):
        loaded.to_pyg()


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_mapped_file_that_makes_way_for_another_stays_mapped(path, mapped, how):
    example().save(path)
    loaded = GraphSet.load(path)
    if how == "replaced":
        example()[:1].save(path, force=True)
    else:
        path.unlink()
    loaded.check_unchanged()
    assert_same(replace(loaded, watch=None), example())


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


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip file, and longer", b"x" * 4])
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


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "facts",
    [None, "", "{", "[]", "[1, 2]", "3", '"words"', "null", "NaN", DEEP, f'{{"a": {DEEP}}}',
     f'{{"a": {DEEP[99_800:100_200]}}}', '{"a": "\\ud800"}', "9" * 5000],
    ids=lambda facts: str(facts)[:20],
)  # fmt: skip
def test_damaged_facts(path, facts):
    header = {"format": "pna.GraphSet", "version": "1"}
    header |= {} if facts is None else {"facts": facts}
    save_file({"new": torch.ones(2)}, path, metadata=header)
    with pytest.raises(
        ValueError, match=r"set\.safetensors, whose facts are damaged.*again"
    ) as error:
        GraphSet.load(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_deep_metadata_is_refused_when_it_is_given():
    deep = json.loads(DEEP[99_700:100_300])
    with pytest.raises(TypeError, match="nested more than 100 deep"):
        GraphSet.from_arrays([1], [[], []], [0], metadata={"a": deep})


@pytest.mark.parametrize("version", ["9" * 5000, "one", ""])
def test_odd_versions(path, version):
    save_file({"new": torch.ones(2)}, path, metadata={"format": "pna.GraphSet", "version": version})
    with pytest.raises(ValueError, match=r"set\.safetensors, a safetensors file of"):
        GraphSet.load(path)


def test_an_empty_file(path):
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"set\.safetensors, which is empty.*again"):
        GraphSet.load(path)


def test_what_is_no_file(path):
    path.mkdir()
    with pytest.raises(OSError, match=r"set\.safetensors, which is a folder, expected a file"):
        GraphSet.load(path)
    path.rmdir()
    path.symlink_to(path)
    with pytest.raises(OSError, match=r"set\.safetensors, which is a symbolic link that leads to"):
        GraphSet.load(path)


def header_of(**tensors):
    held = {"__metadata__": {"format": "pna.GraphSet", "version": "1", "facts": "{}"}} | tensors
    return json.dumps(held).encode()


def claims(shape, end):
    return header_of(x={"dtype": "F32", "shape": shape, "data_offsets": [0, end]})


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "length, header",
    [
        (2**62, b"{}"),
        (2**30, b"{}" + b" " * 100),
        (None, claims([2**40], 2**42)),
        (None, claims([2**62, 2**62], 4)),
        (None, claims([0, 2**62], 0)),
        (None, claims([-1], 4)),
        (None, header_of(x={"dtype": "F99", "shape": [1], "data_offsets": [0, 4]})),
        (None, header_of(x=3)),
        (None, b"{" + b'"a":[' * 50_000),
        (None, b'{"__metadata__": {"format": 3}}'),
    ],
    ids=range(10),
)
def test_headers_that_claim_too_much(path, monkeypatch, large, length, header):
    """One line, and no more memory than the file has bytes."""
    if large:
        monkeypatch.setattr(tensor_file, "IN_MEMORY", -1)
    length = len(header) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + header + bytes(4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for use in (GraphSet.load, GraphSet.verify):
        with pytest.raises(
            ValueError, match=r"set\.safetensors.*again|set\.safetensors.*wrote"
        ) as e:
            use(path)
        assert "\n" not in str(e.value) and len(str(e.value)) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_facts_that_no_reader_would_take_are_not_written(path, monkeypatch):
    monkeypatch.setattr(tensor_file, "MOST_HEADER", 1000)
    with pytest.raises(ValueError, match=r"metadata of .* bytes for .*set\.safetensors"):
        tensor_file.write(path, {"x": torch.ones(1)}, {"a": "x" * 1000}, **AS)
    assert not path.exists()


def changed(**tensors):
    return lambda held, facts: held.update(tensors)


def written(name, place, value):
    def write(held, facts):
        held[name][place] = value

    return write


def fact(name, value):
    return lambda held, facts: facts.update({name: value})


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
        (written("out_ranks", 5, 1), "out_ranks lead out of their receiver in graph 3"),
        (
            changed(degree=torch.tensor([300, -300, 5, 0, 0, 0, 1], dtype=torch.int16)),
            "degree is below 0 at node 1",
        ),
        (written("out_ranks", 4, 1), "out_ranks lead out of their receiver in graph"),
        (written("out_ranks", 0, 1), "edges by sender are not the edges by receiver"),
        (fact("node_scale", None), "node_scale is no list of numbers"),
        (fact("node_scale", ["1", "2", "3"]), "node_scale is no list of numbers above 0"),
        (fact("graph_scale", [float("nan"), 1]), "graph_scale is no list of numbers above 0"),
        (fact("graph_scale", [0, 1]), "graph_scale is no list of numbers above 0"),
        (fact("graph_scale", [10**400, 1]), "graph_scale is no list of numbers above 0"),
        (fact("graph_scale", [True, 1]), "graph_scale is no list of numbers above 0"),
        (fact("node_features", "ab"), "node_features is no list of names"),
        (fact("node_features", [1, 2]), "node_features is no list of names"),
        (fact("node_features", {"a": 1, "b": 2}), "node_features is no list of names"),
        (fact("node_features", ["a", "a"]), "node_features with 'a' twice"),
        (fact("splits", [["train"], "b", "c"]), "splits is no list of names"),
        (fact("types", 3), "types is no list of names"),
        (fact("metadata", []), "metadata is of type list"),
        (fact("metadata", None), "metadata is of type NoneType"),
        (fact("metadata", {"benchmark": ["zinc"]}), "metadata has benchmark that are not a name"),
        (fact("metadata", {"node_values": 3}), "metadata has node_values that are not whole"),
        (fact("metadata", {"node_values": [10**12]}), "metadata has node_values that are not"),
        (fact("metadata", {"edge_values": ["3"]}), "metadata has edge_values that are not whole"),
        (fact("metadata", {"losses": ["mse"]}), "metadata has losses that are not names"),
        (fact("metadata", {"losses": {"a": 3}}), "metadata has losses that are not names"),
        (fact("metadata", {"means": {"a": "3"}}), "metadata has means that are not numbers"),
        (changed(**{f"new {i}\n": torch.ones(1) for i in range(50)}), "and 40 more"),
        (changed(x=torch.ones(7, 2, dtype=torch.complex64)), "x has type torch.complex64"),
        (changed(split_of_graph=torch.full((4,), float("nan"))), "split_of_graph are not 4"),
        (changed(node_offsets=torch.tensor([0, 2**63 - 1, -2, 3, 7])), "node_offsets lead out"),
        (changed(x=torch.ones(6, 2)), r"x has shape \(6, 2\), expected \(7, 2\)"),
        (changed(x=torch.ones(7, 3)), r"x has shape \(7, 3\), expected \(7, 2\)"),
        (less("y_graph"), r"y_graph has shape \(4, 0\)"),
        (written("split_of_graph", 1, 3), "split_of_graph are not 4 indices in splits"),
        (lambda held, facts: facts.update(node_scale=[1.0]), "node_scale has 1 numbers"),
    ],
)
def test_contents_that_do_not_fit(path, damage, message):
    example().save(path)
    held, facts = tensor_file.read(path, kind="pna.GraphSet", version=1)
    held = {name: tensor.clone() for name, tensor in held.items()}
    damage(held, facts)
    tensor_file.write(path, held, facts, kind="pna.GraphSet", version=1, force=True)
    with pytest.raises(ValueError, match=rf"set\.safetensors with contents.*{message}.*again") as e:
        GraphSet.load(path)
    assert "\n" not in str(e.value) and len(str(e.value)) < 500


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
    tensor_file.write(path, SOME, {}, **AS, checksum=False)
    assert "sha256" not in path.read_bytes()[:400].decode("latin-1")
    assert torch.equal(tensor_file.read(path, **AS)[0]["weights"], SOME["weights"])
    assert tensor_file.verify(path, **AS) is False


@settings(max_examples=40)
@given(gs=graph_sets(), data=st.data())
def test_a_flipped_byte_of_a_graph_set_is_found(folder, gs, data):
    """Anywhere in the file; loading and `verify` say so in one line each."""
    file = folder / "flipped.safetensors"
    gs.save(file, force=True)
    assert GraphSet.verify(file) is True
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    for use in (GraphSet.load, GraphSet.verify):
        try:
            use(file)
        except ValueError as error:
            assert str(error).startswith(f"got {file}") and "\n" not in str(error)
        else:  # what says that there is a checksum is not covered by it
            assert b'"sha256"' not in bytes(content)
            assert_same(GraphSet.load(file), gs)


def test_large_files_are_checked_by_verify_alone(path, mapped):
    example().save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    GraphSet.load(path)
    done = []
    with pytest.raises(ValueError, match=r"set\.safetensors, which is damaged \(its checksum"):
        GraphSet.verify(path, lambda *numbers: done.append(numbers))
    assert done[-1][1] == len(content)
    assert max(so_far for so_far, _ in done) == len(content)


def test_a_set_that_is_saved_again_has_a_checksum(path):
    example().save(path)
    held, facts = tensor_file.read(path, **AS)
    tensor_file.write(path, held, facts, **AS, force=True, checksum=False)
    assert GraphSet.verify(path) is False
    GraphSet.load(path).save(path, force=True)
    assert GraphSet.verify(path) is True


def test_columns_in_any_memory_layout_are_saved_right(path):
    gs = example()
    turned = replace(gs, x=gs.x.T.contiguous().T)
    turned.save(path)
    assert GraphSet.verify(path)
    assert_same(GraphSet.load(path), gs)


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
