"""The real-world models of PyG's layers are ours, and their epochs are measured."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from pna.bench import measure, real_world
from pna.bench.epoch_times import measure_case
from pna.bench.layer_cases import has_pyg
from pna.bench.measure import Timing
from pna.bench.molecules import ATOMS, BONDS, molecules
from pna.bench.real_world import EXAMPLE, PYG, ROWS, cases
from pna.cli import app
from pna.data.graphset import GraphSet
from pna.paper.molhiv import ATOMS as OF_MOLHIV
from pna.paper.registry import EXPERIMENTS
from pna.train.models import build, count_parameters, fitted
from pna.train.settings import ModelSettings
from pna.train.tasks import tasks_of
from tests.bench.once import time_once

pytestmark = pytest.mark.filterwarnings("ignore:.*no score will be the benchmark's:UserWarning")

needs_pyg = pytest.mark.skipif(not has_pyg(), reason="needs PyG: pip install 'pna[pyg]'")

COUNT = 40


def like(name: str) -> GraphSet:
    """Graphs with the columns of a benchmark, all of them to train on."""
    shapes = molecules(COUNT)
    draw = torch.Generator().manual_seed(0)
    nodes, edges, senders = shapes.num_nodes, shapes.num_edges, shapes.edges
    held: dict[str, object] = {"x": shapes.x, "edge_attr": shapes.edge_attr}
    held |= {"y_graph": shapes.y_graph}
    metadata: dict[str, object] = {"benchmark": name}
    if name == "zinc":
        metadata |= {"node_values": [ATOMS], "edge_values": [BONDS]}
    if name == "molhiv":
        columns = [torch.randint(n, (nodes,), generator=draw) for n in OF_MOLHIV]
        kinds = torch.randint(2, (edges, 3), generator=draw)
        classes = torch.randint(2, (COUNT,), generator=draw).float()
        held = {"x": torch.stack(columns, 1), "edge_attr": kinds, "y_graph": classes}
    elif name != "zinc":
        held = {
            "x": torch.rand(nodes, 3, generator=draw),
            "edge_attr": torch.rand(edges, 1, generator=draw),
            "y_graph": torch.arange(COUNT) % 10,
        }
    return GraphSet.from_arrays(
        shapes.sizes,
        senders,
        shapes.edge_counts,
        split=["train"] * COUNT,
        metadata=metadata,
        **held,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs")
    for name in ROWS:
        like(name).save(folder / f"{name}.safetensors")
    return folder


def models(name: str) -> tuple[nn.Module, nn.Module, GraphSet]:
    """Ours with PyG's standard deviation, and the same of PyG's layers."""
    from pna.bench.pyg_models import Benchmarked

    graphs = like(name)
    (trial,) = EXPERIMENTS[name].trials(members=1, chosen=[ROWS[name]])
    model = fitted(trial.model, graphs, tasks_of(graphs, trial.loss))
    ours = build(replace(model, arguments=model.arguments | {"std": "pyg"}))
    torch.manual_seed(0)
    pyg = Benchmarked(model)
    return ours.eval(), pyg.eval(), graphs


def copy_encoder(ours: nn.Module, theirs: nn.Module) -> None:
    if isinstance(theirs, nn.Linear):
        ours.load_state_dict(theirs.state_dict())
    else:
        ours.weight.data.copy_(torch.cat([column.weight for column in theirs.columns]))


@needs_pyg
@pytest.mark.parametrize("name", ROWS)
def test_the_models_are_the_same(name: str) -> None:
    """As many parameters, and with PyG's weights the same predictions."""
    from torch_geometric.data import Batch

    ours, pyg, graphs = models(name)
    assert count_parameters(ours) == count_parameters(pyg)
    copy_encoder(ours.embed, pyg.embed)
    if pyg.embed_edges is not None:
        copy_encoder(ours.embed_edges, pyg.embed_edges)
    for own, theirs in zip(ours.convolutions, pyg.convs, strict=True):
        if name == "molhiv":
            pairs = [(own.conv.post[0], [theirs.post])]
        else:
            pairs = [(own.conv.pre[0], [pre[0] for pre in theirs.pre_nns])]
            pairs += [(own.conv.post[0], [post[0] for post in theirs.post_nns])]
        for layer, towers in pairs:
            layer.weight.data.copy_(torch.stack([tower.weight for tower in towers]))
            layer.bias.data.copy_(torch.stack([tower.bias for tower in towers]))
    linears = [layer for layer in pyg.head if isinstance(layer, nn.Linear)]
    for layers, given in ((ours.mixing, pyg.mixing), (ours.graph_head.layers, linears)):
        for layer, linear in zip(layers, given, strict=True):
            layer.load_state_dict(linear.state_dict())
    with torch.no_grad():
        expected = pyg(Batch.from_data_list(graphs.to_pyg()))
        torch.testing.assert_close(ours(graphs.batch()).graph, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@needs_pyg
@pytest.mark.parametrize("name", ["zinc", "molhiv"])
def test_epochs_are_measured(runs: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of full size are trained, also several members at a time."""
    time_once(monkeypatch)
    (case,) = cases("cpu", runs, small=True, only=name)
    rows = {r.contender: r for r in measure_case(case, "cpu", 0.01, status=lambda _: None)}
    members = EXPERIMENTS[name].members
    baseline = EXAMPLE if name == "zinc" else PYG
    names = ["pna, 1 member", f"pna, {members} members", PYG]
    assert list(rows) == ([*names, EXAMPLE] if name == "zinc" else names)
    assert all(row.ms and row.graphs == 32 and not row.note for row in rows.values())
    assert {row.beside for row in rows.values()} == {baseline}
    assert rows[names[1]].members == members
    assert rows[names[0]].parameters == rows[PYG].parameters


@needs_pyg
def test_long_epochs_are_told_from_some_steps(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two steps of PyG's one is taken, and its time is doubled."""
    monkeypatch.setattr(real_world, "_STEPS", 1)
    (case,) = cases("cpu", runs, small=True, only="mnist")
    contenders = {c.name: c for c in case.make(case, torch.device("cpu"))}
    assert (contenders[PYG].share, contenders[PYG].note) == (0.5, "told from 1 of 2 steps")
    assert contenders["pna, 1 member"].share == 1
    monkeypatch.setattr(measure, "time_calls", lambda calls, *_: [Timing(1.0, 0.5, 2.0, 3)])
    alone = replace(case, make=lambda case, device: [contenders[PYG]])
    (row,) = measure_case(alone, "cpu", 0.01, status=lambda _: None)
    assert (row.ms, row.ms_low, row.ms_high, row.per_second) == (2000, 1000, 4000, 0.5)
    assert row.note == "told from 1 of 2 steps"


def test_missing_graphs_are_a_row_that_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PNA_DATA", raising=False)
    (case,) = cases("cpu", Path("nowhere"), only="zinc")
    (row,) = measure_case(case, "cpu", 0.01, status=lambda _: None)
    assert (row.contender, row.ms) == ("all", None)
    assert "pna data zinc --out nowhere/zinc.safetensors" in str(row.note)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="zinc-sized"):
        cases("cpu", Path("runs"), only="zinc-sized")
    with pytest.raises(ValueError, match="got device 'meta', expected cpu or cuda"):
        cases("meta", Path("runs"))


@pytest.mark.slow
@needs_pyg
def test_the_command_prints_and_writes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of full size is trained, also several members at a time."""
    time_once(monkeypatch)
    path = tmp_path / "real-world.csv"
    asked = ["bench", "real-world", "--device", "cpu", "--small", "--seconds", "0.01"]
    asked += ["--runs", str(runs), "--only", "cifar10", "--out", str(path)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == ["pna, 1 member", "pna, 4 members", "PyG"]
    assert "small cifar10: 32 graphs" in result.output and "4 members take" in result.output
    asked[asked.index("--runs") + 1] = str(tmp_path / "none")
    monkeypatch.setenv("PNA_DATA", str(tmp_path))
    nothing = CliRunner().invoke(app, asked)
    assert nothing.exit_code == 1 and "nothing was measured: small cifar10: " in nothing.output
    with path.open(newline="") as file:
        assert list(csv.DictReader(file)) == rows  # they stay
    refused = CliRunner().invoke(app, ["bench", "real-world", "--only", "all"])
    assert refused.exit_code == 2 and "molhiv" in refused.output


def test_a_layer_that_pyg_is_not_given_is_refused() -> None:
    pytest.importorskip("torch_geometric")
    from pna.bench.pyg_models import Benchmarked

    arguments = {"layers": 1, "towers": 5}
    model = ModelSettings("pna", "stacked", 10, in_channels=3, graph_targets=1, degrees=(1, 1, 1))
    for odd in ({}, {"norm_before_mixing": True, "virtual_node": True}):
        with pytest.raises(ValueError, match="neither the authors' nor the simple one"):
            Benchmarked(replace(model, arguments=arguments | odd))
