"""Predictions of the trained models of a run, in the units of the targets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pna.data.attributes import has_tag, is_numbered
from pna.data.batch import Batch
from pna.data.diameter import diameters
from pna.data.edge_labels import UNDIRECTED, message_edges
from pna.data.encodings import completed
from pna.data.graphset import GraphSet
from pna.data.node_graph import KIND, NodeGraph
from pna.data.tensor_file import kind_of
from pna.files import replacing
from pna.names import lookup
from pna.nn.architectures import Prediction
from pna.ops.aggregators import Aggregator
from pna.ops.precision import quick_products
from pna.train.batches import Batches
from pna.train.calibration import TaskCalibration, calibrations_of
from pna.train.distributed import device_of
from pna.train.fold_runs import runs_of
from pna.train.layerwise import is_at_once, layerwise_outputs
from pna.train.mask_columns import graph_for, learners
from pna.train.population import Population
from pna.train.run import BEST, Config, Run, best_losses, load_population
from pna.train.settings import ALL, PRECISIONS
from pna.train.tasks import LEVELS, LOSSES, Task
from pna.train.temperature import scaled
from pna.train.threshold import thresholds_of

#: The name of a column of predictions in a table.
PREDICTED = "{} predicted"
#: The name of a column with the standard deviation over the members.
STD = "{}_std"
#: The names of the columns with the ends of an interval.
ENDS = ("{}_low", "{}_high")


@dataclass(frozen=True)
class Predictions:
    """Columns of predictions for nodes, graphs and edges, named after the targets.

    Targets trained with "bce" have the probability of a 1. Targets that are classes have a column
    with the most probable class, and a column ``name=c`` with the probability of each class c. If
    the run knows the names of the classes, c is a name, also of targets trained with "bce".

    If several members predict, `spread` has a column ``name_std`` for each target that is a number
    or is trained with "bce": the standard deviation over the members, in units of the target or of
    the probability. It divides by the number of members. If an interval was asked for, columns
    ``name_low`` and ``name_high`` have its ends.
    """

    graph_ids: np.ndarray  # (graphs,) index of each graph in the set
    sizes: np.ndarray  # (graphs,) number of nodes
    node: dict[str, np.ndarray]  # (nodes,) each
    graph: dict[str, np.ndarray]  # (graphs,) each
    names: list[str] | None = None  # of the nodes of a `NodeGraph`, instead of their numbers
    edge: dict[str, np.ndarray] = field(default_factory=dict)  # (labelled edges,) each
    #: What the file has in front of `edge`: the row of each edge, and its ends.
    edge_ids: dict[str, np.ndarray] = field(default_factory=dict)
    #: Columns of uncertainty by level, (rows,) each; they follow all others in files.
    spread: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def save(self, path: str | Path) -> list[Path]:
        """Write CSV files atomically; returns their paths.

        If several levels have predictions, those for nodes go to ``…-nodes.csv``, and those for
        edges to ``…-edges.csv``.
        """
        by_level = {"graph": self.graph, "node": self.node, "edge": self.edge}
        paths = files(Path(path), [level for level, columns in by_level.items() if columns])
        which = {"graph": {"graph": self.graph_ids}, "edge": self.edge_ids}
        if self.node:
            nodes = [np.arange(size) for size in self.sizes.tolist()]
            which["node"] = {
                "graph": np.repeat(self.graph_ids, self.sizes),
                "node": np.concatenate([np.arange(0), *nodes]),
            }
            if self.names is not None:
                which["node"] = {"node": np.array(self.names, object)}
        for level, file in paths.items():
            columns = _joined(which[level], by_level[level])
            _write_csv(file, _joined(columns, self.spread.get(level, {})))
        return list(paths.values())


def _joined(first: dict[str, np.ndarray], more: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All columns. One whose name is taken gets another, so that none is lost."""
    found = dict(first)
    for name, column in more.items():
        while name in found:
            name = PREDICTED.format(name)
        found[name] = column
    return found


