"""All experiments by name."""

from pna.paper.architectures import ARCHITECTURES
from pna.paper.choice import CHOICE
from pna.paper.experiment import Experiment
from pna.paper.extrapolation import DIAMETER, EXTRAPOLATION
from pna.paper.graph_types import GRAPH_TYPES
from pna.paper.molhiv import MOLHIV
from pna.paper.moments import MOMENTS
from pna.paper.multitask import MULTITASK
from pna.paper.parameters import PARAMETERS
from pna.paper.single_task import SINGLE_TASK
from pna.paper.superpixels import CIFAR10, MNIST
from pna.paper.training import TRAINING
from pna.paper.tuning import DECAY, SEARCH, TUNING
from pna.paper.zinc import ZINC

#: Those that train populations.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        MULTITASK,
        EXTRAPOLATION,
        DIAMETER,
        MOMENTS,
        GRAPH_TYPES,
        ARCHITECTURES,
        SINGLE_TASK,
        PARAMETERS,
        TRAINING,
        TUNING,
        SEARCH,
        CHOICE,
        DECAY,
        ZINC,
        MOLHIV,
        MNIST,
        CIFAR10,
    )
}
