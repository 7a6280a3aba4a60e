"""Graph sets that are damaged or made up: a line says which file, and what to do about it."""

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from pna import GraphSet
from pna.cli import app
from pna.data import tensor_file
from tests.train.small_runs import small_multitask, small_run

AS = {"kind": "pna.GraphSet", "version": 1}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return small_run(small_multitask(), folder, members=1, epochs=1).folder


def with_facts(facts):
    def make(path):
        held = {"format": "pna.GraphSet", "version": "1", "facts": facts}
        save_file({"x": torch.ones(2)}, path, metadata=held)

    return make


def with_fact(name, value):
    def make(path):
        small_multitask().save(path)
        tensors, facts = tensor_file.read(path, **AS)
        tensor_file.write(path, tensors, facts | {name: value}, **AS, force=True)

    return make


HOSTILE = {
    "empty": lambda path: path.write_bytes(b""),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "huge header": lambda path: path.write_bytes((2**60).to_bytes(8, "little") + b"{"),
    "list": with_facts("[]"),
    "number": with_facts("3"),
    "words": with_facts('"words"'),
    "null": with_facts("null"),
    "deep": with_facts(f'{{"metadata": {DEEP}}}'),
    "scales of words": with_fact("graph_scale", ["1", "1", "1"]),
    "names of numbers": with_fact("graph_targets", [1, 2, 3]),
    "metadata": with_fact("metadata", {"benchmark": ["multitask"]}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_every_command_says_which_file_and_what_to_do(trained, tmp_path, kind):
    path = tmp_path / "set.safetensors"
    HOSTILE[kind](path)
    for asked in (
        ("data", "describe", path),
        ("data", "walks", path, "--out", tmp_path / "out"),
        ("train", path, "--out", tmp_path / "out", "--epochs", 1),
        ("predict", trained, path, "--out", tmp_path / "out"),
        ("evaluate", trained, path),
        ("advise", path),
    ):
        done = CliRunner().invoke(app, [str(argument) for argument in asked])
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), asked
        (line,) = done.output.splitlines()
        assert line.startswith(f"error: got {path}") and len(line) < 600
        assert "again" in line or "check the path" in line
        assert not (tmp_path / "out").exists()


def test_errors_are_one_line_whatever_names_there_are(trained, tmp_path):
    path = tmp_path / "set.safetensors"
    with_fact("graph_targets", ["a\nb", "\x1b[31m", "[/bold]"])(path)
    done = CliRunner().invoke(app, ["evaluate", str(trained), str(path)])
    (line,) = done.output.splitlines()
    assert done.exit_code == 1 and r"a b, \x1b[31m, [/bold]" in line


ODD_NAMES = [r"$\frac$", "[/bold]", "[red]x", "a\x00\x1b[31m", "trailing\\"]


def odd_set(path):
    """Every name is one that a figure or a terminal could take for an instruction."""
    count = 6
    GraphSet.from_arrays(
        [2] * count, torch.tensor([[0, 1], [1, 0]]).repeat(1, count), [2] * count,
        x=torch.rand(2 * count, len(ODD_NAMES)), y_graph=torch.rand(count, len(ODD_NAMES)),
        node_features=ODD_NAMES, graph_targets=ODD_NAMES,
        split=(ODD_NAMES[:2] * count)[:count], type=(ODD_NAMES[:3] * count)[:count],
        metadata={name: name for name in ODD_NAMES},
    ).save(path)  # fmt: skip


def test_names_that_look_like_instructions_are_printed_and_drawn(tmp_path):
    from xml.etree import ElementTree

    pytest.importorskip("matplotlib")
    path = tmp_path / "$[b]x$.safetensors"
    odd_set(path)
    for asked in (("data", "describe"), ("advise", "--split", "[/bold]")):
        figure = tmp_path / "$[b]y$.svg"
        given = [*asked, str(path), "--figure", str(figure)]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, (done.output, done.exception)
        for name in ("[/bold]", r"$\frac$", "[red]x", str(figure)):
            assert name in done.output
        root = ElementTree.parse(figure).getroot()
        words = " ".join("".join(text.itertext()) for text in root.iter(f"{root.tag[:-3]}text"))
        assert "$[b]x$" in words
        if asked[0] == "data":
            assert r"$\frac$" in words and "[/bold]" in words


def test_more_kinds_than_a_model_can_learn(tmp_path):
    """A vector for each would fill the memory."""
    graphs, path = small_multitask(), tmp_path / "set.safetensors"
    tensors = {"x": torch.full((graphs.num_nodes, 2), 2**40)}
    graphs.save(path)
    held, facts = tensor_file.read(path, **AS)
    facts["metadata"] = {}
    tensor_file.write(path, held | tensors, facts, **AS, force=True)
    done = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "run")])
    assert done.exit_code == 1 and "expected categories below 1,000,000" in done.output
