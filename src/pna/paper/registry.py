"""All experiments by name. A new one is added to the tuple at the end of its module."""

from pna.paper import superpixels, synthetic, tuning
from pna.paper.experiment import Experiment
from pna.paper.molhiv import MOLHIV
from pna.paper.zinc import ZINC

#: Experiments that train populations, in the order in which they are shown.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *synthetic.EXPERIMENTS,
        *tuning.EXPERIMENTS,
        ZINC,
        MOLHIV,
        *superpixels.EXPERIMENTS,
    )
}
