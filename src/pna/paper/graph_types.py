"""Every type of graph by itself, with the models of the main comparison."""

from pna.data.multitask.families import FAMILIES
from pna.paper.claims import Claim, best_everywhere, on_average
from pna.paper.experiment import Experiment
from pna.paper.models import LABELS, variants

TYPES = tuple(family.name for family in FAMILIES)

GRAPH_TYPES = Experiment(
    "graph-types",
    "Errors on each of the ten types of graph",
    variants(),
    splits=tuple(f"test {name}" for name in TYPES),
    types=True,
    figure="heat map",
    claims=(
        Claim("PNA is the best model on every type of graph",
              best_everywhere("pna", list(LABELS),
                              {name: on_average(f"test {name}") for name in TYPES})),
    ),
)  # fmt: skip
