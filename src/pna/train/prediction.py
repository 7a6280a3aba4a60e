"""Predictions of the trained models of a run, in the units of the targets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pna.data.attributes import has_tag, is_numbered
from pna.data.batch import Batch
from pna.data.diameter import diameters
from pna.data.graphset import GraphSet
from pna.data.molecule_table import read_molecules, smiles_column
from pna.data.molecules import ATOM_FEATURES, as_graphs
from pna.data.node_graph import NodeGraph
from pna.data.table import Table
from pna.data.tensor_file import kind_of
from pna.files import replacing
from pna.nn.architectures import Prediction
from pna.ops.aggregators import Aggregator
from pna.train.batches import Batches
from pna.train.distributed import device_of
from pna.train.layerwise import is_at_once, layerwise_outputs
from pna.train.population import Population
from pna.train.run import BEST, Config, Run, best_losses, load_population
from pna.train.settings import PRECISIONS
from pna.train.tasks import LOSSES, Task

_PREDICTED = "{} predicted"  # columns of a table


@dataclass(frozen=True)
class Predictions:
    """Columns of predictions for nodes and graphs, named after the targets.

    Targets trained with "bce" have the probability of a 1. Targets that are classes have a column
    with the most probable class, and a column ``name=c`` with the probability of each class c. If
    the run knows the names of the classes, c is a name, also of targets trained with "bce".
    """

    graph_ids: np.ndarray  # (graphs,) index of each graph in the set
    sizes: np.ndarray  # (graphs,) number of nodes
    node: dict[str, np.ndarray]  # (nodes,) each
    graph: dict[str, np.ndarray]  # (graphs,) each
    names: list[str] | None = None  # of the nodes of a `NodeGraph`, instead of their numbers

    def save(self, path: str | Path) -> list[Path]:
        """Write CSV files atomically; returns their paths.

        If there are predictions for nodes and graphs, those for nodes go to ``…-nodes.csv``.
        """
        paths = files(Path(path), bool(self.node), bool(self.graph))
        if self.graph:
            _write_csv(paths[0], {"graph": self.graph_ids, **self.graph})
        if self.node:
            nodes = [np.arange(size) for size in self.sizes.tolist()]
            which = {
                "graph": np.repeat(self.graph_ids, self.sizes),
                "node": np.concatenate([np.arange(0), *nodes]),
            }
            if self.names is not None:
                which = {"node": np.array(self.names, object)}
            _write_csv(paths[-1], which | self.node)
        return paths


def files(path: Path, node: bool, graph: bool) -> list[Path]:
    """The files of predictions: for graphs, then for nodes."""
    return [path, path.with_name(f"{path.stem}-nodes{path.suffix}")] if node and graph else [path]


def predict(
    run: Run | str | Path,
    data: GraphSet | str | Path,
    member: int | None = None,
    *,
    split: str | None = None,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
    slice_nodes: int | None = None,
) -> Predictions:
    """The mean prediction of the members of a run, with their best weights.

    Args:
        run: a run or its folder.
        data: a graph set or its file, or that of a `NodeGraph`, with the features of the training
            set; targets are ignored.
        member: predict with this member only. Default: all that had a finite validation loss.
        split: predict this split only. Default: all graphs, or all nodes of a `NodeGraph`.
        device: a device of torch. Default: a GPU if there is one.
        aggregators: the classes of your own aggregators, if the models have any.
        slice_nodes: with one graph, compute each layer for this many nodes at a time. Default: all
            at once if they fit into the free memory, otherwise as many as fit.
    """
    models = Ensemble.of(run, member, device, aggregators=aggregators)
    names = None
    if isinstance(data, GraphSet):
        graphs = data
    elif kind_of(Path(data)) == "pna.NodeGraph":
        whole = NodeGraph.load(data)
        graphs, names = whole.graph_set(), [whole.nodes.name(i) for i in range(whole.num_nodes)]
    else:
        graphs = GraphSet.load(data)
    ids = torch.arange(len(graphs))
    chosen = np.ones(graphs.num_nodes, bool)
    if split is not None and graphs.split_of_node is not None:
        chosen = has_tag("split", split, graphs.split_of_node, graphs.splits).cpu().numpy()
    elif split is not None:
        ids = ids[has_tag("split", split, graphs.split_of_graph, graphs.splits)]
        graphs = graphs[ids]
    node, graph = models.outputs(graphs, slice_nodes)
    columns: dict[str, dict[str, np.ndarray]] = {"node": {}, "graph": {}}
    for task in models.config.tasks:
        given = in_units(task, node if task.level == "node" else graph)
        if task.level == "node" and not chosen.all():
            given = given[:, chosen]
        columns[task.level] |= _columns_of(task, given.mean(0), models.config)
    sizes = graphs.sizes.numpy()
    if not chosen.all():
        first = np.repeat(np.arange(len(sizes)), sizes)[chosen]
        sizes = np.bincount(first, minlength=len(sizes))
        names = [str(i) for i in range(len(chosen))] if names is None else names
        names = [name for name, own in zip(names, chosen.tolist(), strict=True) if own]
    return Predictions(ids.numpy(), sizes, **columns, names=names)


def _columns_of(task: Task, mean: np.ndarray, config: Config) -> dict[str, np.ndarray]:
    """The columns of a task, from its mean prediction: (rows,) or (rows, classes)."""
    words = config.data.get("classes", {}).get(task.name)
    if words is not None and LOSSES[task.loss].outputs == "probability":
        likely = np.array(words, object)[(mean >= 0.5).astype(int)]
        return {task.name: likely, f"{task.name}={words[1]}": mean}
    if not LOSSES[task.loss].classes:
        return {task.name: mean}
    named = words or [str(c) for c in range(task.outputs)]
    likely = _likeliest(mean)
    if words is not None:
        likely = np.array([*words, ""], object)[np.where(np.isnan(likely), -1, likely).astype(int)]
    probabilities = {f"{task.name}={name}": mean[:, c] for c, name in enumerate(named)}
    return {task.name: likely} | probabilities


def predict_table(
    run: Run | str | Path,
    table: Table | str | Path,
    member: int | None = None,
    *,
    smiles: str = "",
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
) -> Table:
    """A table of molecules with the predictions of a run, in columns called "… predicted".

    If a molecule cannot be parsed, its cells are empty and a warning names its line. Arguments are
    those of `predict` and of `pna.data.molecule_table.from_table`. Needs ``pna[chem]``.
    """
    run = run if isinstance(run, Run) else Run(run)
    if any(task.level == "node" for task in run.config.tasks):
        raise ValueError(
            f"got {run.folder}, whose models predict targets of nodes, expected targets of "
            "molecules; use a graph set instead of the table"
        )
    names = run.config.data.get("features", {}).get("node", ATOM_FEATURES)
    if tuple(names) != ATOM_FEATURES:
        raise ValueError(
            f"got {run.folder}, whose models were trained with other features than the "
            "molecules of a table have; make a graph set of the table (pna data molecules), add "
            "the missing features (pna data walks), and use that"
        )
    table = table if isinstance(table, Table) else Table.read(table)
    table.check_without(_PREDICTED.format(task.name) for task in run.config.tasks)
    column = smiles_column(table, smiles)
    found, _ = read_molecules(table, column, True, workers, progress)
    graphs = as_graphs(found, metadata={})
    predictions = predict(run, graphs, member, device=device, aggregators=aggregators)
    more = {}
    for name, values in predictions.graph.items():
        cells = [""] * len(table.rows)
        for row, cell in zip(found.indices.tolist(), _cells(values), strict=True):
            cells[row] = cell
        more[_PREDICTED.format(name)] = cells
    return table.with_columns(more)


def _likeliest(probabilities: np.ndarray) -> np.ndarray:
    """The most probable class of each row; NaN if a probability is NaN."""
    classes, unknown = probabilities.argmax(1), np.isnan(probabilities).any(1)
    return np.where(unknown, np.nan, classes) if unknown.any() else classes


def in_units(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Predictions of a task from the outputs (members, rows, outputs) of a level.

    They are numbers in the units of the target (members, rows), probabilities of a 1 (members,
    rows), or probabilities of every class (members, rows, classes).
    """
    own = torch.from_numpy(outputs[..., task.first : task.end]).double()
    if LOSSES[task.loss].classes:
        return own.softmax(-1).numpy()
    alone = own[..., 0]
    is_logit = LOSSES[task.loss].outputs == "probability"
    return (alone.sigmoid() if is_logit else alone * task.scale).numpy()


