"""Programs of small models with random weights, and what they must predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from pna import GraphSet
from pna.data.diameter import diameters
from pna.data.multitask import multitask
from pna.train.models import build, fitted
from pna.train.prediction import in_units
from pna.train.program import Program
from pna.train.run import Config
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import tasks_of
from tests.train.small_runs import COUNTS, molecules

LOSSES = {"active": "bce", "kind": "cross_entropy", "size": "mse"}
#: Graphs of a batch: one, several of different sizes, many, and none.
BATCHES = ([3], [1, 2, 20], range(16), [])


@cache
def graphs_for(architecture: str) -> GraphSet:
    """Molecules with categories and edge features, or graphs of 4 or 5 nodes with numbers."""
    return molecules() if architecture == "stacked" else multitask(0, sizes=(4, 5), counts=COUNTS)


def lone_node(graphs: GraphSet) -> GraphSet:
    """A graph of one node without edges, with features as those of these graphs."""
    edge_attr = None if graphs.edge_attr is None else graphs.edge_attr.numpy()[:0]
    assert graphs.x is not None
    x, edge_index = graphs.x.numpy()[:1], np.zeros((2, 0), int)
    return GraphSet.from_arrays([1], edge_index, [0], x=x, edge_attr=edge_attr)


def configured(model: ModelSettings) -> Config:
    """The configuration of a run of this model."""
    graphs = graphs_for(model.architecture)
    tasks = tuple(tasks_of(graphs, LOSSES if model.architecture == "stacked" else "mse"))
    return Config({}, fitted(model, graphs.split("train"), tasks), tasks, Settings())


def made(
    model: ModelSettings, max_nodes: int | None = None, members: int = 1
) -> tuple[Program, GraphSet]:
    """A program of some members, and graphs for it."""
    config = configured(model)
    models = [_random(build(config.model, seed).eval(), seed) for seed in range(members)]
    return Program(models, config, max_nodes), graphs_for(model.architecture)


def _random(model: nn.Module, seed: int) -> nn.Module:
    """The model with running statistics of batches, as if it were trained."""
    random = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(generator=random)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2, generator=random)
    return model


def inputs_of(program: Program, graphs: GraphSet, ids: Sequence[int]) -> dict[str, Tensor]:
    """The inputs for some graphs, with the edges in another order than ours."""
    batch = graphs.batch([*ids])
    edge_index = batch.adjacency.edge_index.long()
    order = torch.randperm(edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    given = {
        "x": batch.x,
        "edge_index": edge_index[:, order],
        "sizes": batch.sizes,
        "edge_attr": None if batch.edge_attr is None else batch.edge_attr[order],
        "diameter": diameters(graphs)[[*ids]],
        "x_graph": batch.x_graph,
    }
    found = {name: given[name] for name in program.inputs}
    assert all(tensor is not None for tensor in found.values())
    return {name: tensor.to(program.inputs[name].dtype) for name, tensor in found.items()}


@torch.no_grad()
def expected(program: Program, graphs: GraphSet, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The predictions of the models themselves, by the backend of this machine."""
    batch = graphs.batch([*ids])
    if "diameter" in program.inputs:
        batch = replace(batch, diameter=diameters(graphs)[[*ids]])
    each = [model(batch) for model in program.models]
    found = {}
    for name, task in zip(program.outputs, program.tasks, strict=True):
        level = [p.node if task.level == "node" else p.graph for p in each]
        found[name] = in_units(task, torch.stack(level).numpy()).mean(0)
    return found


def assert_as_expected(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert [*found] == [*wanted]
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-5, err_msg=name)
