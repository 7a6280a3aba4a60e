"""`pna data`: files made, looked at, and refused with a reason."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from pna import GraphSet, files
from pna.cli import app
from pna.cli.data.benchmarks import parse_sizes
from pna.data import NodeGraph, molecules, molhiv, slic, tensor_file, zinc
from pna.data.laplacian import with_laplacian
from pna.data.multitask import generate
from pna.data.sources import PUBLIC, SOURCES, File, Public
from pna.data.walks import with_walks
from tests import processes
from tests.data.benchmarks import serving
from tests.data.graph_sets import assert_same

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


def test_inputs_drawn_again(tmp_path):
    path = tmp_path / "g"
    done = run("multitask", "--out", path, "--sizes", "15", "--draws", 2)
    assert done.exit_code == 0, done.output
    graphs = GraphSet.load(path)
    assert len(graphs.split("train")) == 2 * SMALL["train"] and len(graphs) == 17
    assert graphs.metadata["draws"] == 2


def test_progress_in_lines(tmp_path):
    done = run("multitask", "--out", tmp_path / "g", "--sizes", "15", "--protocol", "published")
    assert "11 of 11 graphs" in done.output
    size = (tmp_path / "g").stat().st_size / 1e3
    assert size < 100 and f": 11 graphs, {size:.1f} kB" in done.output


def test_describe(made):
    done = run("describe", made)
    assert done.exit_code == 0, done.output
    words = ("paper", "validation", "barabasi_albert", "spectral_radius", "average", "% of values")
    for word in words:
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


def put(folder, name, content):
    """A file there, and what it will be expected to be."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return File(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two molecules in the place of ZINC's 12,000."""
    chain = {"num_nodes": [3, 2], "num_bonds": [2, 1], "atom_type": [0, 5, 1, 2, 7]}
    chain |= {"bond_src": [0, 1, 0], "bond_dst": [1, 2, 1], "bond_type": [1, 3, 2]}
    arrays = {name: np.array(values, np.uint8) for name, values in chain.items()}
    arrays |= {"target": np.array([0.5, -2], np.float32), "split": np.array([0, 2], np.uint8)}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    source = SOURCES["zinc"]
    file = put(tmp_path / "data", source.files[0].name, packed.getvalue())
    monkeypatch.setitem(SOURCES, "zinc", dataclasses.replace(source, files=(file,)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PNA_DATA", raising=False)
    return tmp_path / "data"


def test_a_benchmark_from_the_data_folder(folder, tmp_path, monkeypatch):
    done = run("zinc", "--out", tmp_path / "z.safetensors", "--from", folder)
    assert done.exit_code == 0, done.output
    assert "2 graphs" in done.output and "licence: " in done.output and "cite: " in done.output
    monkeypatch.setenv("PNA_DATA", str(folder))
    assert run("zinc", "--out", tmp_path / "same.safetensors").exit_code == 0
    one, other = (GraphSet.load(tmp_path / f"{name}.safetensors") for name in ("z", "same"))
    assert_same(one, other)
    found = run("describe", tmp_path / "z.safetensors")
    assert found.exit_code == 0 and "penalised logP" in found.output and "licence" in found.output


def test_features_of_walks(folder, tmp_path):
    """Beside those that are there, into another file."""
    bare, out = tmp_path / "z.safetensors", tmp_path / "walks.safetensors"
    assert run("zinc", "--out", bare, "--from", folder).exit_code == 0
    done = run("walks", bare, "--out", out, "--steps", 4, "--edge-steps", 2)
    assert done.exit_code == 0 and "2 graphs" in done.output, done.output
    assert_same(GraphSet.load(out), with_walks(GraphSet.load(bare), 4, 2))
    again = run("walks", bare, "--out", out)
    assert again.exit_code == 1 and "--force overwrites it" in again.output
    odd = run("walks", bare, "--out", tmp_path / "none.safetensors", "--steps", 0)
    assert odd.exit_code == 1 and "got walks of no steps" in odd.output


def test_features_of_the_laplacian(folder, tmp_path):
    bare, out = tmp_path / "z.safetensors", tmp_path / "laplacian.safetensors"
    assert run("zinc", "--out", bare, "--from", folder).exit_code == 0
    done = run("laplacian", bare, "--out", out, "--vectors", 3, "--edge-times", 2)
    assert done.exit_code == 0 and "2 graphs" in done.output, done.output
    assert_same(GraphSet.load(out), with_laplacian(GraphSet.load(bare), 3, 2))
    odd = run("laplacian", bare, "--out", tmp_path / "none.safetensors", "--vectors", 0)
    assert odd.exit_code == 1 and "without eigenvectors and times" in odd.output


def test_a_benchmark_from_an_address(folder, tmp_path):
    with serving(folder) as address:
        done = run("zinc", "--out", tmp_path / "z.safetensors", "--from", address)
    assert done.exit_code == 0, done.output
    assert " bytes" in done.output and "2 graphs" in done.output


def test_superpixels_from_published_images(folder, tmp_path, monkeypatch):
    pytest.importorskip("skimage", reason="cutting images needs pna[images]")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28)).astype(np.uint8)
    files = []
    for file, content in zip(
        PUBLIC["mnist"].files,
        (bytes(16) + pixels[0].tobytes(), bytes(8) + b"\3", bytes(16) + pixels[1].tobytes(),
         bytes(8) + b"\4"),
        strict=True,
    ):  # fmt: skip
        files.append(put(folder, file.name, gzip.compress(content)))
    with serving(folder) as address:
        monkeypatch.setitem(PUBLIC, "mnist", Public(address, tuple(files)))
        done = run("mnist", "--out", tmp_path / "m", "--from", "public", "--workers", 2)
    assert done.exit_code == 0, done.output
    assert " bytes" in done.output and "2 graphs" in done.output
    assert GraphSet.load(tmp_path / "m").y_graph.tolist() == [[3], [4]]


