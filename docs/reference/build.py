"""The API reference, written from docstrings: `python docs/reference/build.py FOLDER`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pdoc

#: What users may rely on: modules, and what each page shows, in order. All else is ours.
PUBLIC: dict[str, tuple[str, ...]] = {
    "pna": (
        *("Adjacency", "DegreeStats", "aggregate", "scale", "backend", "GraphSet", "load"),
        *("nn", "aggregators", "degree", "data", "train", "theory", "testing"),
    ),
    "pna.nn": (
        *("PNAConv", "PNASimpleConv", "PNA", "Convolution", "Recurrent", "Standard", "Stacked"),
        *("Prediction", "GCNConv", "GATConv", "GINConv", "SAGEConv", "MoNetConv", "GatedGCNConv"),
        *("MLPConv", "Gate", "DiffPool", "ClusterReadout", "Set2Set", "BatchNorm"),
        *("VirtualNode", "RandomFlip", "RandomRotate", "RandomScaleShift"),
    ),
    "pna.aggregators": (
        *("Aggregator", "Mean", "Sum", "Max", "Min", "Var", "Std", "Moment"),
        *("Softmax", "Softmin", "NormalisedMean", "KthSmallest", "Neighbourhoods"),
    ),
    "pna.degree": ("Power", "Linear"),
    "pna.data": (
        *("batch", "describe", "molecule_table", "molhiv", "multitask", "pyg", "superpixels"),
        *("table", "walks", "zinc"),
    ),
    "pna.data.batch": ("Batch",),
    "pna.data.describe": ("describe", "Description", "Split", "Target"),
    "pna.data.molecule_table": ("from_table", "standardised"),
    "pna.data.molhiv": ("molhiv",),
    "pna.data.multitask": ("multitask",),
    "pna.data.pyg": ("AttachAdjacency",),
    "pna.data.superpixels": ("mnist", "cifar10", "neighbours", "Neighbours"),
    "pna.data.table": ("Table",),
    "pna.data.walks": ("with_walks", "return_probabilities", "arrival_probabilities"),
    "pna.data.zinc": ("zinc",),
    "pna.train": (
        *("train", "Settings", "ModelSettings", "Report", "Interrupted", "Run"),
        *("evaluate", "Evaluation", "TaskScores", "predict", "predict_table", "Predictions"),
    ),
    "pna.testing": ("check_aggregator",),
    "pna.theory": (
        *("find_collision", "Search", "Collision", "multiset_from_moments", "Recovered"),
        *("size_from_scaled", "encode", "decode", "multisets", "collisions", "growth"),
        *("smallest_pair", "advise", "Advice", "Merging", "MomentUse"),
    ),
}


def build(folder: Path) -> None:
    """Write a page for each module of `PUBLIC`, with an index and a search."""
    for module, names in PUBLIC.items():
        vars(importlib.import_module(module))["__all__"] = names  # pdoc shows these alone
    pdoc.render.configure(
        docformat="google",
        include_undocumented=False,
        show_source=False,
        template_directory=Path(__file__).parent,
    )
    pdoc.pdoc("pna", output_directory=folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)
