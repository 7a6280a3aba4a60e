"""`pna data`: files made, looked at, and refused with a reason."""

import pytest
from typer.testing import CliRunner

from pna import GraphSet, files
from pna.cli import app
from pna.cli.data import parse_sizes
from pna.data.multitask import generate

SMALL = {"train": 6, "validation": 2, "test": 3}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(generate, "COUNTS", SMALL)


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "graphs.safetensors"
    done = run("multitask", "--out", path, "--sizes", "15-16", "--seed", 4)
    assert done.exit_code == 0, done.output
    return path


def test_multitask(made):
    graphs = GraphSet.load(made)
    assert len(graphs) == 22
    assert graphs.metadata["seed"] == 4 and graphs.metadata["protocol"] == "paper"
    again = generate.multitask(4, sizes=(15, 16))
    assert (graphs.senders == again.senders).all()


def test_another_mixture(tmp_path):
    path = tmp_path / "g"
    done = run("multitask", "--out", path, "--sizes", "15", "--mixture", "star=1,line=3")
    assert done.exit_code == 0, done.output
    graphs = GraphSet.load(path)
    kinds = {graphs.types[i] for i in graphs.type_of_graph.tolist()}
    assert kinds == {"star", "line"}
    assert graphs.metadata["mixture"]["line"] == 3 and graphs.metadata["mixture"]["grid"] == 0


def test_progress_in_lines(tmp_path):
    done = run("multitask", "--out", tmp_path / "g", "--sizes", "15", "--protocol", "published")
    assert "11 of 11 graphs" in done.output and "wrote" in done.output


def test_describe(made):
    done = run("describe", made)
    assert done.exit_code == 0, done.output
    for word in ("paper", "validation", "barabasi_albert", "spectral_radius", "average"):
        assert word in done.output
    assert made.with_suffix(".svg").read_text().startswith("<?xml")


def test_describe_puts_the_figure_where_it_is_asked(made, tmp_path):
    assert run("describe", made, "--figure", tmp_path / "there.svg").exit_code == 0
    assert (tmp_path / "there.svg").exists() and not made.with_suffix(".svg").exists()


def test_an_existing_file_is_kept_unless_forced(made):
    before = made.read_bytes()
    refused = run("multitask", "--out", made, "--sizes", "17")
    assert refused.exit_code == 1 and "--force overwrites it" in " ".join(refused.output.split())
    assert made.read_bytes() == before
    assert run("multitask", "--out", made, "--sizes", "17", "--force").exit_code == 0
    assert GraphSet.load(made).sizes.tolist() == [17] * 11


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--sizes", "24-15"], "expected the smaller one first"),
        (["--sizes", "many"], "expected spans such as 15-24"),
        (["--sizes", "2"], "expected 4 to 120"),
        (["--sizes", "15-16,16"], "sizes [16] more than once"),
        (["--tasks", "sssp,sssp"], "tasks ['sssp'] more than once"),
        (["--mixture", "star=1,star=2"], "star more than once"),
        (["--protocol", "papers"], "unknown protocol 'papers'"),
        (["--tasks", "sssp,diametre"], "unknown task 'diametre'"),
        (["--workers", "0"], "workers=0"),
        (["--mixture", "star"], "expected a share such as star=1"),
        (["--mixture", "sta=1"], "unknown type of graph 'sta'"),
        (["--mixture", "star=0"], "expected some of them above 0"),
    ],
)
def test_refuses(tmp_path, arguments, message):
    done = run("multitask", "--out", tmp_path / "g", *arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert list(tmp_path.iterdir()) == []


def test_no_folder(tmp_path):
    done = run("multitask", "--out", tmp_path / "no" / "g")
    assert done.exit_code == 1 and "there is no folder" in " ".join(done.output.split())


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    done = run("multitask", "--out", tmp_path / "g", "--sizes", "15")
    assert done.exit_code == 1 and "No space left" in done.output
    assert list(tmp_path.iterdir()) == []


def test_describe_refuses_what_is_no_graph_set(tmp_path):
    path = tmp_path / "text"
    path.write_text("hello")
    done = run("describe", path)
    assert done.exit_code == 1 and "text" in done.output and "expected" in done.output
    assert run("describe", tmp_path / "missing").exit_code == 1


def test_sizes():
    assert parse_sizes("15-17") == [15, 16, 17]
    assert parse_sizes("4, 7-8") == [4, 7, 8]
