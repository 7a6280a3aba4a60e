"""Runs of a second, on graphs of a few nodes."""

from pathlib import Path

import numpy as np

from pna import GraphSet
from pna.data.multitask import multitask
from pna.train import Run, Settings, train
from pna.train.defaults import model_for, settings_for

COUNTS = {"train": 8, "validation": 4, "test": 4}


def small_multitask() -> GraphSet:
    return multitask(0, sizes=(6, 7), counts=COUNTS)


def molecules(count: int = 24, seed: int = 0, values: int = 4) -> GraphSet:
    """Paths of three to six nodes with whole-numbered features, and targets of three kinds."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 7, count)
    paths = [np.arange(size - 1) for size in sizes]
    edges = [np.stack([np.r_[a, a + 1], np.r_[a + 1, a]]) for a in paths]
    index = np.concatenate(edges, 1)
    x = rng.integers(0, values, (sizes.sum(), 2))
    x[:2] = values - 1
    targets = [rng.integers(0, 2, count), np.arange(count) % 3, 5 * rng.normal(size=count)]
    y = np.stack(targets, 1).astype(np.float32)
    y[::7, 0] = np.nan
    return GraphSet.from_arrays(
        sizes,
        index,
        [part.shape[1] for part in edges],
        x=x,
        edge_attr=rng.integers(0, 3, (index.shape[1], 1)),
        y_graph=y,
        graph_targets=["active", "kind", "size"],
        split=np.resize(["train", "train", "validation", "test"], count),
    )


def small_run(
    graphs: GraphSet,
    folder: Path,
    *,
    loss: str | dict[str, str] = "mse",
    model: dict | None = None,
    **settings: object,
) -> Run:
    """Two epochs of two members, with the graphs in a file beside the run."""
    path = folder.with_suffix(".safetensors")
    graphs.save(path)
    asked: Settings = settings_for(graphs, {"members": 2, "epochs": 2, **settings})
    kind = model_for(graphs, "pna", {"hidden": 8, **(model or {})}, loss)
    return train(path, folder, kind, asked, loss=loss, device="cpu")