def files(path: Path, levels: Collection[str]) -> dict[str, Path]:
    """The files of predictions by level: for graphs, then for nodes, then for edges."""
    own = [level for level in ("graph", "node", "edge") if level in levels]
    return {
        level: path
        if level == "graph" or len(own) == 1
        else path.with_name(f"{path.stem}-{level}s{path.suffix}")
        for level in own
    }


def predict(
    run: Run | str | Path,
    data: GraphSet | str | Path,
    member: int | None = None,
    *,
    split: str | None = None,
    device: str | torch.device | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
    slice_nodes: int | None = None,
    interval: float | None = None,
) -> Predictions:
    """The mean prediction of the members of a run, with their best weights.

    Args:
        run: a run or its folder; or the folder of a cross-validation, to predict with the mean of
            all members of all folds.
        data: a graph set or its file, or that of a `NodeGraph`, with the features of the training
            set; targets are ignored. The features of a `NodeGraph` are encoded as in training.
        member: predict with this member only. Default: all that had a finite validation loss.
        split: predict this split only. Default: all graphs, or all nodes or edges of a `NodeGraph`.
        device: a device of torch. Default: a GPU if there is one.
        aggregators: the classes of your own aggregators, if the models have any.
        slice_nodes: with one graph, compute each layer for this many nodes at a time. Default: all
            at once if they fit into the free memory, otherwise as many as fit.
        interval: also give the ends of intervals that cover this share of new graphs, such as 0.9.
            The run needs a split "calibration".
    """
    runs = runs_of(run)
    models = [Ensemble.of(one, member, device, aggregators=aggregators) for one in runs]
    config = models[0].config
    calibrations = calibrations_of_all(runs, models, interval)
    tasks, messages = config.tasks, config.settings.message_edges
    levels = {task.level for task in tasks}
    names: list[str] | None = None
    whole: NodeGraph | None = None
    column = config.settings.mask_column
    if isinstance(data, GraphSet):
        graphs = data
    elif kind_of(Path(data)) == KIND:
        if column == ALL and split is not None:
            raise ValueError(
                f"got the split {split!r} for {runs[0].folder}, which was trained with all splits "
                "of a graph, expected none: leave it out to predict all rows"
            )
        whole, graphs = graph_for(config, data, levels)
        names = [whole.nodes.name(i) for i in range(whole.num_nodes)]
    else:
        graphs = GraphSet.load(data)
    ids = torch.arange(len(graphs))
    inside = {"node": graphs.split_of_node, "edge": graphs.split_of_edge}
    chosen = {"node": np.ones(graphs.num_nodes, bool), "edge": np.ones(graphs.num_labels, bool)}
    if split is not None and graphs.splits_inside:
        lookup("split", split, dict.fromkeys(graphs.splits))
        for level in levels & {*inside}:
            if whole is not None:  # unlike tags, it tells rows without a part from training rows
                elements = {"node": whole.nodes, "edge": whole.edges}[level]
                chosen[level] = elements.part(split, int(column)).numpy()
            else:
                chosen[level] = has_tag("split", split, inside[level], graphs.splits).cpu().numpy()
    elif split is not None:
        ids = ids[has_tag("split", split, graphs.split_of_graph, graphs.splits)]
        graphs = graphs[ids]
        chosen = {"node": np.ones(graphs.num_nodes, bool), "edge": np.ones(graphs.num_labels, bool)}
    seen = message_edges(graphs, messages, split)
    outputs = [each.outputs(seen, slice_nodes) for each in models]
    columns, spread = columns_of(runs, models, outputs, calibrations, member, chosen)
    edge_ids = _edge_ids(graphs, ids, chosen["edge"], names) if "edge" in levels else {}
    sizes = graphs.sizes.numpy()
    if not chosen["node"].all():
        own = chosen["node"]
        first = np.repeat(np.arange(len(sizes)), sizes)[own]
        sizes = np.bincount(first, minlength=len(sizes))
        names = [str(i) for i in range(len(own))] if names is None else names
        names = [name for name, is_own in zip(names, own.tolist(), strict=True) if is_own]
    return Predictions(ids.numpy(), sizes, **columns, names=names, edge_ids=edge_ids, spread=spread)