@dataclass(frozen=True)
class Ensemble:
    """Members of a run on a device, ready to predict."""

    population: Population
    config: Config
    members: list[int]  # their numbers in the run
    validation: list[float]  # lowest validation loss of each

    @classmethod
    def of(
        cls,
        run: Run | str | Path,
        member: int | None = None,
        device: str | torch.device | None = None,
        epoch: str = "best",
        aggregators: Sequence[type[Aggregator]] = (),
    ) -> Ensemble:
        """One member of a run, or all that had a finite validation loss, with the weights of their
        "best" or "last" epoch; `aggregators` as for `pna.load`."""
        run = run if isinstance(run, Run) else Run(run)
        config = run.config
        population, _ = load_population(run, epoch, aggregators)
        best = best_losses(run.read(BEST)[1])
        if member is None:
            members = [k for k, loss in enumerate(best) if math.isfinite(loss)]
            members = members or list(range(len(best)))
        elif 0 <= member < len(best):
            members = [member]
        else:
            raise ValueError(
                f"got member {member} of {run.folder}, expected one of 0 to {len(best) - 1}"
            )
        population.keep(torch.tensor(members))
        population.to(device_of(device)).train(False)
        return cls(population, config, members, [best[k] for k in members])

    @torch.no_grad()
    def outputs(
        self, graphs: GraphSet, slice_nodes: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outputs for nodes and for graphs, (members, rows, outputs) each; there are 0 outputs if
        the models have no such targets. `slice_nodes` as for `predict`."""
        check_features(self.config, graphs)
        model, found = self.config.model, []
        widths = (model.node_targets, model.graph_targets)
        precision = PRECISIONS[self.config.settings.precision]
        if slice_nodes is not None or not is_at_once(self.population, graphs):
            with precision.context(self.population.device):
                outputs = layerwise_outputs(self.population, graphs, slice_nodes)
            return outputs.double().cpu().numpy(), np.zeros((len(self.members), len(graphs), 0))

        def step(batch: Batch) -> None:
            with precision.context(self.population.device):
                flat = self.population.apply(batch, _flattened)
            shapes = ((batch.num_nodes, widths[0]), (batch.num_graphs, widths[1]))
            parts = flat.double().cpu().split([rows * width for rows, width in shapes], 1)
            found.append([p.unflatten(1, s) for p, s in zip(parts, shapes, strict=True)])

        far = diameters(graphs) if model.arguments.get("depth") == "diameter" else None
        size = self.config.settings.batch_size
        batches = Batches(
            graphs.to(self.population.device), step, size, shuffle=False, diameters=far
        )
        batches.run(0)
        if not found:
            count = len(self.members)
            return np.zeros((count, 0, widths[0])), np.zeros((count, 0, widths[1]))
        node, graph = (torch.cat(level, 1).numpy() for level in zip(*found, strict=True))
        return node, graph


def _flattened(prediction: Prediction) -> Tensor:
    levels = (prediction.node, prediction.graph)
    return torch.cat([level.flatten() for level in levels if level is not None])


def check_features(config: Config, graphs: GraphSet) -> None:
    """Raise unless the graphs have the features that the model was trained with."""
    model, arguments = config.model, config.model.arguments
    names = config.data.get("features", {})  # runs of older versions have no names
    edge_columns = arguments.get("edge_columns") or arguments.get("edge_dim") or 0
    for what, columns, given, given_names in (
        ("node", model.in_channels, graphs.x, graphs.node_features),
        ("edge", edge_columns, graphs.edge_attr, graphs.edge_features),
    ):
        if columns == 0:
            continue  # the model does not use them
        width = 0 if given is None else given.shape[1]
        if given is None or width != columns:
            raise ValueError(
                f"got graphs with {width} {what} features, expected the {columns} that the model "
                "was trained with; make the graphs as those of its training set"
            )
        _check_names(what, given_names, names.get(what, given_names))
        for column, count in enumerate(arguments.get(f"{what}_values", ())):
            own = given[:, column]
            if count == 0 or len(own) == 0:
                continue
            if own.is_floating_point() and not torch.equal(own, own.floor()):
                raise ValueError(
                    f"got {what} features that are not whole numbers, expected whole numbers, with "
                    "which the model was trained"
                )
            if not (0 <= int(own.min()) and int(own.max()) < count):
                raise ValueError(
                    f"got {int(own.max())} in {what} feature {column}, expected 0 to {count - 1}, "
                    "the values in the training set; leave those graphs out, or train with them"
                )


def _check_names(what: str, given: Sequence[str], expected: Sequence[str]) -> None:
    """Raise if columns have other names; columns that are only numbered have none."""
    if is_numbered(given) or is_numbered(expected):
        return
    for column, (own, wanted) in enumerate(zip(given, expected, strict=True)):
        if own != wanted:
            raise ValueError(
                f"got {own!r} as {what} feature {column}, expected {wanted!r}, as the model was "
                "trained with; put the columns in the order of its training set"
            )


def _cells(column: np.ndarray) -> list[str]:
    return [f"{value:.9g}" if isinstance(value, float) else str(value) for value in column.tolist()]


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    texts = [_cells(column) for column in columns.values()]
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*texts, strict=True))
