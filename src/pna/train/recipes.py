"""Models and trainings with a name, which `pna train` takes as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelRecipe:
    """What a recipe sets. What is given besides comes first. Nothing has a default."""

    encodings: Mapping[str, int]  # of `pna.data.encodings.ENCODINGS`, with their sizes
    arguments: Mapping[str, Any]  # of a stacked model, and its width
    settings: Mapping[str, Any]


#: For sets of some thousands of graphs: docs/recipes.md says how it was found.
BEST = ModelRecipe(
    encodings={"walks": 20, "edge-walks": 8},
    arguments={
        "hidden": 50, "layers": 5, "out_channels": 45, "towers": 5, "divide_input": True,
        "norm_before_mixing": True, "graph_norm": True, "encode_edges": False, "edge_width": 14,
        "edge_updates": True, "feed_forward": 1.0, "dropout": 0.05,
    },
    settings={
        "epochs": 400, "patience": None, "batch_size": 32, "shuffle": True,
        "optimiser": "adamw", "lr": (2e-3,), "weight_decay": (0.03,), "schedule": "cosine",
        "warmup": 10, "average": 0.999,
    },
)  # fmt: skip

USUAL = "usual"
#: Graphs below which a recipe other than the usual one is doubtful.
FEW = 2000
RECIPES = {USUAL: ModelRecipe({}, {}, {}), "best": BEST}
