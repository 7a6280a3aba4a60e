"""Every type of graph by itself, with the models of the main comparison."""

from pna.data.multitask.families import FAMILIES
from pna.paper.claims import Claim, best_everywhere, on_average, rises_with
from pna.paper.experiment import Experiment
from pna.paper.models import LABELS, variants
from pna.paper.multitask import MULTITASK

TYPES = tuple(family.name for family in FAMILIES)

#: The mean diameter of the test graphs of each type, as drawn by the protocol "paper".
DIAMETERS = {
    "erdos_renyi": 2.6,
    "barabasi_albert": 2.7,
    "grid": 7.6,
    "caveman": 3.4,
    "power_law_tree": 7.7,
    "ladder": 7.5,
    "line": 10.8,
    "star": 2.3,
    "caterpillar": 8.0,
    "lobster": 8.3,
}

GRAPH_TYPES = Experiment(
    "graph-types",
    "Errors on each of the ten types of graph",
    variants(),
    splits=tuple(f"test {name}" for name in TYPES),
    types=True,
    recipes=MULTITASK.recipes,
    figure="heat map",
    claims=(
        Claim("PNA is the best model on every type of graph",
              best_everywhere("pna", list(LABELS),
                              {name: on_average(f"test {name}") for name in TYPES})),
        Claim("PNA has the most error on types of graph with a long diameter",
              rises_with("pna", {name: (DIAMETERS[name], on_average(f"test {name}"))
                                 for name in TYPES})),
    ),
)  # fmt: skip
