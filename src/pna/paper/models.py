"""The models that the synthetic experiments compare, by the names they have in results."""

from __future__ import annotations

from typing import Any

from pna.paper.experiment import Variant

LABELS = {
    "pna": "PNA",
    "pna-no-scalers": "PNA without scalers",
    "mpnn-max": "MPNN (max)",
    "mpnn-sum": "MPNN (sum)",
    "gat": "GAT",
    "gcn": "GCN",
    "gin": "GIN",
}

#: Which of them have one aggregator, and no scalers.
SINGLE = tuple(name for name in LABELS if not name.startswith("pna"))


def variants(*names: str, **given: Any) -> tuple[Variant, ...]:
    """A row for each of these models, or for all of them."""
    return tuple(Variant(name, LABELS[name], name, **given) for name in names or LABELS)
