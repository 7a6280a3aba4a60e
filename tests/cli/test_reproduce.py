"""`pna reproduce`: experiments listed, refused with a reason, and run."""

import csv
import json
import math
import shutil

import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.paper.experiment import QUICK_COUNTS
from pna.paper.registry import EXPERIMENTS
from tests.paper.little import make_little
from tests.paper.test_real_world import made, narrow

pytestmark = pytest.mark.filterwarnings("ignore:.*no score will be the benchmark's:UserWarning")


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path):
    """Few graphs and an epoch, somewhere else."""
    monkeypatch.chdir(tmp_path)
    make_little(monkeypatch, epochs=1)


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_lists_every_experiment():
    done = run("--list")
    assert done.exit_code == 0
    for name in (*EXPERIMENTS, "theory", "failures"):
        assert name in done.output
    assert run().output == done.output


def test_trains_and_shows_then_trains_again_and_compares(tmp_path, monkeypatch):
    done = run("multitask", "--quick", "--models", "gcn,gin", "--workers", 1, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "not evidence" in done.output
    assert "GCN" in done.output and "GIN" in done.output and "eccentricity" in done.output
    folder = tmp_path / "quick" / "multitask" / "paper-tuned"
    assert {"scores.csv", "facts.json", "multitask.svg"} <= {p.name for p in folder.iterdir()}
    before = {path: path.read_bytes() for path in folder.iterdir()}
    options = ("multitask", "--quick", "--workers", 1, "--device", "cpu", "--again")
    with monkeypatch.context() as patch:
        patch.setattr("pna.paper.reproduce.test", interrupt)
        assert "the same command with --resume" in run(*options, "--models", "gcn").output
    again = run(*options, "--models", "gcn,gat", "--resume")
    assert again.exit_code == 0, again.output
    assert "left out, as quick/multitask/paper-tuned has no results of them: gat" in again.output
    (row,) = [line for line in again.output.splitlines() if line.split()[:1] == ["GCN"]]
    assert row.split()[:3] == ["GCN", "2", "2"] and row.split()[-1] == "identical"
    assert before == {path: path.read_bytes() for path in folder.iterdir()}, "and nothing else"
    other = tmp_path / "quick-again" / "multitask" / "paper-tuned"
    assert list(json.loads((other / "facts.json").read_text())["populations"]) == ["gcn"]
    assert "Nothing was trained" in run(*options, "--models", "gcn").output
    shown = run(*options[:-1], "--models", "gcn").output
    assert "rows not shown: 1; to see all: pna report quick" in shown
    rows = [line.split()[0] for line in shown.splitlines() if line.split()[1:3] == ["all", "2"]]
    assert rows and {*rows} == {"GCN"}
    none = run(*options, "--models", "gat")
    assert none.exit_code == 1 and "got --again for gat, of which" in none.output


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_fresh_graphs_choose_then_test_and_say_what_is_missing(tmp_path, monkeypatch):
    for split in QUICK_COUNTS:  # so many that some graphs are not connected
        monkeypatch.setitem(QUICK_COUNTS, split, 16)
    options = ("--quick", "--workers", 1, "--device", "cpu", "--members", 1)
    early = run("fresh-test", "--models", "gcn", *options)
    assert early.exit_code == 1
    assert "run pna reproduce fresh-choice first, with the same options" in early.output
    done = run("fresh", "--models", "gcn", *options)
    assert done.exit_code == 0, done.output
    facts = tmp_path / "quick" / "fresh-test" / "paper-chosen" / "facts.json"
    assert list(json.loads(facts.read_text())["populations"]) == ["gcn"]
    again = run("fresh-test", "--again", *options)
    assert again.exit_code == 0 and "identical" in again.output, again.output


def test_of_a_group_those_after_one_that_fails_are_run(monkeypatch):
    def broken(*_, **__):
        raise ValueError("no luck")

    options = ("--quick", "--workers", 1, "--device", "cpu", "--members", 1, "--models", "gcn")
    with monkeypatch.context() as patch:
        patch.setattr("pna.paper.reproduce.train", broken)
        done = run("fresh", *options)
    assert done.exit_code == 1 and "no luck" in done.output
    assert "run pna reproduce fresh-choice first" in done.output
    assert "error: fresh-choice, fresh-test failed; see above" in done.output
    with monkeypatch.context() as patch:
        patch.setattr("pna.paper.reproduce.train", interrupt)
        stopped = run("fresh", *options)
    assert stopped.exit_code == 130 and "fresh-test" not in stopped.output


def test_the_best_run_is_kept_and_evaluates_to_its_own_number(tmp_path):
    options = ("multitask", "--quick", "--workers", 1, "--device", "cpu", "--models", "gcn,gin")
    kept = tmp_path / "quick" / "weights"
    done = run(*options, "--weights", kept)
    assert done.exit_code == 0, done.output
    results = tmp_path / "quick" / "multitask" / "paper-tuned"
    with (results / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["population"] == "gin"]
    best = min(rows, key=lambda row: float(row["validation"]))["member"]
    folder = kept / "multitask-paper-tuned-gin"
    assert json.loads((folder / "origin.json").read_text())["member"] == int(best)
    expected = {row["task"]: float(row["mse"]) for row in rows if row["member"] == best}
    graphs = tmp_path / "runs" / "paper-quick.safetensors"
    for missing in (False, True):  # the command finds the graphs in runs/, or makes them there
        if missing:
            graphs.unlink()
        found = CliRunner().invoke(app, ["evaluate", str(folder), "--json", "--device", "cpu"])
        assert found.exit_code == 0, found.output
        own = {t["name"]: t["scaled"]["mse"][0] for t in json.loads(found.output)["tasks"]}
        assert own == pytest.approx(expected, rel=1e-5)
    assert graphs.is_file()
    mean = sum(math.log10(error) for error in expected.values()) / len(expected)
    listed = (kept / "README.md").read_text()
    (line,) = [line for line in listed.splitlines() if "multitask-paper-tuned-gin" in line]
    assert f"| {best} | {mean:.2f} |".replace("-", "−") in line
    shutil.rmtree(tmp_path / "runs" / "paper-quick")
    gone = run(*options, "--weights", kept)
    assert gone.exit_code == 0 and "no weights of gcn, as runs/paper-quick/gcn-" in gone.output


@pytest.mark.slow
def test_a_benchmark_with_edges_alone_then_without(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "zinc", narrow("zinc"))
    runs = tmp_path / "runs"
    runs.mkdir()
    made("zinc").save(runs / "zinc.safetensors")
    options = ("--quick", "--workers", 1, "--device", "cpu", "--members", 1)
    done = run("zinc", "--model", "mpnn-sum,gated-gcn,gin", "--edges", *options)
    assert done.exit_code == 0, done.output
    assert "left out, as they do not exist with edge features: gin" in done.output
    folder = tmp_path / "quick" / "zinc" / "benchmark-published"
    assert {"scores.csv", "facts.json", "curves.csv", "zinc-edges.svg", "zinc-deep.svg"} <= {
        p.name for p in folder.iterdir()
    }
    held = json.loads((folder / "facts.json").read_text())["populations"]
    assert list(held) == ["gated-gcn edges", "mpnn-sum edges", "mpnn-sum deep"]
    assert "0.288" in done.output and "0.188" not in done.output, "the chosen rows alone"
    others = run("zinc", "--model", "mpnn-sum,gated-gcn", "--no-edges", *options)
    assert others.exit_code == 0, others.output
    both = json.loads((folder / "facts.json").read_text())["populations"]
    assert set(both) - set(held) == {"gated-gcn", "mpnn-sum"}, "and those that were there stay"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["multi"], "unknown experiment 'multi'; did you mean 'multitask'?"),
        (["moments", "--protocol", "published"], "unknown protocol 'published'"),
        (["multitask", "--recipe", "fast"], "unknown recipe 'fast'"),
        (["multitask", "--models", "gcm"], "unknown model 'gcm'; did you mean 'gcn'?"),
        (["multitask", "--device", "tpu"], "--device tpu"),
        (["multitask", "--edges"], "got --edges for 'multitask'"),
        (["zinc", "--model", "gcn", "--edges"], "got gcn with edge features"),
        (["zinc", "--recipe", "plain"], "unknown recipe 'plain'"),
        (["theory", "--again"], "got --again for 'theory', which is computed each time"),
        (["zinc", "--again"], "has no results, expected some to compare with; run it without"),
    ],
)
def test_refuses(arguments, message, tmp_path):
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["moments"], ["theory"], ["moments", "--runs"]])
def test_refuses_a_file_where_a_folder_should_be_before_the_work(arguments, tmp_path):
    (tmp_path / "file").write_text("kept")
    option = [] if arguments[-1] == "--runs" else ["--out"]
    done = run(*arguments, *option, "file")
    assert done.exit_code == 1
    assert "file is not a folder, expected one" in done.output
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_refuses_a_link_to_nowhere_before_the_work(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    done = run("moments", "--out", "link/results")
    assert done.exit_code == 1
    assert "link is not a folder, expected one" in done.output
