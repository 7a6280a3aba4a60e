"""Tiny graph sets and models for the tests of training, and training as torch would have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.diameter import diameters
from pna.data.graphset import GraphSet
from pna.train.batches import order
from pna.train.models import build, fitted
from pna.train.population import Population, changing_buffers
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import LOSSES, Task, tasks_of
from pna.train.trainer import Trainer

#: Towers and hidden size small enough for a step in milliseconds.
SMALL: dict[str, ModelSettings] = {
    "pna recurrent": ModelSettings("pna", "recurrent", 4, arguments={"towers": 2}),
    "gin recurrent": ModelSettings("gin", "recurrent", 4),
    "gat recurrent": ModelSettings("gat", "recurrent", 4),
    "pna standard": ModelSettings("pna", "standard", 4, arguments={"towers": 2, "layers": 2}),
    "pna stacked": ModelSettings("pna", "stacked", 4, arguments={"layers": 2, "graph_norm": True}),
    "pna as published": ModelSettings(
        "pna",
        "stacked",
        4,
        arguments={
            "layers": 2,
            "graph_norm": True,
            "norm_before_mixing": True,
            "towers": 2,
            "divide_input": True,
            "encode_edges": False,
        },
    ),
    "virtual stacked": ModelSettings(
        "pna",
        "stacked",
        4,
        arguments={
            "layers": 3,
            "virtual_node": True,
            "mirror": ((1, 1.0),),
            "turn": 10.0,
            "centre": ((0, 0.5), (1, 0.5)),
        },
    ),
    "deep stacked": ModelSettings(
        "pna",
        "stacked",
        4,
        arguments={
            "layers": 3,
            "feed_forward": 2.0,
            "edge_updates": True,
            "signs": (1,),
            "dropout_first": True,
            "stochastic_depth": 0.4,
        },
    ),
    "gated-gcn stacked": ModelSettings("gated-gcn", "stacked", 4, arguments={"layers": 2}),
    "gated stacked": ModelSettings("mlp-gated", "stacked", 4, arguments={"layers": 2}),
    "diffpool stacked": ModelSettings(
        "diffpool", "stacked", 4, arguments={"layers": 2, "clusters": 3}
    ),
}


def random_graphs(
    train: int = 10,
    validation: int = 5,
    sizes: tuple[int, int] = (3, 8),
    *,
    seed: int = 0,
    edges: int = 0,
    whole: bool = False,
    missing: bool = False,
) -> GraphSet:
    """Undirected random graphs, also with nodes of degree 0, in two splits.

    Three targets of nodes and three of graphs. `edges` is how many columns edges have; `whole`
    makes all features whole numbers below 3; `missing` leaves out some targets.
    """
    rng = np.random.default_rng(seed)
    count = train + validation
    nodes = rng.integers(*sizes, count)
    index, edge_counts = [], []
    for n in nodes:
        upper = np.triu(rng.random((n, n)) < 0.5, 1)
        found = np.stack(np.nonzero(upper | upper.T))
        index.append(found)
        edge_counts.append(found.shape[1])
    total, total_edges = int(nodes.sum()), sum(edge_counts)

    def features(rows: int, columns: int) -> Any:
        return rng.integers(0, 3, (rows, columns)) if whole else rng.random((rows, columns))

    x = features(total, 2)
    edge_attr = features(total_edges, edges) if edges else None
    y_node, y_graph = rng.random((total, 3)), rng.random((count, 3))
    if missing:
        y_node[rng.random(y_node.shape) < 0.3] = np.nan
        y_graph[rng.random(y_graph.shape) < 0.3] = np.nan
    return GraphSet.from_arrays(
        nodes,
        np.concatenate(index, 1),
        edge_counts,
        x=x,
        edge_attr=edge_attr,
        y_node=y_node,
        y_graph=y_graph,
        node_targets=["a", "b", "c"],
        graph_targets=["p", "q", "r"],
        split=["train"] * train + ["validation"] * validation,
    )


def one_graph(nodes=60, edges=300, seed=0):
    """A class to predict from a feature of the neighbours; no self-loops; a split inside."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, nodes, (2, edges))
    index[0] = np.where(index[0] == index[1], (index[1] + 1) % nodes, index[0])
    x = rng.normal(size=(nodes, 3)).astype(np.float32)
    sums = np.zeros(nodes, np.float32)
    np.add.at(sums, index[1], x[index[0], 0])
    made = GraphSet.from_arrays(
        [nodes],
        index,
        [edges],
        x=x,
        edge_attr=rng.normal(size=(edges, 2)).astype(np.float32),
        y_node=(sums > 0).astype(np.float32)[:, None],
        node_targets=["sign"],
        metadata={"losses": {"sign": "bce"}},
    )
    tags = torch.from_numpy(rng.permutation(np.arange(nodes) % 4 // 2 + np.arange(nodes) % 4 // 3))
    return replace(
        made, split_of_node=tags.to(torch.uint8), splits=("train", "validation", "test")
    ).with_scales()


def labelled(graph: GraphSet) -> GraphSet:
    """`one_graph` with its edges to predict, by the sign of the difference of their ends."""
    ends, own = graph.edges.t(), graph.x[:, 0]
    tags = torch.arange(len(ends)) % 4 // 2 + torch.arange(len(ends)) % 4 // 3
    return replace(
        graph, y_node=None, node_targets=(), node_scale=(), split_of_node=None,
        label_offsets=graph.edge_offsets.clone(), label_ends=ends.int().contiguous(),
        label_attr=graph.edge_attr.clone(), edge_targets=("sign",),
        split_of_edge=tags.to(torch.uint8),
        y_edge=(own[ends[:, 0]] > own[ends[:, 1]]).float()[:, None],
    ).with_scales()  # fmt: skip


def with_arguments(model: ModelSettings, **arguments: Any) -> ModelSettings:
    return replace(model, arguments=model.arguments | arguments)


def trainer_of(
    graphs: GraphSet,
    model: ModelSettings,
    settings: Settings,
    *,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: Any,
) -> Trainer:
    """A trainer as `pna.train.loop` makes it, of a type of its own."""
    training, validation = graphs.split("train"), graphs.split("validation")
    tasks = tasks_of(training)
    full = fitted(model, training, tasks)
    population = Population([build(full, seed) for seed in settings.seeds]).to(device, dtype)
    if model.arguments.get("depth") == "diameter":
        options["diameters"] = (diameters(training), diameters(validation))
    on_device = (training.to(device), validation.to(device))
    return Trainer(population, tasks, settings, *on_device, **options)


def whole_batch(graphs: GraphSet, indices: Any = None) -> Batch:
    """A batch with the sizes of the whole set, by which a recurrent model counts its steps."""
    sizes = graphs.sizes
    return replace(graphs.batch(indices), size_range=(int(sizes.min()), int(sizes.max())))


def plain_losses(tasks: tuple[Task, ...], prediction: Any, batch: Batch) -> Tensor:
    """The mean error of every task over the targets it has, (tasks,)."""
    losses = []
    for task in tasks:
        y = batch.y_node if task.level == "node" else batch.y_graph
        given = prediction.node if task.level == "node" else prediction.graph
        target = y[:, task.column].to(given.dtype) / task.scale
        known = ~target.isnan()
        errors = LOSSES[task.loss].error(given[known, task.first], target[known])
        losses.append(errors.mean() if known.any() else errors.sum())
    return torch.stack(losses)


def clipped(gradients: list[Tensor], clip: float | None) -> list[Tensor]:
    """Gradients of at most this norm together."""
    if clip is None:
        return gradients
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    return [g * min(1.0, clip / float(norm)) for g in gradients]


class Alone:
    """One model trained with torch's own optimiser, step by step: what a member is to equal."""

    def __init__(
        self, graphs: GraphSet, model: ModelSettings, settings: Settings, member: int
    ) -> None:
        self.training, self.validation = graphs.split("train"), graphs.split("validation")
        self.tasks, self.settings = tasks_of(self.training), settings
        seed = settings.seeds[member]
        self.model = build(fitted(model, self.training, self.tasks), seed).double().train()
        weights = settings.task_weights[member] if settings.task_weights else None
        self.weights = torch.tensor(
            weights or [task.weight for task in self.tasks], dtype=torch.float64
        )
        kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
        self.optimiser = kind(
            self.model.parameters(),
            lr=settings.of_members("lr")[member],
            weight_decay=settings.of_members("weight_decay")[member],
        )
        buffers = dict(self.model.named_buffers())
        self.held = [
            *self.model.parameters(),
            *(buffers[name] for name in changing_buffers(self.model)),
        ]
        self.average = [t.detach().clone() for t in self.held]
        self.steps = 0

    def run_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Losses of training, before each step, and of validation, (tasks,) each; of sets whose
        batches all have as many targets."""
        settings = self.settings
        self.model.train()
        ids = order(len(self.training), settings.shuffle, settings.data_seed, epoch)
        seen, counts = 0.0, 0.0
        for start in range(0, len(ids), settings.batch_size):
            batch = whole_batch(self.training, ids[start : start + settings.batch_size])
            prediction = self.model(batch)
            losses = plain_losses(self.tasks, prediction, batch)
            count = torch.tensor(
                [batch.num_nodes if t.level == "node" else batch.num_graphs for t in self.tasks]
            )
            seen, counts = seen + losses.detach() * count, counts + count
            own = 0.0 if prediction.own_loss is None else prediction.own_loss.mean()
            self.step((losses * self.weights).sum() / len(self.tasks) + own)
        return seen / counts, self.validated()

    def step(self, loss: Tensor) -> None:
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for parameter, gradient in zip(
            parameters, clipped(list(gradients), self.settings.clip), strict=True
        ):
            parameter.grad = gradient
        self.optimiser.step()
        self.steps += 1
        if self.settings.average is not None:
            share = max(9 / (self.steps + 9), 1 - self.settings.average)
            for average, now in zip(self.average, self.held, strict=True):
                by = share if now.is_floating_point() else 1
                average += by * (now.detach() - average)

    @torch.no_grad()
    def validated(self) -> Tensor:
        self.model.eval()
        batch = whole_batch(self.validation)
        own = [t.detach().clone() for t in self.held]
        if self.settings.average is not None:
            self.set(self.average)
        losses = plain_losses(self.tasks, self.model(batch), batch)
        self.set(own)
        return losses

    @torch.no_grad()
    def set(self, values: list[Tensor]) -> None:
        for held, value in zip(self.held, values, strict=True):
            held.copy_(value)


def assert_near(got: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    """Within `tolerance` of the norm of what is expected."""
    assert got.shape == expected.shape, what
    got, expected = got.detach().double(), expected.detach().double()
    distance = float((got - expected).norm())
    scale = max(float(expected.norm()), 1e-2)
    assert distance <= tolerance * scale, f"{what}: {distance:.2e} of {scale:.2e}"
