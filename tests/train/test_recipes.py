"""Recipes of `pna train`: what they set, and graphs with the features that they ask for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data.encodings import ENCODINGS
from pna.data.graphset import GraphSet
from pna.data.kept_graphs import kept_encodings
from pna.data.node_graph import NodeGraph
from pna.data.walks import steps_of, with_walks
from pna.paper.best import BLOCK, INGREDIENTS, choose, together
from pna.paper.results import load_for_choice
from pna.train import Run
from pna.train.defaults import arguments_of, model_for, settings_for
from pna.train.models import build, fitted
from pna.train.recipes import BEST, RECIPES
from pna.train.settings import Settings
from pna.train.tasks import tasks_of
from tests.paper.test_real_world import made

CHOSEN = Path(__file__).parents[2] / "results" / INGREDIENTS.name / "benchmark-published"
SHORT = ("--epochs", 1, "--device", "cpu", "--model", "pna")


def run(*arguments: object) -> str:
    """What `pna` printed; an error starts with "error:"."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    output = " ".join(done.output.split())
    assert (done.exit_code == 0) != ("error:" in output), output
    return output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made("zinc").save(tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_trained(name: str) -> None:
    recipe, graphs = RECIPES[name], made("zinc")
    assert recipe.encodings.keys() <= ENCODINGS.keys()
    assert recipe.settings.keys() <= {f.name for f in fields(Settings)}
    settings = settings_for(graphs, {}, recipe)
    assert all(getattr(settings, key) == value for key, value in recipe.settings.items())
    model = model_for(graphs, "pna", {}, recipe=recipe)
    found = model.arguments | {"hidden": model.hidden}
    assert all(found[key] == value for key, value in recipe.arguments.items())
    build(fitted(model, graphs, tasks_of(graphs, "mae")))


def test_the_best_recipe_is_the_block_that_validation_chose() -> None:
    """Until the ingredients are trained, it is the block as it is."""
    taken = choose(*load_for_choice(CHOSEN)) if CHOSEN.is_dir() else ()
    block = together(BLOCK, taken)
    arguments = {k: v for k, v in block.arguments.items() if k != "norm" or v != "batch"}
    assert arguments | {"hidden": block.hidden} == BEST.arguments
    changes = {k: (v,) if k in ("lr", "weight_decay") else v for k, v in block.changes.items()}
    assert changes | {"patience": None, "shuffle": True} == BEST.settings
    sizes = (*block.walks, *block.laplacian)
    given = dict(zip(("walks", "edge-walks", "laplacian", "edge-heat"), sizes, strict=True))
    assert {name: size for name, size in given.items() if size} == BEST.encodings


def test_graphs_get_the_features_and_other_options_come_first(data: Path, tmp_path: Path) -> None:
    before = data.read_bytes()
    out = tmp_path / "run"
    printed = run("train", data, "--recipe", "best", "--out", out, "--hidden", 10, "--dropout",
                  0.1, *SHORT)  # fmt: skip
    (kept,) = tmp_path.glob("own-*.safetensors")
    assert kept.name in printed and data.read_bytes() == before
    assert "got 36 graphs with the recipe best, which is for sets of thousands" in printed
    whole, bare = GraphSet.load(kept), GraphSet.load(data)
    expected = with_walks(bare, 20, 8)
    assert steps_of(whole) == (20, 8) and torch.equal(whole.x, expected.x)
    assert torch.equal(whole.edge_attr, expected.edge_attr)
    config = Run(out).config
    assert Path(config.data["path"]) == kept.resolve()
    assert config.settings.epochs == 1 and config.settings.average == BEST.settings["average"]
    arguments = config.model.arguments
    assert (config.model.hidden, arguments["towers"], arguments["dropout"]) == (10, 5, 0.1)
    assert arguments["out_channels"] == 5
    assert arguments["layers"] == 5 and arguments["edge_updates"]

    made_at = kept.stat().st_mtime_ns
    run("train", data, "--recipe", "best", "--out", tmp_path / "two", "--hidden", 10, *SHORT)
    assert kept.stat().st_mtime_ns == made_at  # used again
    run("predict", out, data, "--out", tmp_path / "p.csv", "--device", "cpu")  # bare graphs
    run("predict", out, kept, "--out", tmp_path / "q.csv", "--device", "cpu")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()


def test_a_kept_file_that_is_damaged_or_of_other_graphs_is_made_again(
    data: Path, tmp_path: Path
) -> None:
    """And a set that is written again has the same bytes, so that its kept file is found."""
    first, _ = kept_encodings(data, BEST.encodings)
    whole = first.read_bytes()
    GraphSet.load(data).save(data, force=True)
    assert kept_encodings(data, BEST.encodings)[0] == first
    first.write_bytes(whole[:-9])
    with pytest.warns(UserWarning, match="it is made again"):
        kept_encodings(data, BEST.encodings)
    assert first.read_bytes() == whole
    first.write_bytes(data.read_bytes())
    assert kept_encodings(data, BEST.encodings) == (first, [("edge-walks", 8), ("walks", 20)])
    assert first.read_bytes() == whole


def test_walks_of_edges_that_are_not_used_are_not_computed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("train", data, "--recipe", "best", "--out", out, "--hidden", 10, "--no-edges", *SHORT)
    assert steps_of(GraphSet.load(Path(Run(out).config.data["path"]))) == (20, 0)


def test_a_set_that_has_the_features_is_taken_as_it_is(data: Path, tmp_path: Path) -> None:
    with_walks(GraphSet.load(data), 3, 2).save(data, force=True)
    printed = run(
        "train", data, "--recipe", "best", "--out", tmp_path / "run", "--hidden", 10, *SHORT
    )
    assert not list(tmp_path.glob("own-*.safetensors"))
    assert "encodings edge-walks=2, walks=3 are in" in printed
    assert Run(tmp_path / "run").config.model.in_channels == 4


def test_other_towers_have_a_last_layer_of_their_own_width() -> None:
    assert arguments_of(BEST, "pna", {"towers": 2})["out_channels"] == 48
    assert arguments_of(BEST, "pna", {"towers": 2, "hidden": 10})["out_channels"] == 8
    with pytest.raises(ValueError, match="a recipe of 7 towers, expected a multiple of 7"):
        arguments_of(BEST, "pna", {"towers": 7})


def test_what_a_recipe_does_not_fit_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    printed = run("train", data, "--recipe", "best", "--out", out, "--model", "gin")
    assert "got the model 'gin' with a recipe, expected one with towers and edge" in printed
    printed = run("train", data, "--recipe", "best", "--out", out, "--hidden", 12)
    assert "a multiple of 5 above it; set hidden to 10 or 15" in printed
    printed = run("train", data, "--recipe", "best", "--out", out, "--architecture", "standard")
    assert "got architecture=standard with a recipe, expected stacked" in printed
    assert "unknown recipe 'bset'; did you mean 'best'?" in run("train", data, "--recipe", "bset")
    graph = tmp_path / "graph.safetensors"
    NodeGraph.from_networkx(_path(), target="y", random_split=(0.6, 0.2, 0.2)).save(graph)
    printed = run("train", graph, "--recipe", "best", "--out", out)
    assert "one graph, with a recipe for many graphs" in printed
    assert not out.exists() and not list(tmp_path.glob("own-*.safetensors"))


def _path() -> object:
    networkx = pytest.importorskip("networkx", reason="needs networkx: pip install networkx")
    graph = networkx.path_graph(9)
    networkx.set_node_attributes(graph, {n: {"y": n % 2, "a": float(n)} for n in graph})
    return graph
