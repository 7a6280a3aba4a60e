"""All experiments by name. A new one is added to the tuple at the end of its module."""

from pna.paper import best, fresh, nodes, superpixels, synthetic, tuning
from pna.paper.experiment import Experiment
from pna.paper.molhiv import MOLHIV
from pna.paper.zinc import ZINC

#: Experiments that train populations, in the order in which they are shown.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *synthetic.EXPERIMENTS,
        *fresh.EXPERIMENTS,
        *tuning.EXPERIMENTS,
        ZINC,
        *best.EXPERIMENTS,
        MOLHIV,
        *superpixels.EXPERIMENTS,
        *nodes.EXPERIMENTS,
    )
}

#: Experiments that are run one after another, by a name for all of them.
GROUPS = {
    name: tuple(experiment.name for experiment in module.EXPERIMENTS)
    for name, module in (("fresh", fresh), ("best", best), ("nodes", nodes))
}
