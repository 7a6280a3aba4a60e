"""An epoch of training beside the same model made of PyG's layers, in the same process.

    for case in cases("cpu"):
        results = measure_case(case, "cpu")

All graphs are on the device, except those of PyG's loader; float32, no TF32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.bench.epoch_times import AUTHORS, COMPILED, LOADED, OURS, PYG, Contender, EpochCase
from pna.bench.epochs import (
    our_contender,
    pyg_contender,
    trainer_of,
    with_validation,
    without_validation,
)
from pna.bench.layer_cases import has_pyg
from pna.bench.measure import check_device
from pna.bench.molecules import ATOMS, BONDS, molecules
from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.names import lookup
from pna.train.settings import ModelSettings, Settings

RECURRENT = ModelSettings(init="published", arguments={"towers": 4})
STACKED = ModelSettings(
    architecture="stacked",
    hidden=75,
    arguments={"towers": 5, "edge_width": 50, "layers": 4, "head": [50, 25],
               "residual": False, "readout": "sum"},
)  # fmt: skip

MULTITASK = Settings(shuffle=False, lr=(0.003,), weight_decay=(1e-6,), patience=None)
MOLECULES = Settings(patience=None)


def cases(
    device: torch.device | str, small: bool = False, only: str | None = None
) -> tuple[EpochCase, ...]:
    """Cases that are measured on a device; on a CPU a population only if asked for."""
    kind = check_device(device)
    sizes = tuple(range(15, 25))
    every: tuple[EpochCase, ...] = (
        EpochCase("population", _population, AUTHORS, 512, sizes, published=kind == "cuda"),
        EpochCase("multitask", _multitask, PYG, 512, sizes),
        EpochCase("zinc-sized", _zinc, PYG, 10_000 if kind == "cuda" else 1_280, batch_size=128),
    )
    if small:
        every = (
            EpochCase("small population", _population, AUTHORS, 8, (6,), batch_size=8),
            EpochCase("small multitask", _multitask, PYG, 8, (6,), batch_size=8),
            EpochCase("small zinc-sized", _zinc, PYG, 16, batch_size=16),
        )
    elif kind == "cpu" and only is None:
        every = every[1:]
    if only is None:
        return every
    chosen = {case.name.removeprefix("small "): case for case in every}
    return (lookup("case", only, chosen),)


def _population(case: EpochCase, device: torch.device) -> list[Contender]:
    """Ten runs at once, and one."""
    parts = multitask_parts(case.sizes, case.graphs)
    return [_trained(parts, case, device, members) for members in (10, 1)]


def _multitask(case: EpochCase, device: torch.device) -> list[Contender]:
    """One run of ours, and PyG's."""
    parts = multitask_parts(case.sizes, case.graphs)
    ours = _trained(parts, case, device, 1, OURS)
    return [ours, _pyg_multitask(*parts, case, device)] if has_pyg() else [ours]


def multitask_parts(sizes: Sequence[int], count: int) -> tuple[GraphSet, GraphSet]:
    """Graphs to train on, so many of each size, and to validate on."""
    counts = {"train": count, "validation": max(count // 4, 1), "test": 0}
    graphs = multitask(0, "published", sizes=sizes, counts=counts)
    return graphs.split("train"), graphs.split("validation")


def _trained(
    parts: tuple[GraphSet, GraphSet],
    case: EpochCase,
    device: torch.device,
    members: int,
    name: str = "",
) -> Contender:
    settings = replace(MULTITASK, members=members, batch_size=case.batch_size)
    trainer = trainer_of(*parts, RECURRENT, settings, "mse", device)
    return our_contender(trainer, with_validation(trainer), name)


def _pyg_multitask(
    training: GraphSet, validation: GraphSet, case: EpochCase, device: torch.device
) -> Contender:
    """PyG trains on the same batches, and validates one batch for each size of graph."""
    from pna.bench.pyg_models import Recurrent

    degrees = torch.bincount(training.degree.long())
    targets = len(training.node_targets), len(training.graph_targets)
    model = Recurrent(len(training.node_features), 16, *targets, degrees).to(device)
    to_train = _pyg_batches(training, case.batch_size, device)
    to_validate = _pyg_batches(validation, len(validation) // len(case.sizes), device)

    def loss(batch: Any, size: int) -> Tensor:
        node, graph = model(batch, size)
        errors = [(node - batch.y_node).square().mean(0), (graph - batch.y_graph).square().mean(0)]
        return torch.cat(errors).mean()

    training_epoch = pyg_contender(PYG, model, lambda b: loss(*b), lambda: to_train, MULTITASK)

    def epoch() -> None:
        training_epoch.epoch()
        model.eval()
        with torch.no_grad():
            torch.stack([loss(*batch) for batch in to_validate]).mean()

    return replace(training_epoch, epoch=epoch)


def _pyg_batches(graphs: GraphSet, batch_size: int, device: torch.device) -> list[tuple[Any, int]]:
    """Batches with scaled targets on the device, and how many nodes their graphs have."""
    from torch_geometric.data import Batch

    data = graphs.to_pyg()
    found = []
    for first in range(0, len(data), batch_size):
        batch = Batch.from_data_list(data[first : first + batch_size])
        batch.y_node = batch.y_node / torch.tensor(graphs.node_scale)
        batch.y_graph = batch.y_graph / torch.tensor(graphs.graph_scale)
        size = int(graphs.sizes[first])
        assert bool((graphs.sizes[first : first + batch_size] == size).all())
        found.append((batch.to(device), size))
    return found


def _zinc(case: EpochCase, device: torch.device) -> list[Contender]:
    """An epoch without validation of the model of PyG's example."""
    graphs = molecules(case.graphs)
    settings = replace(MOLECULES, batch_size=case.batch_size)
    trainer = trainer_of(graphs, graphs[:1], STACKED, settings, "mae", device)
    ours = our_contender(trainer, without_validation(trainer), OURS)
    return [ours, *_pyg_zinc(graphs, case, device)] if has_pyg() else [ours]


def _pyg_zinc(graphs: GraphSet, case: EpochCase, device: torch.device) -> Iterator[Contender]:
    """PyG with its loader; on a GPU also with batches already there, and compiled."""
    from torch_geometric.loader import DataLoader

    from pna.bench.pyg_models import Molecules

    data = graphs.to_pyg()
    for graph in data:
        graph.y = graph.y / graphs.graph_scale[0]
    loader = DataLoader(data, batch_size=case.batch_size, shuffle=True)
    degrees = torch.bincount(graphs.degree.long())

    def contender(name: str, batches: Iterable[Any], compiled: bool = False) -> Contender:
        model = Molecules(ATOMS, BONDS, degrees).to(device)
        forward: Any = torch.compile(model, dynamic=True) if compiled else model

        def loss(b: Any) -> Tensor:
            b = b.to(device)
            out = forward(b.x, b.edge_index, b.edge_attr, b.batch, b.num_graphs)
            return F.l1_loss(out, b.y)

        return pyg_contender(name, model, loss, lambda: batches, MOLECULES)

    yield contender(PYG, loader)
    if device.type == "cuda":
        loaded = [batch.to(device) for batch in loader]
        yield contender(LOADED, loaded)
        yield contender(COMPILED, loaded, compiled=True)