@pytest.mark.parametrize("name", ["zinc", "molhiv", "mnist", "cifar10"])
def test_a_benchmark_without_its_files(name, tmp_path, monkeypatch):
    monkeypatch.delenv("PNA_DATA", raising=False)
    file = SOURCES[name].files[0].name
    done = run(name, "--out", tmp_path / "g")
    assert (
        done.exit_code == 1 and f"no PNA_DATA, expected the folder that holds {file}" in done.output
    )
    done = run(name, "--out", tmp_path / "g", "--from", tmp_path)
    assert done.exit_code == 1 and f"got no {tmp_path / file}" in done.output
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"damaged")
    done = run(name, "--out", tmp_path / "g", "--from", tmp_path)
    assert done.exit_code == 1 and SOURCES[name].files[0].sha256 in done.output
    assert not (tmp_path / "g").exists()


@pytest.fixture
def published_zinc(tmp_path, monkeypatch):
    """Four molecules for each split where ZINC is published, of which two are the benchmark's."""
    web = tmp_path / "web"
    web.mkdir()
    for split in ("train", "val", "test"):
        lines = []
        for i in range(4):  # a chain of 2 to 5 atoms, its bonds both ways, as PyG has them
            ends = sorted(e for k in range(i + 1) for e in ((k, k + 1), (k + 1, k)))
            record = {
                "node_feat": [[k] for k in range(i + 2)],
                "edge_index": [[a for a, _ in ends], [b for _, b in ends]],
                "edge_attr": [[1 + (a + b) // 2 % 3] for a, b in ends],
                "y": [i / 10],
                "num_nodes": i + 2,
            }
            lines.append(json.dumps(record))
        (web / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        (web / f"{split}.index").write_text("3,1\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = {
        "num_nodes": [5, 3] * 3,
        "num_bonds": [4, 2] * 3,
        "atom_type": [0, 1, 2, 3, 4, 0, 1, 2] * 3,
        "bond_src": [0, 1, 2, 3, 0, 1] * 3,
        "bond_dst": [1, 2, 3, 4, 1, 2] * 3,
        "bond_type": [1, 2, 3, 1, 1, 2] * 3,
        "split": [0, 0, 1, 1, 2, 2],
    }
    arrays = {name: np.array(numbers, np.uint8) for name, numbers in expected.items()}
    arrays["target"] = np.array([0.3, 0.1] * 3, np.float32)
    monkeypatch.setattr(zinc, "CONTENT", zinc.digest(arrays))
    with serving(web) as address:
        monkeypatch.setattr(zinc, "PUBLISHED", address + "/{}.jsonl")
        monkeypatch.setattr(zinc, "INDEX", address + "/{}.index")
        yield web


def test_zinc_from_all_that_is_published(published_zinc, tmp_path):
    done = run("zinc", "--out", tmp_path / "z", "--from", "public")
    assert done.exit_code == 0, done.output
    assert "6 graphs" in done.output and "bytes" in done.output
    graphs = GraphSet.load(tmp_path / "z")
    assert [len(graphs.split(name)) for name in graphs.splits] == [2, 2, 2]
    assert graphs.sizes.tolist() == [5, 3] * 3 and graphs.edge_counts.tolist() == [8, 4] * 3
    assert graphs.y_graph[:2, 0].tolist() == pytest.approx([0.3, 0.1])
    assert graphs[0].edge_attr[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 1, 1]
    for path in published_zinc.iterdir():
        path.unlink()
    done = run("zinc", "--out", tmp_path / "again", "--from", "public")
    assert done.exit_code == 0, "what was fetched is kept"
    kept = tmp_path / "cache" / "pna" / "zinc" / "zinc12k.safetensors"
    content = kept.read_bytes()
    for damaged in (b"damaged", content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        kept.write_bytes(damaged)
        done = run("zinc", "--out", tmp_path / "third", "--from", "public")
        assert done.exit_code == 1 and "404" in done.output, "what is damaged is fetched again"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("train.jsonl", None, "got the answer 404"),
        ("val.index", "<html>", "val.index, which is no list of numbers between commas"),
        ("val.index", "", "val.index, which is no list of numbers between commas"),
        ("val.index", "1,4\n", "got 4 molecules from"),
        ("val.index", "-1,2\n", "got 4 molecules from"),
        ("val.index", "3,3\n", "got 4 molecules from"),
        ("val.index", "1," * 200_000, "got more than 200,000 bytes"),
        ("val.index", "1,3\n", "whose arrays have sha256"),
        ("val.jsonl", "{}\n" * 4, "got no molecule in line 4 of"),
        ("val.jsonl", "<html>\n" * 4, "got no molecule in line 4 of"),
        ("val.jsonl", "\n\n\n" + "é" * 10_000, "got no molecule in line 4 of"),
        ("val.jsonl", "[" * 100_000 + "\n\n\n" + "[" * 100_000, "got no molecule in line 4 of"),
        ("val.jsonl", "x" * 400_000, "got more than 300,000 bytes"),
    ],
)
def test_other_molecules_are_not_zinc(
    published_zinc, tmp_path, monkeypatch, name, content, message
):
    monkeypatch.setattr(zinc, "MAX_BYTES", 300_000)
    monkeypatch.setattr(zinc, "MAX_INDEX_BYTES", 200_000)
    path = published_zinc / name
    path.unlink() if content is None else path.write_text(content)
    done = run("zinc", "--out", tmp_path / "z", "--from", "public")
    assert done.exit_code == 1 and message in done.output.replace("\n", " "), done.output
    assert len(done.output) < 1_000
    assert not (tmp_path / "z").exists() and not list((tmp_path / "cache").rglob("*.*"))


def test_where_zinc_could_not_be_kept_it_is_not_fetched(published_zinc, tmp_path, monkeypatch):
    monkeypatch.setattr(zinc, "download", None)
    (tmp_path / "cache").write_text("a file")
    done = run("zinc", "--out", tmp_path / "z", "--from", "public")
    assert done.exit_code == 1 and str(tmp_path / "cache") in done.output.replace("\n", "")


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Ten molecules at MoleculeNet's address, three with one ring and two with another."""
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    rings = ["c1ccccc1C", "C1CC1", "c1ccccc1O", "C1CC1C", "c1ccccc1"]
    smiles = [*rings, "CC", "CCO", "C1CCC1", "C1CCCC1", "CN"]
    rows = [f"{text},CI,{i % 2}" for i, text in enumerate(smiles)]
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "HIV.csv").write_text("\n".join(["smiles,activity,HIV_active", *rows]))
    splits = ["train", "train", "train", "train", "train", "train", "train", "test", "valid",
              "train"]  # fmt: skip
    table = "".join(f"{s},{i % 2},{splits[i]}\n" for i, s in enumerate(smiles))
    digest = hashlib.sha256(f"smiles,HIV_active,split\n{table}".encode()).hexdigest()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(molhiv, "TABLE", digest)
    with serving(tmp_path / "web") as address:
        monkeypatch.setattr(molhiv, "PUBLISHED", f"{address}/HIV.csv")
        yield tmp_path / "web" / "HIV.csv"


def test_molhiv_from_moleculenet(published, tmp_path):
    done = run("molhiv", "--out", tmp_path / "m", "--from", "public")
    assert done.exit_code == 0, done.output
    assert "10 of 10 molecules to split" in done.output and "10 graphs" in done.output
    graphs = GraphSet.load(tmp_path / "m")
    assert [len(graphs.split(name)) for name in graphs.splits] == [8, 1, 1]
    published.unlink()
    done = run("molhiv", "--out", tmp_path / "again", "--from", "public")
    assert done.exit_code == 0, "what was fetched is kept"


@pytest.mark.parametrize(
    "content, message",
    [
        ("smiles,activity,HIV_active\nCC,CI,1", "that make a table of sha256"),
        ("<html>", "no table with the columns smiles and HIV_active"),
        ("<html>" + "x" * 200_000, "no table with the columns smiles and HIV_active"),
        ("smiles,HIV_active\n" + "C" * 400_000, "got more than 300,000 bytes"),
    ],
)
def test_other_molecules_are_not_molhiv(published, tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(molhiv, "MAX_BYTES", 300_000)
    published.write_text(content)
    done = run("molhiv", "--out", tmp_path / "m", "--from", "public")
    assert done.exit_code == 1 and message in done.output
    assert not (tmp_path / "m").exists() and not (tmp_path / "cache").exists()


def test_missing_chemistry_is_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(molecules, "find_spec", lambda name: None)
    for command in (["molhiv", "--from", tmp_path], ["molecules", tmp_path / "my.csv"]):
        done = run(*command, "--out", tmp_path / "g")
        assert done.exit_code == 1 and "error: got no rdkit and no ogb" in done.output


def test_molecules_of_a_table_and_what_is_predicted_of_them(tmp_path):
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    path, graphs, trained = (tmp_path / name for name in ("my.csv", "my.safetensors", "run"))
    rows = [f"{'C' * (k + 1)},{k},{k % 2},mol {k}" for k in range(20)]
    path.write_text("\n".join(["smiles,size [/nm],is_even,name", *rows, "C1CC,1,1,open"]))
    made = ["molecules", path, "--out", graphs, "--targets", "size [/nm], is_even"]
    done = run(*made)
    assert done.exit_code == 1 and "line 22" in done.output and not graphs.exists()
    done = run(*made, "--split", "random", "--skip")
    assert done.exit_code == 0, done.output
    for words in (
        *("1 unreadable, left out", "my.rows.csv, which lists", "16 train, 2 validation, 2 test"),
        *("to predict: size [/nm], known of 20", "to predict: is_even, 0 or 1, known of 20"),
    ):
        assert words in done.output
    pna = CliRunner().invoke
    done = pna(app, ["train", str(graphs), "--out", str(trained), "--epochs", "1"])
    assert done.exit_code == 0 and "size [/nm]" in done.output, done.output
    for done in (run("describe", graphs), pna(app, ["evaluate", str(trained)])):
        assert done.exit_code == 0 and "size [/nm]" in done.output, done.output
    out = tmp_path / "predicted.csv"
    predicted = pna(app, ["predict", str(trained), str(path), "--out", str(out)])
    assert predicted.exit_code == 0 and "line 22" in predicted.output, predicted.output
    lines = out.read_text().splitlines()
    predictions = "size [/nm] predicted,is_even predicted,size [/nm]_std,is_even_std"
    assert lines[0] == f"smiles,size [/nm],is_even,name,{predictions},similarity,extrapolates"
    assert len(lines) == 22 and lines[-1] == "C1CC,1,1,open,,,,,,"
    probability, similarity = map(float, lines[1].split(",")[5:7])
    assert 0 < probability < 1 and 0 < similarity <= 1
    again = pna(app, ["predict", str(trained), str(path), "--out", str(out)])
    assert again.exit_code == 1 and "exists" in again.output
    other = ["predict", str(trained), str(path), "--out", str(tmp_path / "b.csv")]
    assert "leave it out" in pna(app, [*other, "--split", "test"]).output
    done = run("molecules", path, "--out", tmp_path / "bare", "--skip")
    assert "nothing to train" in done.output
    wrong = pna(app, [*other[:2], str(graphs), *other[3:], "--smiles", "smiles"])
    assert wrong.exit_code == 1 and "leave it out" in wrong.output


@pytest.fixture
def odd_table(tmp_path):
    """A table with a special row of most kinds, which are errors or not by the options."""
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    rows = [f"{'C' * (k + 2)};{k % 3};{k % 2 + 1};1,{k};Ä" for k in range(20)]
    path = tmp_path / "my.csv"
    rows = ["smiles;level;label;part;who", *rows, "CC;0;1;<0,5;b", "CN(C)(C)C;0;1;2;c"]
    path.write_text("\n".join(rows), encoding="latin-1")
    return path


def test_what_is_assumed_of_a_table(odd_table, tmp_path):
    out = tmp_path / "my.safetensors"
    made = ["molecules", odd_table, "--out", out, "--targets", "level,label,part", "--split",
            "random"]  # fmt: skip
    done = run(*made)
    assert done.exit_code == 1 and "not UTF-8 in line 2" in done.output and "--enc" in done.output
    made += ["--encoding", "latin-1"]
    done = run(*made)
    assert done.exit_code == 1 and "got '<0,5' as part in line 22" in done.output
    made += ["--take-limits"]
    assert "line 23" in run(*made, "--strict").output
    assert not out.exists() and [*tmp_path.iterdir()] == [odd_table]
    done = run(*made)
    assert done.exit_code == 0, done.output
    for words in (
        *("took 1,0 as 1.0 in column part", "1 over-valent, kept", "1 limit, limit taken"),
        *("; 1 and 2 are taken as numbers: for two classes, write 0 and 1", "1 contradicting"),
        "; taken as numbers: for 3 classes, train with --loss level=cross_entropy",
    ):
        assert words in done.output
    listed = (tmp_path / "my.rows.csv").read_text().splitlines()
    assert listed[0] == "line,smiles,what,detail,done" and len(listed) == 4
    good = out.read_bytes()
    assert run(*made, "--strict", "--force").exit_code == 1 and out.read_bytes() == good
    done = run(*made, "--force", "--skip")
    assert done.exit_code == 0 and "1 over-valent, left out" in done.output


def test_molecules_of_standard_input(tmp_path):
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    for name, given in (("a", "id,smiles\n1,CCO\n"), ("b", "CCO ethanol\n")):
        made = ["data", "molecules", "-", "--out", str(tmp_path / name)]
        done = CliRunner().invoke(app, made, input=given)
        assert done.exit_code == 0 and GraphSet.load(tmp_path / name).sizes.tolist() == [3]
    done = CliRunner().invoke(app, [*made, "--force"], input="CCO\n((\n")
    assert done.exit_code == 1 and "got '((' in line 2 of" in done.output


def test_the_table_itself_is_not_overwritten(odd_table, tmp_path):
    table = odd_table.rename(tmp_path / "a.rows.csv")
    done = run("molecules", table, "--out", tmp_path / "a.safetensors", "--force")
    assert done.exit_code == 1 and "which would be overwritten" in done.output


def test_a_target_whose_name_has_a_comma(tmp_path):
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    path = tmp_path / "my.csv"
    path.write_text('smiles,"logS, mol/L"\n' + "C,1\n" * 5 + "CC,2\n" * 5)
    done = run("molecules", path, "--out", tmp_path / "g", "--targets", "logS, mol/L",
               "--split", "random")  # fmt: skip
    assert done.exit_code == 0 and "to predict: logS, mol/L, known of 10" in done.output


@pytest.mark.parametrize("name, where", [("molhiv", "http://127.0.0.1:9"), ("cifar10", "public")])
def test_missing_packages_are_told_before_the_download(name, where, tmp_path, monkeypatch):
    monkeypatch.setattr(molecules, "find_spec", lambda name: None)
    monkeypatch.setattr(slic, "find_spec", lambda name: None)
    monkeypatch.setattr("pna.data.sources.fetch_all", lambda *_: pytest.fail("fetched"))
    done = run(name, "--out", tmp_path / "g", "--from", where)
    assert done.exit_code == 1 and "error: got no " in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_a_pipe_is_refused_before_the_work(tmp_path):
    os.mkfifo(tmp_path / "p")
    done = run("zinc", "--out", tmp_path / "p", "--force")
    assert done.exit_code == 1 and "a device or a pipe" in done.output
    assert (tmp_path / "p").is_fifo()


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


def test_verify(made, monkeypatch):
    done = run("verify", made)
    assert done.exit_code == 0 and "agree with its checksum" in done.output
    assert "bytes" not in done.output
    monkeypatch.setattr(tensor_file, "IN_MEMORY", 100)
    done = run("verify", made)
    assert done.exit_code == 0 and "bytes" in done.output.splitlines()[0]
    content = bytearray(made.read_bytes())
    content[len(content) // 2] ^= 1
    made.write_bytes(content)
    done = run("verify", made)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith(
        f"error: got {made}, which is damaged (its check"
    )
    made.write_bytes(content[:-1])
    assert run("verify", made).exit_code == 1


def test_verify_without_a_checksum(made):
    tensors, facts = tensor_file.read(made, kind="pna.GraphSet", version=1)
    held = {"kind": "pna.GraphSet", "version": 1, "force": True, "checksum": False}
    tensor_file.write(made, tensors, facts, **held)
    assert len(GraphSet.load(made)) > 0
    done = run("verify", made)
    (line,) = done.output.splitlines()
    assert done.exit_code == 2 and "has no checksum" in line and "save it again" in line
    tensor_file.write(made, tensors, facts | {"splits": 3}, **held)
    done = run("verify", made)
    assert done.exit_code == 1 and "splits is no list of names" in done.output


def with_short_files(*arguments):
    """`pna` where no file may have more than 1000 bytes."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # instead of a file
    generate.COUNTS = SMALL
    processes.command_line(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graphs", "figure"])
def test_files_that_may_not_grow(made, tmp_path, name):
    """A limit of the system on the size of files, in a process of its own; what is there stays."""
    figure = made.with_suffix(".svg")
    figure.write_text("before")
    before = made.read_bytes()
    asked = {
        "graphs": ["multitask", "--out", str(made), "--sizes", "15", "--force"],
        "figure": ["describe", str(made)],
    }[name]
    done = processes.run(with_short_files, "data", *asked)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot write ") and "ulimit -f" in line
    assert made.read_bytes() == before and figure.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([made.name, figure.name])


def test_sizes():
    assert parse_sizes("15-17") == [15, 16, 17]
    assert parse_sizes("4, 7-8") == [4, 7, 8]


@pytest.fixture
def tables(tmp_path):
    """A ring of twelve nodes, whose labels alternate."""
    ring = range(12)
    nodes = [f"n{i},{i * i},{'odd' if i % 2 else 'even'},{i % 3}" for i in ring]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,square,label,part", *nodes]))
    edges = [f"n{i}\tn{(i + 1) % 12}\t{'up' if i < 6 else 'down'}" for i in ring]
    (tmp_path / "edges.tsv").write_text("\n".join(["a\tb\tkind", *edges]))
    return tmp_path


def make_graph(folder, *more):
    given = ("--nodes", folder / "nodes.csv", "--edges", folder / "edges.tsv")
    return run("graph", *given, "--out", folder / "g.safetensors", *more)


def test_one_graph(tables):
    drawn = ("--random-split", "0.5,0.25,0.25", "--ignore", "part")
    done = make_graph(tables, "--target", "label", "--edge-target", "kind", *drawn)
    assert done.exit_code == 0, done.output
    graph = NodeGraph.load(tables / "g.safetensors")
    assert graph.nodes.features == ("square",) and graph.nodes.target("label").kind == "class"
    for elements in (graph.nodes, graph.edges):
        assert np.bincount(elements.split[:, 0]).tolist() == [0, 6, 2, 4]
    assert "12 nodes, 12 edges, undirected, stored as 24 directions" in done.output
    described = run("describe", tables / "g.safetensors")
    assert described.output in done.output and "one of 2 classes: even (6), odd (6)" in done.output
    assert run("verify", tables / "g.safetensors").exit_code == 0
    kept = make_graph(tables, "--target", "label", *drawn)
    assert kept.exit_code == 1 and "--force overwrites it" in kept.output
    assert make_graph(tables, *drawn[2:], "--directed", "--force").exit_code == 0
    assert NodeGraph.load(tables / "g.safetensors").directed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--target", "label", "--split", "part"], "got '0' as part in line 2 of"),
        (["--target", "label"], "--split, or use --random-split 0.6,0.2,0.2"),
        (["--target", "label", "--random-split", "1,2"], "expected three fractions: 0.6,0.2,0.2"),
        (["--id", "square"], "got 'n0' as a in line 2 of"),
        (["x.npz"], "x.npz and options about tables"),
    ],
)
def test_one_graph_that_cannot_be_made(tables, arguments, message):
    done = make_graph(tables, *arguments)
    assert done.exit_code == 1 and message in " ".join(done.output.split())
    assert not (tables / "g.safetensors").exists()


def test_one_graph_of_arrays(tmp_path):
    nodes = np.arange(8)
    masks = {
        f"{name}_masks": nodes[None] % 3 == i for i, name in enumerate(("train", "val", "test"))
    }
    edges = np.stack([nodes[:-1], nodes[1:]], 1)
    np.savez(
        tmp_path / "a.npz", node_features=nodes[:, None] * 1.5, node_labels=nodes // 4,
        edges=edges, **masks,
    )  # fmt: skip
    done = run("graph", tmp_path / "a.npz", "--out", tmp_path / "a", "--directed")
    assert done.exit_code == 0 and "8 nodes, 7 edges, directed" in done.output
    assert NodeGraph.load(tmp_path / "a").edge_index.T.tolist() == edges.tolist()
    refused = run("describe", tmp_path / "a", "--figure", tmp_path / "a.svg")
    assert refused.exit_code == 1 and "got --figure for one graph" in refused.output


def test_one_graph_needs_edges(tmp_path):
    done = run("graph", "--out", tmp_path / "g")
    assert done.exit_code == 1 and "expected a table of them (--edges) or an npz" in done.output


def test_warnings_about_one_graph_are_lines(tables):
    with (tables / "edges.tsv").open("a") as file:
        file.write("\nn1\tn0\tup\n")
    done = make_graph(tables)
    assert done.exit_code == 0 and "warning: got 1 edges between two nodes" in done.output
