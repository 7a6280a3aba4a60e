"""The models that the synthetic experiments compare. A new one is added to `MODELS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Model:
    """A row of the synthetic tables; its name is that of its convolution."""

    label: str
    tuned: Mapping[str, Any]  # its settings in the recipe "tuned", see pna/paper/tuning.py


#: AdamW, whose weight decay is decoupled from the gradients, instead of Adam.
DECAYED: Mapping[str, Any] = {"decays": (0.01,), "optimiser": "adamw"}

MODELS = {
    "pna": Model("PNA", {"rate": 0.0135, **DECAYED}),
    "pna-no-scalers": Model("PNA without scalers", {"rate": 0.009}),
    "mpnn-max": Model("MPNN (max)", {"rate": 0.0135, **DECAYED}),
    "mpnn-sum": Model("MPNN (sum)", {"rate": 0.009, **DECAYED}),
    "gat": Model("GAT", {"rate": 0.0135, "init": "default"}),
    "gcn": Model("GCN", {"rate": 0.0135, **DECAYED}),
    "gin": Model("GIN", {"rate": 0.0135, **DECAYED}),
}
LABELS = {name: model.label for name, model in MODELS.items()}

#: Models with one aggregator and no scalers.
SINGLE = tuple(name for name in MODELS if not name.startswith("pna"))
