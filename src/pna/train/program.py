"""The models of a run as one function of plain tensors, to be exported.

It uses operations of torch only, for any number of nodes, edges and graphs, also 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.data.attributes import is_numbered
from pna.data.batch import Batch
from pna.ops.backend import backend
from pna.population.segments import segment_of_row
from pna.rows import Rows
from pna.train.run import Config
from pna.train.tasks import LOSSES, Task

#: Nodes, edges and graphs that are added to every input and removed from the outputs. The compiler
#: takes a size that varies to be 2 or more.
_ADDED = 2

_MEANINGS = {
    "number": "in the units of the target",
    "probability": "the probability of a 1",
    "classes": "the probability of every class",
}


@dataclass(frozen=True)
class Field:
    """An input or an output of a program, as its file describes it."""

    dtype: torch.dtype
    shape: tuple[str | int, ...]  # axes of varying size by name: "nodes", "edges" or "graphs"
    meaning: str
    columns: tuple[str, ...] = ()  # names of the features
    categories: tuple[int, ...] = ()  # number of categories of each feature; 0 for a number

    def as_dict(self) -> dict[str, Any]:
        own = {"dtype": str(self.dtype).removeprefix("torch."), "shape": list(self.shape)}
        more = {"columns": list(self.columns), "categories": list(self.categories)}
        return {**own, "meaning": self.meaning, **{n: v for n, v in more.items() if v}}

    def example(self, sizes: dict[str, int], device: torch.device) -> Tensor:
        """A valid tensor: all zeros or ones."""
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.shape]
        return torch.full(shape, int(self.meaning == _SIZES), dtype=self.dtype, device=device)


_SIZES = "number of nodes of each graph; the nodes of a graph are consecutive"


class Program(nn.Module):
    """The mean prediction of some models of a run, for a batch of graphs.

    Args:
        models: the members.
        config: the configuration of the run.
        max_nodes: the most nodes of a graph, for models that take a number of steps that depends
            on it. Predictions for larger graphs are NaN.

    Attributes:
        inputs: what `forward` takes, by name.
        outputs: what it returns, by name.
    """

    def __init__(
        self, models: Sequence[nn.Module], config: Config, max_nodes: int | None = None
    ) -> None:
        super().__init__()
        if config.model.edge_targets:
            raise ValueError(
                "got a run whose models predict targets of edges, which cannot be exported, "
                "expected targets of nodes or graphs; use pna predict"
            )
        self.models, self.tasks = nn.ModuleList(models), config.tasks
        _check_max_nodes(models[0], max_nodes)
        self.max_nodes = max_nodes
        weights = next(p.dtype for p in models[0].parameters() if p.is_floating_point())
        self.inputs = _inputs(config, weights)
        self.outputs = {_name(task, self.inputs): _output(task, weights) for task in config.tasks}

    def description(self) -> dict[str, Any]:
        """What a file says about the program."""
        return {
            "inputs": {name: field.as_dict() for name, field in self.inputs.items()},
            "outputs": {name: field.as_dict() for name, field in self.outputs.items()},
            "max_nodes": self.max_nodes,
        }

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        sizes: Tensor,
        edge_attr: Tensor | None = None,
        diameter: Tensor | None = None,
        x_graph: Tensor | None = None,
    ) -> dict[str, Tensor]:
        batch = self._batch(x, edge_index, sizes, edge_attr, diameter, x_graph)
        with backend("reference"):  # the definitions, in plain operations
            predictions = [model(batch) for model in self.models]
        known = None if self.max_nodes is None else batch.sizes <= self.max_nodes
        found = {}
        for name, task in zip(self.outputs, self.tasks, strict=True):
            levels = [p.node if task.level == "node" else p.graph for p in predictions]
            mean = torch.stack([_in_units(task, level) for level in levels]).mean(0)
            if known is not None:
                rows = known[batch.graph_of_node] if task.level == "node" else known
                rows = rows.reshape(-1, *[1] * (mean.dim() - 1))
                mean = torch.where(rows, mean, float("nan"))
            found[name] = mean[:-_ADDED]
        return found

    def _batch(
        self,
        x: Tensor,
        edge_index: Tensor,
        sizes: Tensor,
        edge_attr: Tensor | None,
        diameter: Tensor | None,
        x_graph: Tensor | None,
    ) -> Batch:
        """The graphs, and some of one node with a loop."""
        nodes = x.shape[0]
        loops = torch.arange(nodes, nodes + _ADDED, device=x.device)
        edge_index = torch.cat([edge_index, torch.stack([loops, loops])], 1)
        sizes = _extended(sizes, 1)
        starts = F.pad(sizes.cumsum(0), (1, 0))
        bounds = None if self.max_nodes is None else (0, self.max_nodes)
        return Batch(
            adjacency=_adjacency(edge_index, nodes + _ADDED),
            graph_of_node=segment_of_row(starts, nodes + _ADDED),
            sizes=sizes,
            x=_extended(x, 0),
            edge_attr=None if edge_attr is None else _extended(edge_attr, 0),
            y_node=None,
            y_graph=None,
            diameter=None if diameter is None else _extended(diameter, 0),
            x_graph=None if x_graph is None else _extended(x_graph, 0),
            size_range=bounds,
            starts=starts,
        )


def _extended(tensor: Tensor, value: int) -> Tensor:
    return torch.cat([tensor, tensor.new_full((_ADDED, *tensor.shape[1:]), value)])


@dataclass(frozen=True, eq=False)
class _SortedEdges(Adjacency):
    """An `Adjacency` for the plain definitions: the fields that only kernels read are not valid."""

    row_of_slot: Tensor

    @property
    def receivers(self) -> Tensor:
        return self.row_of_slot


def _adjacency(edge_index: Tensor, nodes: int) -> Adjacency:
    """The same as `Adjacency.from_edge_index`, by operations that every format has."""
    receivers, order = edge_index[1].sort(stable=True)
    senders = edge_index[0].index_select(0, order)
    degree, out_degree = (_count(index, nodes) for index in (receivers, senders))
    indptr, out_indptr = (F.pad(count.cumsum(0), (1, 0)) for count in (degree, out_degree))
    out_slots = senders.sort(stable=True).indices
    out_receivers = receivers.index_select(0, out_slots)
    unused = [order] * 5
    return _SortedEdges(
        incoming=Rows(indptr, senders, *unused),
        outgoing=Rows(out_indptr, out_receivers, *unused),
        edge_ids=order,
        out_ranks=out_slots - indptr.index_select(0, out_receivers),
        by_degree=degree.sort(stable=True).indices,
        degree=degree,
        row_of_slot=receivers,
    )


def _count(index: Tensor, size: int) -> Tensor:
    """How often each number below `size` occurs, (size,)."""
    return index.new_zeros(size).index_add(0, index, torch.ones_like(index))


def _in_units(task: Task, outputs: Tensor) -> Tensor:
    """As `pna.train.prediction.in_units`, of one model: (rows, …)."""
    own = outputs[:, task.first : task.end]
    if LOSSES[task.loss].classes:
        return own.softmax(1)
    alone = own[:, 0]
    return alone.sigmoid() if LOSSES[task.loss].outputs == "probability" else alone * task.scale


def _inputs(config: Config, weights: torch.dtype) -> dict[str, Field]:
    arguments, names = config.model.arguments, config.data.get("features", {})
    model = config.model
    widths = {"node": model.in_channels, "edge": model.edge_features, "graph": model.graph_features}

    def features(level: str) -> Field:
        values = tuple(arguments.get(f"{level}_values", ()))
        dtype = torch.int64 if values and all(values) else weights
        columns = tuple(names.get(level, ()))
        columns = () if is_numbered(columns) else columns
        shape = (f"{level}s", widths[level])
        return Field(dtype, shape, f"features of each {level}", columns, values)

    index = "sender and receiver of each edge, counted over all graphs"
    found = {
        "x": features("node"),
        "edge_index": Field(torch.int64, (2, "edges"), index),
        "sizes": Field(torch.int64, ("graphs",), _SIZES),
    }
    if widths["edge"]:
        found["edge_attr"] = features("edge")
    if widths["graph"]:
        found["x_graph"] = features("graph")
    if arguments.get("depth") == "diameter":
        found["diameter"] = Field(torch.int64, ("graphs",), "diameter of each graph")
    return found


def _output(task: Task, weights: torch.dtype) -> Field:
    loss = LOSSES[task.loss]
    classes = (task.outputs,) if loss.classes else ()
    return Field(weights, (f"{task.level}s", *classes), _MEANINGS[loss.outputs])


def _name(task: Task, inputs: dict[str, Field]) -> str:
    """The name of the target, unless an input has it."""
    return f"{task.name} predicted" if task.name in inputs else task.name


def _check_max_nodes(model: nn.Module, max_nodes: int | None) -> None:
    reasons = []
    if isinstance(getattr(model, "depth", None), str):
        reasons.append(f"whose depth is {model.depth}")
    if getattr(model, "set2set", None) is not None:
        reasons.append("whose readout is set2set")
    why = " and ".join(reasons)
    if reasons and max_nodes is None:
        raise ValueError(
            f"got a model {why}, so that its number of steps depends on the graph, expected the "
            "most nodes that a graph will have; pass max_nodes (--max-nodes)"
        )
    if max_nodes is None:
        return
    if not reasons:
        raise ValueError(
            f"got max_nodes={max_nodes} for a model whose number of steps does not depend on the "
            "graph, expected none; leave it out"
        )
    if max_nodes < 1:
        raise ValueError(f"got max_nodes={max_nodes}, expected at least 1")
