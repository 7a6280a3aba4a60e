"""Writes the files that `test_compatibility` opens: graph sets, runs, checkpoints, predictions.

They stand for what users have on disk, so they are made once and kept. To add files of a later
version, run this at that version with another folder, and add the folder to the test:

    python -m tests.compatibility.make tests/compatibility/FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from pna import GraphSet
from pna.data.molecule_table import from_table
from pna.data.multitask import multitask
from pna.machine import machine
from pna.nn import PNAConv
from pna.train import Interrupted, ModelSettings, Report, Settings, predict, train
from pna.train.models import build, fitted
from pna.train.run import LAST
from pna.train.tasks import tasks_of

SPLITS = ("train", "train", "validation", "test")
TABLE = """smiles,solubility,toxic,split
CCO,1.5,0,train
c1ccccc1,-2.0,1,train
CC(=O)O,0.5,,train
CCN,1.1,0,train
C1CCCCC1,-3.0,1,validation
CCCl,-1.0,0,validation
CC#N,,1,validation
OCC=O,0.9,1,test
"""
AGGREGATORS, SCALERS = ["mean", "std", "max", "min", "sum"], ["identity", "amplification", "linear"]

#: Every convolution there was, in a stacked model on graphs with or without edge features.
CONVOLUTIONS = {
    "pna": True, "pna-no-scalers": True, "pna-moments": True, "pna-simple": False,
    "mpnn-sum": True, "mpnn-max": True, "mpnn-mean-max-min": True, "gat": True, "gcn": False,
    "gin": True, "sage": False, "monet": True, "gated-gcn": True, "mlp": False,
    "mlp-gated": False, "diffpool": False,
}  # fmt: skip

#: Training-time augmentations of the superpixels' coordinates, as this version's runs name them.
AUGMENTED = {
    "mirror": ((1, 1.0),),
    "turn": 10.0,
    "centre": ((1, 0.5), (2, 0.5)),
    "vary": (((1, 2), 0.5, 0.1, 0.05),),
}

SUPERPIXELS = ModelSettings(
    "pna",
    "stacked",
    4,
    arguments={
        "layers": 2,
        "towers": 2,
        "graph_norm": True,
        "virtual_node": True,
        "dropout": 0.1,
        "edge_width": 3,
        **AUGMENTED,
    },
)

#: Finished runs: the graph set, the model, the losses.
FINISHED = {
    "recurrent": (
        "multitask",
        ModelSettings("pna", "recurrent", 4, arguments={"towers": 2, "dropout": 0.1}),
        "mse",
    ),
    "standard": (
        "multitask",
        ModelSettings("gin", "standard", 4, "remembering", {"layers": 2}),
        "mae",
    ),
    "stacked": ("superpixels", SUPERPIXELS, "cross_entropy"),
    "molecules": (
        "molecules",
        ModelSettings("gated-gcn", "stacked", 4, arguments={"layers": 2, "graph_norm": True}),
        {"active": "bce", "kind": "cross_entropy", "size": "mse"},
    ),
    "table": (
        "table",
        ModelSettings("pna-simple", "stacked", 4, arguments={"layers": 2, "edges": False}),
        {"solubility": "mse", "toxic": "bce"},
    ),
}

#: The finished run that the test trains for longer; the others keep no checkpoint to resume.
CONTINUED = ("molecules",)

#: Runs that were stopped half-way: the graph set, the model, the losses.
INTERRUPTED = {
    "recurrent": (
        "multitask",
        ModelSettings("gat", "recurrent", 4, arguments={"dropout": 0.1}),
        "mse",
    ),
    "standard": ("multitask", ModelSettings("gcn", "standard", 3, arguments={"layers": 2}), "mse"),
    "stacked": ("superpixels", SUPERPIXELS, "cross_entropy"),
}


def molecules_like() -> GraphSet:
    """Paths with whole-numbered features of nodes and edges, and targets of three kinds."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(3, 7, 16)
    paths = [np.arange(size - 1) for size in sizes]
    edges = [np.stack([np.r_[a, a + 1], np.r_[a + 1, a]]) for a in paths]
    index = np.concatenate(edges, 1)
    targets = [rng.integers(0, 2, 16), np.arange(16) % 3, 5 * rng.normal(size=16)]
    y = np.stack(targets, 1).astype(np.float32)
    y[::7, 0] = np.nan
    return GraphSet.from_arrays(
        sizes,
        index,
        [part.shape[1] for part in edges],
        x=rng.integers(0, 3, (sizes.sum(), 2)),
        edge_attr=rng.integers(0, 3, (index.shape[1], 1)),
        y_graph=y,
        graph_targets=["active", "kind", "size"],
        split=np.resize(SPLITS, 16),
    )