def columns_of(
    runs: Sequence[Run],
    models: Sequence[Ensemble],
    outputs: Sequence[dict[str, np.ndarray]],
    calibrations: Sequence[TaskCalibration],
    member: int | None = None,
    chosen: dict[str, np.ndarray] | None = None,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
    """Columns of predictions, and of their uncertainty (`Predictions.spread`), by level.

    They are means over all members of `models`, those of `runs`, made from their `outputs`;
    `chosen` are the rows to keep.
    """
    columns: dict[str, dict[str, np.ndarray]] = {level: {} for level in LEVELS}
    spread: dict[str, dict[str, np.ndarray]] = {level: {} for level in LEVELS}
    for index, task in enumerate(models[0].config.tasks):
        given = np.concatenate(
            [each.in_units(index, own) for each, own in zip(models, outputs, strict=True)]
        )
        if chosen and task.level in chosen and not chosen[task.level].all():
            given = given[:, chosen[task.level]]
        stored = [thresholds_of(run, task) for run in runs]
        thresholds = [of.mean if member is None else of.members[member] for of in stored]
        found = MeanPrediction.of(task, given, calibrations[index])
        # a threshold is of probabilities as the models give them
        threshold = np.array(np.mean(thresholds))
        threshold = scaled(threshold, calibrations[index].temperature)
        of_task = _columns_of(task, found.mean, models[0].config, float(threshold))
        columns[task.level] = _joined(columns[task.level], of_task)
        if found.std is not None:
            spread[task.level][STD.format(task.name)] = found.std
        if found.ends is not None:
            for form, end in zip(ENDS, found.ends, strict=True):
                spread[task.level][form.format(task.name)] = end
    return columns, spread


@dataclass(frozen=True)
class MeanPrediction:
    """The mean prediction of members for a task, and its uncertainty, as `predict` gives them."""

    mean: np.ndarray  # (rows,), or (rows, classes): in units of the target, or probabilities
    std: np.ndarray | None  # (rows,) over the members; None of one member, and of classes
    ends: tuple[np.ndarray, np.ndarray] | None  # (rows,) each, of intervals; None without

    @classmethod
    def of(cls, task: Task, given: np.ndarray, calibration: TaskCalibration) -> MeanPrediction:
        """From predictions of members as by `in_units`."""
        mean, std = mean_and_std(given, calibration.temperature)
        ends = None if calibration.interval is None else calibration.interval.around(mean, std)
        is_spread = len(given) > 1 and not LOSSES[task.loss].classes
        return cls(mean, std if is_spread else None, ends)


def mean_and_std(given: np.ndarray, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """What members (members, …) predict together, and their standard deviation, (…) each."""
    return scaled(given.mean(0), temperature), scaled(given, temperature).std(0)


def _edge_ids(
    graphs: GraphSet, ids: Tensor, chosen: np.ndarray, names: list[str] | None
) -> dict[str, np.ndarray]:
    """Graph, row and ends of the chosen labelled edges; without a graph if nodes have names."""
    assert graphs.label_ends is not None and graphs.label_offsets is not None
    counts = graphs.label_offsets.diff()
    rows = torch.arange(graphs.num_labels) - torch.repeat_interleave(
        graphs.label_offsets[:-1], counts
    )
    ends = graphs.label_ends.cpu().numpy()[chosen]
    found = {"edge": rows.numpy()[chosen], "source": ends[:, 0], "dest": ends[:, 1]}
    if names is None:
        return {"graph": torch.repeat_interleave(ids, counts).numpy()[chosen]} | found
    words = np.array(names, object)
    return found | {end: words[found[end]] for end in ("source", "dest")}


def _columns_of(
    task: Task, mean: np.ndarray, config: Config, threshold: float
) -> dict[str, np.ndarray]:
    """The columns of a task, from its mean prediction: (rows,) or (rows, classes)."""
    words = config.data.get("classes", {}).get(task.name)
    if words is not None and LOSSES[task.loss].outputs == "probability":
        likely = np.array(words, object)[(mean >= threshold).astype(int)]
        return {task.name: likely, f"{task.name}={words[1]}": mean}
    if not LOSSES[task.loss].classes:
        return {task.name: mean}
    named = words or [str(c) for c in range(task.outputs)]
    likely = _likeliest(mean)
    if words is not None:
        likely = np.array([*words, ""], object)[np.where(np.isnan(likely), -1, likely).astype(int)]
    probabilities = {f"{task.name}={name}": mean[:, c] for c, name in enumerate(named)}
    return {task.name: likely} | probabilities


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


_STATES = 2**21  # numbers in the states of the nodes of a batch, over the members


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

    def in_units(self, task: int, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """Predictions of the members that learn a task, as `in_units`."""
        chosen = self.config.tasks[task]
        given = in_units(chosen, outputs[chosen.level])
        return given[learners(self.config.settings, self.members, task)]

    @torch.no_grad()
    def outputs(self, graphs: GraphSet, slice_nodes: int | None = None) -> dict[str, np.ndarray]:
        """Outputs by level, (members, rows, outputs) each; there are 0 outputs if the models have
        no such targets. `slice_nodes` as for `predict`."""
        graphs = with_features(self.config, graphs)
        model, found = self.config.model, []
        widths = [getattr(model, f"{level}_targets") for level in LEVELS]
        if slice_nodes is not None or not is_at_once(self.population, graphs):
            precision = PRECISIONS[self.config.settings.precision]
            with precision.context(self.population.device):
                every = layerwise_outputs(self.population, graphs, slice_nodes)
            none = np.zeros((len(self.members), 0, 0))
            outputs = {level: none for level in LEVELS}
            for level, width in zip(LEVELS, widths, strict=True):
                if width:
                    own = torch.stack([prediction.at(level) for prediction in every])
                    outputs[level] = own.double().cpu().numpy()
            return outputs

        def take(batch: Batch, flat: Tensor) -> None:
            shapes = [(batch.rows(level), w) for level, w in zip(LEVELS, widths, strict=True)]
            parts = flat.double().cpu().split([rows * width for rows, width in shapes], 1)
            found.append([p.unflatten(1, s) for p, s in zip(parts, shapes, strict=True)])

        self._run(graphs, _flattened, take)
        if not found:
            found.append([torch.zeros(len(self.members), 0, width) for width in widths])
        joined = (torch.cat(level, 1).numpy() for level in zip(*found, strict=True))
        return dict(zip(LEVELS, joined, strict=True))

    @torch.no_grad()
    def vectors(self, graphs: GraphSet) -> np.ndarray:
        """The input of the head for graphs, (members, graphs, features) in float32."""
        graphs = with_features(self.config, graphs)
        found: list[Tensor] = []
        self._run(graphs, _vector, lambda batch, vectors: found.append(vectors.float().cpu()))
        return torch.cat(found, 1).numpy()

    def _run(
        self,
        graphs: GraphSet,
        measure: Callable[[Prediction], Tensor],
        take: Callable[[Batch, Tensor], None],
    ) -> None:
        """Call `take` with every batch, and with what `measure` gives for each member."""
        precision = PRECISIONS[self.config.settings.precision]

        def step(batch: Batch) -> None:
            with precision.context(self.population.device):
                measured = self.population.apply(batch, measure)
            take(batch, measured)

        arguments = self.config.model.arguments
        far = diameters(graphs) if arguments.get("depth") == "diameter" else None
        own = graphs.to(self.population.device)
        with quick_products(precision.autocast is None):
            Batches(own, step, self._batch_size(graphs), shuffle=False, diameters=far).run(0)

    def _batch_size(self, graphs: GraphSet) -> int:
        """As in training, or more if the memory allows: weights are prepared for every batch."""
        size, model = self.config.settings.batch_size, self.config.model
        if model.architecture != "stacked" or graphs.num_nodes == 0:
            return size
        nodes = _STATES // (len(self.members) * model.hidden)
        return max(size, nodes * len(graphs) // graphs.num_nodes)


def calibrations_of_all(
    runs: Sequence[Run], models: Sequence[Ensemble], interval: float | None
) -> list[TaskCalibration]:
    """The calibration of every task for the mean of some members. Folds have none."""
    if len(runs) > 1 and interval is not None:
        raise ValueError(
            f"got --interval for {runs[0].folder.parent}, a cross-validation, which has no "
            "calibration split, expected a run with one; train with --calibration 0.1 instead of "
            "--folds, or leave --interval out"
        )
    return calibrations_of(runs[0], models[0].members, interval)


def _flattened(prediction: Prediction) -> Tensor:
    levels = (prediction.node, prediction.graph, prediction.edge)
    return torch.cat([level.flatten() for level in levels if level is not None])


def _vector(prediction: Prediction) -> Tensor:
    assert prediction.vector is not None
    return prediction.vector


def with_features(config: Config, graphs: GraphSet) -> GraphSet:
    """The graphs with the features that the model was trained with. Encodings that they lack, such
    as random walks, are computed; other features that they lack are an error."""
    graphs = completed(graphs, config.data.get("features", {}))
    check_features(config, graphs)
    return graphs


def check_features(config: Config, graphs: GraphSet) -> None:
    """Raise unless the graphs have the features that the model was trained with."""
    model, arguments = config.model, config.model.arguments
    _check_labels(config, graphs)
    names = config.data.get("features", {})  # runs of older versions have no names
    for what, columns, given, given_names in (
        ("node", model.in_channels, graphs.x, graphs.node_features),
        ("edge", model.edge_features, graphs.edge_attr, graphs.edge_features),
        ("graph", model.graph_features, graphs.x_graph, graphs.graph_features),
    ):
        if columns == 0:
            continue  # the model does not use them
        width = 0 if given is None else given.shape[1]
        if given is None or width != columns:
            trained = names.get(what, ())
            absent = [name for name in trained if name not in given_names]
            is_named = absent and not is_numbered(trained)
            missing = f" ({', '.join(map(repr, absent))} missing)" if is_named else ""
            raise ValueError(
                f"got graphs with {width} {what} features{missing}, expected the {columns} that "
                "the model was trained with; make the graphs as those of its training set"
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


def _check_labels(config: Config, graphs: GraphSet) -> None:
    """Raise unless a model of edges gets edges to predict, directed or not as in training."""
    if not config.model.edge_targets:
        return
    if graphs.label_ends is None:
        raise ValueError(
            "got graphs without labelled edges, expected some, as the model predicts targets of "
            "edges; make the file with pna data graph"
        )
    given, words = bool(graphs.metadata.get(UNDIRECTED)), ("directed", "undirected")
    if given != config.model.arguments.get("symmetric", False):
        raise ValueError(
            f"got {words[given]} edges, expected {words[not given]} ones, with which the model was "
            f"trained; make the graph {'with' if given else 'without'} --directed"
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


def cells_of(column: np.ndarray) -> list[str]:
    """Predictions as the cells of a table."""
    return [f"{value:.9g}" if isinstance(value, float) else str(value) for value in column.tolist()]


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    texts = [cells_of(column) for column in columns.values()]
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*texts, strict=True))
