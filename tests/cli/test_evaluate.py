"""`pna evaluate` and `pna predict` on runs that are not whole: an error, never a traceback."""

import json
import math

import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.train.run import BEST
from tests.train.small_runs import molecules, small_multitask, small_run


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def output_of(done):
    return " ".join(done.output.split())


@pytest.fixture
def trained(tmp_path):
    return small_run(small_multitask(), tmp_path / "run", members=1, epochs=1).folder


def test_the_weights_of_another_run(trained, tmp_path):
    """Whose weights would fit, but were trained for another loss."""
    other = small_run(small_multitask(), tmp_path / "other", loss="mae", members=1, epochs=1)
    (trained / BEST).write_bytes((other.folder / BEST).read_bytes())
    for asked in (
        ("evaluate", trained),
        ("predict", trained, f"{trained}.safetensors", "-o", tmp_path / "out.csv"),
    ):
        done = run(*asked)
        assert done.exit_code == 1 and "best.safetensors, which does not belong to" in output_of(
            done
        )


def test_graphs_without_the_targets(trained, tmp_path):
    path = tmp_path / "molecules.safetensors"
    molecules().save(path)
    done = run("evaluate", trained, path)
    assert done.exit_code == 1
    assert "molecules.safetensors without the node target 'sssp'" in output_of(done)


def test_a_missing_target_is_told_of(trained, tmp_path):
    graphs, path = small_multitask(), tmp_path / "missing.safetensors"
    graphs.y_graph[:, 0] = math.nan
    graphs.save(path)
    done = run("evaluate", trained, path)
    name = graphs.graph_targets[0]
    assert done.exit_code == 0
    assert f"warning: got no value of the target '{name}' in the split 'test' of" in output_of(done)
    assert "log10 of the mean MSE: nan" not in output_of(done)
    found = json.loads(run("evaluate", trained, path, "--json").stdout)
    assert found["loss"][0] is not None


def test_a_run_of_no_epochs(tmp_path):
    path, folder = tmp_path / "graphs.safetensors", tmp_path / "run"
    small_multitask().save(path)
    begun = ("train", path, "--epochs", 0, "--device", "cpu", "--out")
    done = run(*begun, folder)
    assert done.exit_code == 0 and "0 epochs in" in output_of(done), done.output
    printed = run(*begun, tmp_path / "told", "--json").stdout
    assert json.loads(printed.splitlines()[-1])["validation"] is None
    assert f"pna train --resume {folder} --epochs 10" in output_of(run("evaluate", folder))
