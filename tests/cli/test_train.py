"""`pna train`, `pna evaluate` and `pna predict`, from a file of graphs to one of predictions."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import pna
from pna.cli import app
from pna.cli.progress import show_epochs
from pna.cli.show import caption, lines
from pna.data import NodeGraph
from pna.train import Report, Run, Settings
from pna.train.evaluation import Evaluation, TaskScores
from pna.waiting import displayed, note, waiting_for
from tests import processes
from tests.train.small_runs import small_multitask

SMALL = ("--hidden", 8, "--epochs", 2, "--device", "cpu")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def output_of(done):
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "graphs.safetensors"
    small_multitask().save(path)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run, and what was printed as it was made."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = run("train", data, "--out", folder, "--members", 2, *SMALL)
    assert done.exit_code == 0, done.output
    return folder, output_of(done)


def test_train_prints_and_writes(trained, data):
    folder, printed = trained
    for words in ("epoch 1 of 2: training", "epoch 2 of 2", "2 of 2 members", "lr 0.001",
                  "spectral_radius", "average", f"pna evaluate {folder}"):  # fmt: skip
        assert words in printed
    config = Run(folder).config
    assert config.data["path"] == str(data.resolve())
    assert config.model.architecture == "recurrent" and config.model.arguments == {"towers": 4}
    assert config.settings == Settings(members=2, epochs=2, batch_size=512, shuffle=False)


def test_a_virtual_node(data, tmp_path):
    """Is of stacked models alone."""
    small = ("--layers", 2, "--hidden", 4, "--virtual-node", "--epochs", 1, "--quiet")
    out = tmp_path / "run"
    done = run("train", data, "--out", out, "--architecture", "stacked", *small, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert Run(out).config.model.arguments["virtual_node"] is True
    odd = run("train", data, "--out", tmp_path / "odd", "--virtual-node")
    assert odd.exit_code == 1 and "use the architecture stacked" in odd.output


def test_options_arrive(data, tmp_path):
    done = run(
        "train", data, "--out", tmp_path / "run", "--model", "mpnn-max", "--members", 2,
        "--architecture", "standard", "--layers", 2, "--hidden", 4, "--towers", 2, "--dropout", 0.1,
        "--readout", "max", "--init", "published", "--seed", 3, "--data-seed", 4, "--epochs", 1,
        "--patience", 0, "--batch-size", 8, "--shuffle", "--optimiser", "adamw",
        "--lr", "1e-2,1e-3", "--weight-decay", "1e-4", "--schedule", "plateau", "--warmup", 1,
        "--decay", 0.8, "--plateau", 5, "--min-lr", "1e-5", "--clip", 2, "--average", 0.9,
        "--precision", "float64", "--balance", "--even", "--tasks", "sssp, connected",
        "--loss", "connected=bce", "--weights", "sssp=2", "--splits", "train,test",
        "--device", "cpu", "--save-every", 1, "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0 and done.stdout == "", done.output
    # a warning is a line, and told in quiet too
    words = "warning: balance leaves the loss of 'connected' as it is: its targets are all the same"
    assert done.stderr.splitlines() == [words]
    config = Run(tmp_path / "run").config
    assert config.settings == Settings(
        members=2, seed=3, data_seed=4, epochs=1, patience=None, batch_size=8, optimiser="adamw",
        lr=(1e-2, 1e-3), weight_decay=(1e-4,), schedule="plateau", warmup=1, decay=0.8, plateau=5,
        min_lr=1e-5, clip=2, average=0.9, precision="float64", balance=True, even=True,
    )  # fmt: skip
    assert (config.model.convolution, config.model.hidden) == ("mpnn-max", 4)
    assert config.model.init == "published"
    assert config.model.arguments == {
        "towers": 2, "layers": 2, "dropout": 0.1, "readout": "max", "final": "none",
    }  # fmt: skip
    tasks = [(task.name, task.loss, task.weight) for task in config.tasks]
    assert tasks == [("sssp", "mse", 2), ("connected", "bce", 1)]
    assert config.data["splits"] == ["train", "test"]


@pytest.mark.parametrize(("model", "part"), [("mlp-gated", "gate"), ("diffpool", "clusters")])
def test_models_that_are_more_than_a_convolution(data, tmp_path, model, part):
    folder = tmp_path / "run"
    done = run("train", data, "--out", folder, "--model", model, "--members", 2, *SMALL)
    assert done.exit_code == 0, done.output
    assert len(list(getattr(pna.load(folder), part).parameters())) > 0
    done = run("predict", folder, data, "-o", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output


def test_json(data, tmp_path):
    folder = tmp_path / "run"
    done = run("train", data, "--out", folder, "--members", 2, *SMALL, "--json")
    *epochs, last = (json.loads(line) for line in done.stdout.splitlines())
    assert [line["epoch"] for line in epochs] == [1, 2]
    assert all(len(line["validation"]) == 2 for line in epochs)
    assert last["run"] == str(folder) and last["summary"]["epochs"] == 2
    assert last["validation"]["loss"] == pytest.approx(epochs[1]["best"], rel=1e-4)


def test_a_broken_member_is_told_once(data, tmp_path):
    options = ("--members", 2, "--lr", "1e-3,1e38", "--hidden", 8, "--epochs", 4, "--device", "cpu")
    done = run("train", data, "--out", tmp_path / "run", *options)
    assert done.exit_code == 0, done.output
    assert output_of(done).count("member 1: loss not finite by epoch") == 1
    assert "frozen, the others continue" in output_of(done) and "1 of 2 members broke" in output_of(
        done
    )
    quiet = run("train", data, "--out", tmp_path / "quiet", *options, "--quiet")
    assert output_of(quiet).count("member 1: loss not finite by epoch") == 1
    assert "epoch 4 of 4" not in output_of(quiet)


def test_a_member_that_only_validation_finds_broken(data, tmp_path):
    """Its one step, of the last batch, made weights that no loss is finite with."""
    options = ("--members", 2, "--lr", "1e-3,1e30", "--batch-size", 10_000, "--hidden", 8)
    done = run("train", data, "--out", tmp_path / "run", *options, "--epochs", 1, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "1 epoch in" in output_of(done)
    assert "never a finite validation loss: member 1." in output_of(done)


def test_all_members_broken(data, tmp_path):
    done = run("train", data, "--out", tmp_path / "run", "--lr", "1e38", *SMALL, "--quiet")
    assert done.exit_code == 1 and "every member is not finite; lower --lr" in output_of(done)


def test_all_members_broken_late(data, tmp_path, monkeypatch):
    """What was good before is kept, and told of; by a step of infinite size in the third epoch."""
    inner = pna.train.trainer.Trainer.run_epoch

    def run_epoch(self, epoch):
        self.member_state.lr.fill_(float("inf") if epoch == 2 else 1e-3)
        return inner(self, epoch)

    monkeypatch.setattr(pna.train.trainer.Trainer, "run_epoch", run_epoch)
    folder = tmp_path / "run"
    done = run("train", data, "--out", folder, "--hidden", 8, "--epochs", 5, "--device", "cpu")
    assert done.exit_code == 0, done.output
    summary = Run(folder).summary
    assert summary["broken"] == [True] and summary["epochs"] == 3
    best = f"{summary['best'][0]:.4g}"
    assert f"loss not finite by epoch 3; frozen, its best, {best}, is kept" in output_of(done)
    kept = f"best weights before that are kept, of member 0 of epoch {summary['best_epoch'][0]};"
    assert f"every member is not finite after 3 epochs; the {kept}" in output_of(done)
    assert "spectral_radius" in output_of(done) and "1 of 1 members broke" in output_of(done)
    assert run("evaluate", folder, "--device", "cpu").exit_code == 0


def test_a_new_folder_in_runs(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert run("train", data, "--model", "gcn", *SMALL, "--quiet").exit_code == 0
        assert Run(f"runs/graphs-gcn-{number}").summary is not None


def test_interrupted_and_resumed(data, tmp_path):
    """Ctrl-C leaves a run that goes on to where it would have come."""
    folder = tmp_path / "run"
    training = processes.started(
        tmp_path, processes.command_line, "train", data, "--out", folder, "--hidden", 8,
        "--epochs", 50, "--device", "cpu", "--json",
    )  # fmt: skip
    printed = tmp_path / "stdout"
    while training.is_alive() and not (printed.is_file() and printed.stat().st_size):
        time.sleep(0.005)  # until an epoch is done
    assert training.pid is not None
    os.kill(training.pid, signal.SIGINT)
    done = processes.ended(training, tmp_path, timeout=60)
    assert done.returncode == 130
    assert f"pna train --resume {folder}" in " ".join(done.stderr.split())
    done = run("train", "--resume", folder, "--json", "--device", "cpu")
    assert done.exit_code == 0, done.output
    epochs = [json.loads(line).get("epoch") for line in done.stdout.splitlines()]
    assert epochs[0] > 1 and epochs[-2:] == [50, None]
    assert [row["epoch"] for row in Run(folder).metrics()] == list(range(1, 51))


def test_resume_for_more_epochs(data, tmp_path):
    folder = tmp_path / "run"
    assert run("train", data, "--out", folder, *SMALL, "--quiet").exit_code == 0
    done = run("train", "--resume", folder, "--epochs", 4, "--device", "cpu")
    assert done.exit_code == 0 and "epoch 4 of 4" in output_of(done), done.output
    assert [row["epoch"] for row in Run(folder).metrics()] == [1, 2, 3, 4]
    refused = run("train", "--resume", folder, "--epochs", 1)
    assert refused.exit_code == 1 and "expected at least the 4 that are done" in output_of(refused)


def test_resume_wants_the_graphs_and_no_settings(data, tmp_path):
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(data.read_bytes())
    folder = tmp_path / "run"
    assert run("train", moved, "--out", folder, *SMALL, "--quiet").exit_code == 0
    refused = run("train", "--resume", folder, "--lr", 1, "--batch-size", 2)
    assert refused.exit_code == 1 and "got --batch-size, --lr with --resume" in output_of(refused)
    moved.unlink()
    gone = run("train", "--resume", folder)
    assert gone.exit_code == 1 and "moved.safetensors, but that is gone" in output_of(gone)
    assert run("train", data, "--resume", folder, "--device", "cpu").exit_code == 0


def test_the_folder_of_another_run_is_kept(trained, data):
    done = run("train", data, "--out", trained[0], *SMALL)
    assert done.exit_code == 1 and "which is not empty, expected a new folder" in output_of(done)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "pan"], "unknown convolution 'pan'; did you mean 'pna'?"),
        (["--depth", "N/3"], "unknown rule of depth 'N/3'"),
        (["--layers", 3], "layers=3 for a recurrent model"),
        (["--device", "abacus"], "got --device abacus, which cannot be used"),
        (["--lr", "fast"], "got lr 'fast', expected a number"),
        (["--lr", "1,2"], "got 2 numbers for lr"),
        (["--weights", "sssp"], "got 'sssp' in weights, expected target=value"),
        (["--weights", "sssp=much"], "got 'sssp=much' in weights"),
        (["--loss", "sss=mse"], "unknown target 'sss'"),
        (["--loss", "square"], "unknown loss 'square'"),
        (["--tasks", "laplace"], "unknown target 'laplace'"),
        (["--splits", "train"], "got splits 'train', expected two"),
        (["--splits", "train,valid"], "unknown split 'valid'"),
        (["--schedule", "cosinus"], "unknown schedule 'cosinus'; did you mean 'cosine'?"),
        (["--seed", -1], "got seed=-1, expected a number of at least 0"),
        (["--weights", "sssp=nan"], "got nan as the weight of the target 'sssp'"),
        (["--loss", "diameter=bce"], "for the target 'diameter' in the split 'train', expected"),
    ],
)
def test_refuses(data, tmp_path, arguments, message):
    done = run("train", data, "--out", tmp_path / "run", "--epochs", 1, *arguments)
    assert done.exit_code == 1
    assert output_of(done).startswith("error: ") and message in output_of(done)
    assert len(done.output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_graphs():
    done = run("train")
    assert done.exit_code == 1 and "expected one: pna train DATA" in output_of(done)
    done = run("train", "nothing.safetensors")
    assert done.exit_code == 1 and "got nothing.safetensors, expected a file there" in output_of(
        done
    )


def test_evaluate(trained):
    folder, _ = trained
    done = run("evaluate", folder, "--device", "cpu")
    assert done.exit_code == 0, done.output
    for words in ("test, 8 graphs", "mean prediction of 2 members", "eccentricity", "log10 MSE"):
        assert words in output_of(done)
    one = run("evaluate", folder, "--split", "validation", "--member", 1, "--json")
    found = json.loads(one.stdout)
    assert found["members"] == [1] and found["split"] == "validation"
    assert found["loss"] == pytest.approx([Run(folder).summary["best"][1]], rel=1e-4)


def test_evaluate_refuses(trained, tmp_path):
    assert "expected one of 0 to 1" in output_of(run("evaluate", trained[0], "--member", 7))
    assert "unknown split 'tests'" in output_of(run("evaluate", trained[0], "--split", "tests"))
    done = run("evaluate", tmp_path)
    assert done.exit_code == 1 and "expected the folder of a run" in output_of(done)


def test_predict(trained, data, tmp_path):
    out = tmp_path / "out.csv"
    options = ("-o", out, "--member", 1, "--split", "test", "--device", "cpu")
    done = run("predict", trained[0], data, *options)
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", "out-nodes.csv"}
    graphs = pna.GraphSet.load(data)
    with torch.no_grad():
        given = pna.load(trained[0], 1)(graphs.split("test").batch())
    for path, outputs, names, scales in (
        (out, given.graph, graphs.graph_targets, graphs.graph_scale),
        (tmp_path / "out-nodes.csv", given.node, graphs.node_targets, graphs.node_scale),
    ):
        rows = list(csv.DictReader(path.open()))
        written = np.array([[float(row[name]) for name in names] for row in rows])
        np.testing.assert_allclose(written, outputs * torch.tensor(scales), rtol=1e-4, atol=1e-5)
    again = run("predict", trained[0], data, *options)
    assert again.exit_code == 1 and "--force overwrites it" in output_of(again)
    assert run("predict", trained[0], data, *options, "--force").exit_code == 0


def test_predict_refuses_graphs_with_other_features(trained, data, tmp_path):
    graphs = pna.GraphSet.load(data)
    other = tmp_path / "other.safetensors"
    replace(graphs, x=graphs.x[:, :1].clone(), node_features=("source",)).save(other)
    done = run("predict", trained[0], other, "-o", tmp_path / "out.csv")
    assert (
        done.exit_code == 1
        and "got graphs with 1 node features ('feature' missing)" in output_of(done)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["other.safetensors"]


def test_a_terminal_shows_a_bar(capsys):
    console = Console(force_terminal=True, width=100)
    report = Report(3, 10, 2.0, [0.5, 0.25, 0.75], [0.5, 0.3, 0.4], [0.5, 0.2, 0.4],
                    [True, True, False], [False, False, True], [0.1, 0.01, 0.1])  # fmt: skip
    with show_epochs(console, False, False) as tell:
        tell(report)
        tell(replace(report, epoch=4))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("member 2: loss not finite by epoch 3") == 1
    assert "epoch 4 of 10: training 0.375 (best 0.25), validation 0.4 (best 0.3)" in printed
    with show_epochs(console, False, False) as tell:
        tell(replace(report, select="roc_auc"))
    assert "best ROC AUC so far 0.8000, 2 of 3" in " ".join(capsys.readouterr().out.split())
    assert "best so far 0.2, 2 of 3 members, lr 0.01 to 0.1, at most 0:00:12 left" in printed


def test_plain_lines_come_now_and_then(capsys, monkeypatch):
    now = iter(range(0, 20, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with show_epochs(Console(width=200), False, False) as tell:
        for epoch in range(1, 9):
            tell(Report(epoch, 8, 1.0, [1.0], [1.0], [1.0], [True], [False], [0.1]))
    told = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert told == ["1", "4", "7", "8"]


def test_plain_lines_say_what_is_waited_for(capsys, monkeypatch):
    """If that takes seconds, and until the first epoch has ended."""
    now = iter([0, 1, 5, 6, 11, 12])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with show_epochs(Console(width=200), False, False) as tell:
        for number in range(4):
            waiting_for(f"compiling the kernel {number}")
        tell(Report(1, 8, 1.0, [1.0], [1.0], [1.0], [True], [False], [0.1]))
        waiting_for("recording a step")
    *waits, epoch = capsys.readouterr().out.splitlines()
    assert waits == ["compiling the kernel 1 …", "compiling the kernel 3 …"]
    assert epoch.startswith("epoch 1 of 8")


def test_a_terminal_says_what_is_waited_for(capsys):
    console = Console(force_terminal=True, width=100)
    with show_epochs(console, False, False):
        waiting_for("reading the graphs")
    assert "reading the graphs …" in capsys.readouterr().out


def test_json_and_quiet_commands_do_not_say_what_is_waited_for(capsys):
    for quiet, as_json in ((True, False), (False, True)):
        with show_epochs(Console(force_terminal=True), quiet, as_json):
            waiting_for("reading the graphs")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_notes_stay(capsys, terminal):
    with show_epochs(Console(force_terminal=terminal, width=100), False, False):
        note("full batch")
    assert "full batch\n" in capsys.readouterr().out
    for quiet, as_json in ((True, False), (False, True)):
        with show_epochs(Console(force_terminal=terminal), quiet, as_json):
            note("full batch")
    assert capsys.readouterr().out == ""


def test_one_graph(tmp_path):
    """The mode is said first, and slices have the same results."""
    networkx = pytest.importorskip("networkx")
    graph, folder = tmp_path / "graph.safetensors", tmp_path / "run"
    data = networkx.karate_club_graph()
    NodeGraph.from_networkx(data, target="club", random_split=(0.6, 0.2, 0.2)).save(graph)
    done = run("train", graph, "--out", folder, "--full-batch", "--layers", 2, *SMALL)
    assert done.output.startswith("full batch: needs about ")
    assert Run(folder).config.settings.full_batch
    whole, sliced = (
        output_of(run("evaluate", folder, "--device", "cpu", *given))
        for given in ((), ("--slice-nodes", 9))
    )
    assert "ROC AUC" in whole and whole == sliced
    done = run("train", graph, "--out", tmp_path / "2", "--full-batch", "--sample", "3,2", *SMALL)
    assert done.exit_code == 1 and "leave one out" in done.output


def test_training_says_what_is_waited_for(data, tmp_path):
    told = []
    with displayed(told.append):
        run("train", data, "--out", tmp_path / "run", *SMALL, "--json")
    assert told == [
        "reading the graphs",
        "moving models and graphs to cpu",
        "running the first steps",
    ]


@pytest.mark.slow
def test_training_does_not_wait_for_imports(data, tmp_path):
    """Of packages that take seconds, and that it does not need."""
    arguments = [str(a) for a in ("train", data, "--out", tmp_path / "run", *SMALL, "--json")]
    script = (
        "import sys\nfrom pna.cli import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "print(sorted({'sympy', 'scipy', 'matplotlib', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_damaged_metrics(data, tmp_path):
    """Are refused by line, and repaired where that is asked for."""
    out = tmp_path / "run"
    assert run("train", data, "--out", out, *SMALL, "--quiet").exit_code == 0
    path = out / "metrics.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\x00" + b"".join(lines[1:]))
    done = run("train", "--resume", out, "--device", "cpu")
    assert done.exit_code == 1 and f"error: got {path}, line 2, which is not a row" in output_of(
        done
    )
    assert output_of(done).endswith(f"pna train --resume {out} --repair-metrics")
    done = run("train", "--resume", out, "--device", "cpu", "--quiet", "--repair-metrics")
    assert done.exit_code == 0, done.output
    assert output_of(done) == (
        f"warning: {path} continues with 1 rows up to epoch 2; the damaged file is now "
        f"{path}.damaged-1"
    )
    assert run("train", "--resume", out, "--device", "cpu", "--quiet").output == ""
    done = run("train", data, "--out", tmp_path / "new", "--repair-metrics")
    assert done.exit_code == 1 and "got --repair-metrics without --resume" in output_of(done)


def test_the_table_of_one_graph_names_its_nodes_and_class_1():
    task = TaskScores("status", "node", "bce", [0.5], {"f1": [0.9]}, [0.5], rows=203, class_1="ok")
    found = Evaluation("run", "test", 1, [0], 0, [task], [0.5], {})
    assert caption(found) == "test, 203 nodes; member 0:"
    assert lines(found) == ["status: class 1 is ok; F1 and average precision are those of class 1"]
    both = replace(found, tasks=[task, replace(task, class_1="1")])
    assert caption(both) == "test, 1 graph; member 0:" and lines(both) == lines(found)
