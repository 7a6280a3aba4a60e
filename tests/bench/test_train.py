from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pna.bench import epoch_times, train
from pna.bench.epoch_times import (
    AUTHORS,
    OURS,
    PYG,
    Contender,
    EpochCase,
    EpochResult,
    measure_case,
)
from pna.bench.layer_cases import has_pyg
from pna.bench.molecules import molecules
from pna.bench.train import cases
from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.nn import PNAConv
from pna.train.models import build, count_parameters, fitted
from pna.train.settings import ModelSettings
from pna.train.tasks import tasks_of

needs_pyg = pytest.mark.skipif(not has_pyg(), reason="needs PyG: pip install 'pna[pyg]'")


def measured(case: EpochCase) -> list[EpochResult]:
    return measure_case(case, "cpu", 0.01, status=lambda _: None)


def made_of(*contenders: Contender, **values: Any) -> EpochCase:
    return EpochCase("made", lambda case, device: list(contenders), PYG, 8, **values)


def test_rates_count_members_and_are_told_beside_another() -> None:
    spin = torch.randn(200, 200)
    work = [
        Contender(OURS, lambda: spin @ spin, 1, members=10),
        Contender(PYG, lambda: spin @ spin, 1),
    ]
    ours, pyg = measured(made_of(*work))
    assert ours.ms is not None and pyg.ms is not None
    assert ours.per_second == pytest.approx(10 * 1e3 / ours.ms)
    assert ours.faster == pytest.approx(10 * pyg.ms / ours.ms)
    assert (ours.beside, pyg.faster) == (PYG, 1)


def test_the_authors_time_is_marked_as_a_constant() -> None:
    case = replace(made_of(Contender(OURS, lambda: None, 1)), baseline=AUTHORS, published=True)
    ours, authors = measured(case)
    assert (authors.contender, authors.ms, authors.faster) == (AUTHORS, 1530, 1)
    assert "not in this run" in str(authors.note)
    assert ours.faster == pytest.approx(1530 / ours.ms)


def test_one_that_fails_does_not_stop_the_others() -> None:
    def fail() -> None:
        raise RuntimeError("no\nmemory")

    ours, pyg = measured(made_of(Contender(OURS, lambda: None, 1), Contender(PYG, fail, 1)))
    assert ours.ms is not None and ours.note is None
    assert (pyg.ms, pyg.note, ours.faster) == (None, "RuntimeError: no memory", None)


def test_a_case_that_cannot_be_set_up_is_one_row() -> None:
    def fail(case: EpochCase, device: torch.device) -> list[Contender]:
        raise RuntimeError("no")

    (row,) = measured(EpochCase("odd", fail, PYG, 8))
    assert (row.contender, row.note) == ("all", "RuntimeError: no")


def test_what_takes_too_long_is_interrupted() -> None:
    with pytest.raises(TimeoutError, match=r"took more than 0\.05 s"), epoch_times._at_most(0.05):
        while True:
            pass


def test_molecules_are_molecule_like() -> None:
    graphs = molecules(500)
    assert graphs.num_nodes / 500 == pytest.approx(23, abs=1)
    assert graphs.num_edges / 500 == pytest.approx(50, abs=2)
    assert int(graphs.degree.max()) == 4 and int(graphs.degree.min()) == 1
    assert torch.equal(graphs.degree, graphs.out_degree)
    for columns, kinds in ((graphs.x, 28), (graphs.edge_attr, 4)):
        assert columns is not None
        assert (int(columns.min()), int(columns.max())) == (0, kinds - 1)
    sender, receiver = graphs[:1].edges
    pairs = set(zip(sender.tolist(), receiver.tolist(), strict=True))
    assert len(pairs) == len(sender) and all((b, a) in pairs for a, b in pairs)
    assert torch.equal(molecules(500).edges, graphs.edges)


def of_stated_size(graphs: GraphSet, settings: ModelSettings, loss: str = "mse") -> nn.Module:
    tasks = tasks_of(graphs, loss)
    arguments = {**settings.arguments, "std": "pyg"}
    return build(fitted(replace(settings, arguments=arguments), graphs, tasks))


@needs_pyg
def test_the_recurrent_models_are_the_same() -> None:
    from pna.bench.pyg_models import Recurrent

    graphs = multitask(0, sizes=[7], counts={"train": 12, "validation": 1, "test": 0})
    graphs = graphs.split("train")
    ours = of_stated_size(graphs, train.RECURRENT)
    pyg = Recurrent(2, 16, 3, 3, torch.bincount(graphs.degree.long()))
    assert count_parameters(ours) == count_parameters(pyg) == 8350
    ours.first.conv, ours.again.conv = PNAConv.from_pyg(pyg.first), PNAConv.from_pyg(pyg.again)
    ours.gru.load_state_dict(pyg.gru.state_dict())
    lstm = {name.removesuffix("_l0"): t for name, t in pyg.set2set.lstm.state_dict().items()}
    ours.set2set.load_state_dict(lstm)
    for theirs, own in ((pyg.node_head, ours.node_head), (pyg.graph_head, ours.graph_head)):
        linears = [layer for layer in theirs if isinstance(layer, nn.Linear)]
        for layer, linear in zip(own.layers, linears, strict=True):
            layer.load_state_dict(linear.state_dict())
    ((batch, size),) = train._pyg_batches(graphs, 12, torch.device("cpu"))
    node, graph = pyg(batch, size)
    got = ours(graphs.batch())
    torch.testing.assert_close(got.node, node, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.graph, graph, rtol=1e-3, atol=1e-4)
    assert batch.y_node.max() == 1  # scaled, as ours are


@needs_pyg
def test_the_molecule_models_are_the_same() -> None:
    from torch_geometric.data import Batch

    from pna.bench.pyg_models import Molecules

    graphs = molecules(10)
    ours = of_stated_size(graphs, train.STACKED, "mae")
    pyg = Molecules(28, 4, torch.bincount(graphs.degree.long()))
    assert count_parameters(ours) == count_parameters(pyg)
    ours.embed.weight.data.copy_(pyg.atoms.weight)
    ours.embed_edges.weight.data.copy_(pyg.bonds.weight)
    for own, theirs in zip(ours.convolutions, pyg.convs, strict=True):
        own.conv = PNAConv.from_pyg(theirs)
    linears = [layer for layer in pyg.head if isinstance(layer, nn.Linear)]
    for layer, linear in zip(ours.graph_head.layers, linears, strict=True):
        layer.load_state_dict(linear.state_dict())
    b = Batch.from_data_list(graphs.to_pyg())
    expected = pyg(b.x, b.edge_index, b.edge_attr, b.batch, b.num_graphs)
    torch.testing.assert_close(ours(graphs.batch()).graph[:, 0], expected, rtol=1e-3, atol=1e-3)


def test_a_population_on_a_cpu_if_asked_for() -> None:
    assert [case.name for case in cases("cpu")] == ["multitask", "zinc-sized"]
    assert [case.name for case in cases("cpu", only="population")] == ["population"]
    assert [case.name for case in cases("cpu", True, "population")] == ["small population"]


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="zinc"):
        cases("cpu", only="zinc")
    with pytest.raises(ValueError, match="got device 'meta', expected cpu or cuda"):
        cases("meta")
