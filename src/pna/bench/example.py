"""A whole training loop of PyG's users, of which only the import of the layer changes.

    splits = read_splits(Path("runs"), graphs=2_000)
    for result in measure(splits, "cpu"):
        print(result)

The model, the optimiser and the loop are those of PyG's example for ZINC, `examples/pna.py`: four
layers of five towers between embeddings, BatchNorm and a readout, batches of 128 from PyG's
DataLoader, Adam, and a plateau of the validation error that halves the learning rate. An epoch is
the training, then the validation and the test. Both models begin with equal weights and see equal
batches. They train in turns.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pna.bench.measure import Log, synchronize
from pna.bench.molecules import molecules
from pna.bench.real_world import trial_of
from pna.data.graphset import GraphSet
from pna.nn import PNAConv

PYG, OURS, FREE = "PyG", "pna", "no layer"
SPLITS = ("train", "validation", "test")
BATCH = 128
_HELD_OUT = 10  # graphs to train on for each graph to validate on, as in ZINC
_SMALL = 200  # graphs

Graphs = Mapping[str, list[Any]]  # PyG's `Data` by split


@dataclass(frozen=True)
class ExampleResult:
    """One row: medians of epochs in milliseconds, and the errors of the last epoch."""

    case: str
    contender: str
    graphs: int  # to train on
    batch_size: int
    epochs: int
    parameters: int
    ms: float  # of an epoch
    ms_low: float  # the fastest epoch
    ms_high: float
    training_ms: float  # of its training
    loss: float  # mean absolute error in training
    validation: float  # mean absolute error
    faster: float  # times as fast as PyG


@dataclass(frozen=True)
class _Epoch:
    seconds: float
    training: float  # seconds of it
    loss: float
    validation: float


def read_splits(runs: Path, graphs: int | None = None, workers: int = 1) -> Graphs:
    """ZINC from the folder `runs`, made there if missing; `graphs` of it, and a tenth held out."""
    path = trial_of("zinc", "pna edges", 1).graphs.made(runs, workers)
    every = GraphSet.load(path)
    held_out = None if graphs is None else max(1, graphs // _HELD_OUT)
    most = {"train": graphs, "validation": held_out, "test": held_out}
    return {name: _data(every.split(name)[: most[name]]) for name in SPLITS}


def small_splits() -> Graphs:
    """A few random molecules, to try the benchmark."""
    held_out = _SMALL // _HELD_OUT
    sizes = {"train": _SMALL, "validation": held_out, "test": held_out}
    return {name: _data(molecules(sizes[name], seed)) for seed, name in enumerate(SPLITS)}


def measure(
    splits: Graphs,
    device: torch.device | str,
    epochs: int = 3,
    case: str = "example",
    status: Log = print,
) -> list[ExampleResult]:
    """Rows of PyG, of ours, and of the same loop without a layer: no layer makes it faster.

    A first epoch of each, to warm up, does not count.
    """
    device = torch.device(device)
    pyg = _model(splits["train"]).to(device)
    models = {PYG: pyg, OURS: _with_layers(pyg, PNAConv.from_pyg)}
    models[FREE] = _with_layers(pyg, lambda _: _NoLayer())
    runs = {name: _epochs(model, splits, device) for name, model in models.items()}
    found: dict[str, list[_Epoch]] = {name: [] for name in models}
    for number in range(epochs + 1):
        for name, run in runs.items():
            status(f"epoch {number} of {epochs}: {name}")
            torch.manual_seed(number)  # for equal batches
            found[name].append(next(run))
    rows = []
    pyg_seconds = statistics.median(epoch.seconds for epoch in found[PYG][1:])
    for name, model in models.items():
        timed = found[name][1:]
        seconds = [epoch.seconds for epoch in timed]
        middle = statistics.median(seconds)
        rows.append(
            ExampleResult(
                case=case,
                contender=name,
                graphs=len(splits["train"]),
                batch_size=BATCH,
                epochs=epochs,
                parameters=sum(p.numel() for p in model.parameters()),
                ms=1e3 * middle,
                ms_low=1e3 * min(seconds),
                ms_high=1e3 * max(seconds),
                training_ms=1e3 * statistics.median(epoch.training for epoch in timed),
                loss=timed[-1].loss,
                validation=timed[-1].validation,
                faster=pyg_seconds / middle,
            )
        )
    return rows


def _data(graphs: GraphSet) -> list[Any]:
    """PyG's graphs, with the columns of its own ZINC and no other for the loader to join."""
    found = graphs.to_pyg()
    for graph in found:
        for name in set(graph.keys()) - {"x", "edge_index", "edge_attr", "y"}:
            del graph[name]
    return found


def _model(training: list[Any]) -> nn.Module:
    from torch_geometric.nn import PNAConv as PyGConv

    from pna.bench.pyg_models import Molecules

    atoms = 1 + max(int(graph.x.max()) for graph in training)
    bonds = 1 + max(int(graph.edge_attr.max()) for graph in training)
    # the held-out graphs may have kinds that these do not, as PyG's example allows for 21 and 4
    return Molecules(max(atoms, 28), max(bonds, 4), PyGConv.get_degree_histogram(training))


def _with_layers(model: nn.Module, layer: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A copy of the model with other layers."""
    found: Any = copy.deepcopy(model)
    found.convs = nn.ModuleList(layer(conv) for conv in found.convs)
    return found


class _NoLayer(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return x


def _epochs(model: nn.Module, splits: Graphs, device: torch.device) -> Iterator[_Epoch]:
    """An epoch at each step, as PyG's users write it."""
    from torch_geometric.loader import DataLoader

    loaders = {
        name: DataLoader(splits[name], batch_size=BATCH, shuffle=name == "train") for name in SPLITS
    }
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = ReduceLROnPlateau(optimiser, factor=0.5, patience=20, min_lr=1e-5)

    def train() -> float:
        model.train()
        total = 0.0
        for batch in loaders["train"]:
            batch = batch.to(device)
            optimiser.zero_grad()
            loss = _errors(model, batch).mean()
            loss.backward()
            total += loss.item() * batch.num_graphs
            optimiser.step()
        return total / len(splits["train"])

    @torch.no_grad()
    def evaluate(name: str) -> float:
        model.eval()
        total = 0.0
        for batch in loaders[name]:
            total += _errors(model, batch.to(device)).sum().item()
        return total / len(splits[name])

    while True:
        start = time.perf_counter()
        loss = train()
        synchronize(device)
        trained = time.perf_counter()
        validation = evaluate("validation")
        evaluate("test")
        schedule.step(validation)
        synchronize(device)
        yield _Epoch(time.perf_counter() - start, trained - start, loss, validation)


def _errors(model: nn.Module, batch: Any) -> Tensor:
    """Absolute errors, (graphs,)."""
    out: Tensor = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    return (out - batch.y).abs()