def superpixels_like() -> GraphSet:
    """Nodes with a colour and two coordinates, edges with a distance, a class for each graph."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(4, 7, 16)
    edges = [np.stack(np.nonzero(1 - np.eye(size))) for size in sizes]
    index = np.concatenate(edges, 1)
    x = rng.random((sizes.sum(), 3), dtype=np.float32)
    return GraphSet.from_arrays(
        sizes,
        index,
        [part.shape[1] for part in edges],
        x=x,
        edge_attr=rng.random((index.shape[1], 1), dtype=np.float32),
        y_graph=np.arange(16)[:, None] % 3,
        graph_targets=["kind"],
        node_features=["colour", "across", "down"],
        edge_features=["distance"],
        split=np.resize(SPLITS, 16),
    )


def make_sets(folder: Path) -> dict[str, GraphSet]:
    table = folder / "table.csv"
    table.write_text(TABLE)
    sets = {
        "multitask": multitask(0, sizes=(6, 7), counts={"train": 4, "validation": 2, "test": 2}),
        "molecules": molecules_like(),
        "superpixels": superpixels_like(),
        "table": from_table(table, ["solubility", "toxic"], split="split", features=["ogb"]),
    }
    for name, graphs in sets.items():
        graphs.save(folder / f"{name}.safetensors")
    return sets


def settings(epochs: int) -> Settings:
    return Settings(members=2, epochs=epochs, batch_size=8, lr=(1e-2, 3e-3), average=0.9, clip=1.0)


def make_runs(folder: Path, sets: dict[str, GraphSet]) -> None:
    for name, (data, model, loss) in FINISHED.items():
        graphs, out = sets[data], folder / "finished" / name
        train(graphs, out, model, settings(2), loss=loss, device="cpu")
        tidy(out, last=name in CONTINUED)
        predict(out, graphs, device="cpu").save(folder / f"finished-{name}.csv")
    for name, (data, model, loss) in INTERRUPTED.items():
        graphs, out, whole = sets[data], folder / "interrupted" / name, folder / "whole"
        train(graphs, whole, model, settings(6), loss=loss, device="cpu")
        predict(whole, graphs, device="cpu").save(folder / f"resumed-{name}.csv")
        shutil.copy(whole / "metrics.csv", folder / f"resumed-{name}-metrics.csv")
        shutil.rmtree(whole)
        try:
            train(graphs, out, model, settings(6), loss=loss, device="cpu", report=stop_after_3)
        except Interrupted:
            tidy(out)
    for name in CONTINUED:
        data, model, loss = FINISHED[name]
        train(sets[data], folder / "whole", model, settings(4), loss=loss, device="cpu")
        predict(folder / "whole", sets[data], device="cpu").save(folder / f"continued-{name}.csv")
        shutil.rmtree(folder / "whole")


def stop_after_3(report: Report) -> None:
    if report.epoch == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def tidy(run: Path, last: bool = True) -> None:
    """Remove what is not tested: TensorBoard's events, and checkpoints that nothing resumes."""
    for path in [*run.glob("events*"), *([] if last else [run / LAST])]:
        path.unlink()


def make_models(folder: Path, sets: dict[str, GraphSet]) -> None:
    """Weights and predictions of every convolution, in one file of each."""
    graphs = sets["superpixels"]
    tasks = tasks_of(graphs, "cross_entropy")
    weights, outputs = {}, {}
    for name, edges in CONVOLUTIONS.items():
        arguments = {"layers": 2, "edges": edges, "edge_width": 3}
        model = build(fitted(ModelSettings(name, "stacked", 4, arguments=arguments), graphs, tasks))
        weights |= {f"{name}/{key}": value for key, value in model.state_dict().items()}
        with torch.no_grad():
            outputs[name] = model.eval()(graphs.batch()).graph.contiguous()
    save_file(weights, folder / "models.safetensors")
    save_file(outputs, folder / "models-outputs.safetensors")


def make_conv(folder: Path, sets: dict[str, GraphSet]) -> None:
    """The layer's weights, and its inputs and outputs on one batch."""
    torch.manual_seed(0)
    batch = sets["superpixels"].batch()
    deg = torch.bincount(batch.adjacency.degree.long())
    conv = PNAConv(3, 4, AGGREGATORS, SCALERS, deg, edge_dim=1, towers=2, train_norm=True)
    save_file(conv.state_dict(), folder / "conv.safetensors")
    with torch.no_grad():
        out = conv(batch.x, batch.adjacency, batch.edge_attr)
    np.savetxt(folder / "conv.csv", out.numpy(), delimiter=",", fmt="%.9g")
    (folder / "degrees.json").write_text(json.dumps(deg.tolist()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="New folder to write to.")
    folder: Path = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} exists. These files are kept as they are; name a new folder.")
    folder.mkdir(parents=True)
    sets = make_sets(folder)
    make_runs(folder, sets)
    make_models(folder, sets)
    make_conv(folder, sets)
    (folder / "made-with.json").write_text(json.dumps(machine(), indent=2) + "\n")


if __name__ == "__main__":
    main()
