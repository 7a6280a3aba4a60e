"""Shared by the real-world experiments: graphs, rows of the tables, and settings of training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from pna.data.graphset import GraphSet
from pna.data.laplacian import laplacian_of, with_laplacian
from pna.data.walks import steps_of, with_walks
from pna.names import lookup
from pna.paper.experiment import Experiment, PlannedRun, Progress, Source, Variant
from pna.train.settings import ModelSettings, Settings

#: The module whose function named after the benchmark makes its graphs, and the numbers of graphs
#: to train, to validate and to test.
BENCHMARKS = {
    "zinc": ("pna.data.zinc", (10_000, 1_000, 1_000)),
    "molhiv": ("pna.data.molhiv", (32_901, 4_113, 4_113)),
    "mnist": ("pna.data.superpixels", (55_000, 5_000, 10_000)),
    "cifar10": ("pna.data.superpixels", (45_000, 5_000, 10_000)),
}

#: Graphs of each split, and epochs, of quick runs.
QUICK_GRAPHS, QUICK_EPOCHS = 128, 2

#: Labels of rows, in the order of the paper's table.
LABELS = {
    "mlp": "MLP",
    "mlp-gated": "MLP, gated",
    "gcn": "GCN",
    "sage": "GraphSage",
    "gin": "GIN",
    "diffpool": "DiffPool",
    "gat": "GAT",
    "monet": "MoNet",
    "gated-gcn": "GatedGCN",
    "mpnn-sum": "MPNN (sum)",
    "mpnn-max": "MPNN (max)",
    "pna-no-scalers": "PNA without scalers",
    "pna": "PNA",
}

#: Groups of rows.
GROUPS = {"": "no edge features", "edges": "edge features"}

#: Default settings of training. A plateau is counted as in torch: a patience of 5 means six epochs
#: without any improvement.
COMMON: dict[str, Any] = {
    "epochs": 1000,
    "patience": None,
    "batch_size": 128,
    "lr": 1e-3,
    "schedule": "plateau",
    "plateau": 6,
    "min_lr": 1e-5,
    "keep_last": True,
}


@dataclass(frozen=True)
class Benchmark:
    """Graphs of a benchmark; if `quick`, the first few of each split. Features of nodes and of
    edges are added for the steps of random `walks` and for the `laplacian`."""

    benchmark: str
    quick: bool = False
    walks: tuple[int, int] = (0, 0)
    laplacian: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        name = self.benchmark
        for what in ("walks", "laplacian"):
            if any(sizes := getattr(self, what)):
                name += f"-{what}-{sizes[0]}-{sizes[1]}"
        return f"{name}-quick" if self.quick else name

    def made(self, folder: Path, workers: int = 1, progress: Progress | None = None) -> Path:
        """The file of these graphs in a folder; a missing file is made as by `pna data`."""
        path = folder / f"{self.name}.safetensors"
        if path.is_file():
            self._check(path)
            return path
        if any(self.walks) or any(self.laplacian):
            bare = Benchmark(self.benchmark, self.quick).made(folder, workers, progress)
            graphs = GraphSet.load(bare)
            graphs = with_walks(graphs, *self.walks) if any(self.walks) else graphs
            graphs = with_laplacian(graphs, *self.laplacian) if any(self.laplacian) else graphs
        elif self.quick:
            full = GraphSet.load(Benchmark(self.benchmark).made(folder, workers, progress))
            graphs = first_of_splits(full, QUICK_GRAPHS)
        else:
            module, _ = lookup("benchmark", self.benchmark, BENCHMARKS)
            make: Callable[..., GraphSet] = getattr(import_module(module), self.benchmark)
            given = {"workers": workers, "progress": progress}
            taken = signature(make).parameters  # ZINC's are there at once
            graphs = make(**{name: value for name, value in given.items() if name in taken})
        folder.mkdir(parents=True, exist_ok=True)
        graphs.save(path)
        return path

    def _check(self, path: Path) -> None:
        """Raise unless a file holds these graphs; warn if it holds only a part of them."""
        graphs = GraphSet.load(path)
        stored = graphs.metadata.get("benchmark"), steps_of(graphs), laplacian_of(graphs)
        if stored != (self.benchmark, self.walks, self.laplacian):
            of, walks, laplacian = stored
            raise ValueError(
                f"got {path} with graphs of {of or 'no benchmark'}, walks of {walks} steps of "
                f"nodes and edges and a Laplacian of {laplacian}, expected {self.benchmark}, "
                f"{self.walks} and {self.laplacian}; move it away, and the graphs are made"
            )
        if graphs.split_of_graph is None:
            raise ValueError(
                f"got {path} without splits, expected those of {self.benchmark}; move it away, and "
                "the graphs are made"
            )
        counts = torch.bincount(graphs.split_of_graph, minlength=3).tolist()
        _, expected = BENCHMARKS[self.benchmark]
        if not self.quick and tuple(counts) != expected:
            warnings.warn(
                f"got {path} with {_and(counts)} graphs to train, validate and test, where "
                f"{self.benchmark} has {_and(expected)}: no score will be the "
                "benchmark's; move it away, and the graphs are made",
                stacklevel=3,
            )


def _and(counts: Sequence[int]) -> str:
    return "{:,}, {:,} and {:,}".format(*counts)


def first_of_splits(graphs: GraphSet, count: int) -> GraphSet:
    """The first graphs of every split."""
    assert graphs.split_of_graph is not None
    indices = [
        (graphs.split_of_graph == split).nonzero()[:count, 0] for split in range(len(graphs.splits))
    ]
    return graphs[torch.cat(indices)]


@dataclass(frozen=True)
class RealWorld(Experiment):
    """A column of the paper's real-world table: its rows on one benchmark.

    Without a `benchmark`, its name is that of the benchmark. A variant's `changes` are to `COMMON`
    and to the experiment's own `settings`; "init" is of its weights.
    """

    protocols: tuple[str, ...] = ("benchmark",)
    recipes: tuple[str, ...] = ("published",)
    epochs: tuple[str, ...] = ("last", "best")
    scored: str = "last"
    splits: tuple[str, ...] = ("test", "validation")
    members: int = 4
    figure: str = "benchmark"
    ordered: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    benchmark: str = ""

    def __post_init__(self) -> None:
        lookup("benchmark", self.benchmark or self.name, BENCHMARKS)

    def tests(self, protocol: str, quick: bool = False) -> Benchmark:
        return Benchmark(self.benchmark or self.name, quick)

    def tests_of(self, trial: PlannedRun, protocol: str, quick: bool = False) -> Source:
        return trial.graphs

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        name = self.benchmark or self.name
        graphs = Benchmark(name, quick, variant.walks, variant.laplacian)
        settings = COMMON | {"seed": self.seed} | self.settings | variant.changes
        if quick:
            settings["epochs"] = QUICK_EPOCHS
        init = settings.pop("init", "default")
        model = ModelSettings(
            variant.convolution, variant.architecture, variant.hidden, init, variant.arguments
        )
        return PlannedRun(variant, graphs, model, Settings(members=members, **settings), self.loss)


def with_towers(
    row: str,
    hidden: int,
    out: int,
    edge_width: int = 0,
    *,
    layers: int = 4,
    dropout: float = 0.0,
    graph_norm: bool = True,
    group: str | None = None,
    **changes: Any,
) -> Variant:
    """A row of the paper's own models in the authors' layer: five divided towers, normalised before
    they are mixed. Without an `edge_width` the model does not use edge features."""
    arguments = {
        "layers": layers, "out_channels": out, "towers": 5, "divide_input": True,
        "norm_before_mixing": True, "graph_norm": graph_norm, "dropout": dropout,
    }  # fmt: skip
    if edge_width:
        arguments |= {"edge_width": edge_width, "encode_edges": False}
    else:
        arguments["edges"] = False
    where = ("edges" if edge_width else "") if group is None else group
    return Variant(row, LABELS[row], row, where, "stacked", hidden, arguments, changes)


def from_benchmark(row: str, hidden: int, group: str = "", **arguments: Any) -> Variant:
    """A row of the benchmark's own four-layer models."""
    arguments = {
        "layers": 4, "readout": "mean", "graph_norm": True, "edges": bool(group), **arguments,
    }  # fmt: skip
    return Variant(row, LABELS[row], row, group, "stacked", hidden, arguments)


#: MLPs see neither edges nor the size of a graph, except through a sum as readout.
_BARE: dict[str, Any] = {"graph_norm": False, "batch_norm": False, "residual": False}

#: The benchmark's models at about 100,000 parameters.
BASELINES = (
    from_benchmark("mlp", 150, **_BARE),
    from_benchmark("mlp-gated", 135, readout="sum", **_BARE),
    from_benchmark("gcn", 145),
    from_benchmark("sage", 108, normalise=True, act_before_norm=True),
    from_benchmark("gin", 105, readout="sum"),
    from_benchmark("diffpool", 73),
    from_benchmark("gat", 144, heads=8),
    from_benchmark("monet", 90),
    from_benchmark("gated-gcn", 70),
    from_benchmark("gated-gcn", 70, "edges"),
)


def names_in(group: str, rows: Iterable[Variant]) -> list[str]:
    """Names of the populations of a group."""
    return [variant.name for variant in rows if variant.group == group]
