"""How a population is trained: everything that a run must remember to be repeated."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from pna.names import lookup
from pna.nn.architectures import ARCHITECTURES
from pna.nn.initial import INITIAL
from pna.nn.registry import CONVOLUTIONS
from pna.ops.aggregators import Aggregator
from pna.stored import made
from pna.train.arguments import by_name, classes_in, encode
from pna.train.schedules import SCHEDULES

#: Whether weight decay is taken out of the gradient, by the name of the optimiser.
OPTIMISERS = {"adam": False, "adamw": True}
PRECISIONS = ("float32", "tf32", "float64", "bfloat16")
JUDGES = ("loss", "roc_auc")
_SEEDS = 2**63  # how many there are: dropout keeps its own in an int64


@dataclass(frozen=True)
class Settings:
    """Training of one population. Lists have a number for each member."""

    members: int = 1
    seed: int = 0  # of the first member's weights and dropout; others count on from it
    data_seed: int = 0  # of the order of the graphs
    epochs: int = 1000
    patience: int | None = 100  # epochs without a better validation loss; None: never stop
    batch_size: int = 128
    shuffle: bool = True  # else the graphs come in the order of the file
    optimiser: str = "adam"  # or "adamw", whose decay is not part of the gradient
    lr: tuple[float, ...] = (1e-3,)
    weight_decay: tuple[float, ...] = (0.0,)
    schedule: str = "constant"  # of `pna.train.schedules`
    warmup: int = 0  # epochs in which the learning rate grows from 0
    decay: float = 0.5  # of a plateau: what the learning rate is multiplied by
    plateau: int = 10  # epochs without a better validation loss before it is
    min_lr: float = 0.0  # lowest learning rate; the schedule says what it does there
    clip: float | None = None  # greatest norm of a member's gradient
    average: float | None = None  # decay of the average of weights that is validated and kept
    precision: str = "float32"  # or "tf32", whose products on a GPU are shorter
    task_weights: tuple[tuple[float, ...], ...] = ()  # of each task, for each member; else those
    # of the tasks
    balance: bool = False  # divide each loss by the variance of its targets
    even: bool = False  # weigh each loss by the inverse of what it was, so that all of them fall
    select: str = "loss"  # what validation is judged by: its loss, or "roc_auc", 1 minus the area
    keep_last: bool = False  # keep the weights of every member's last epoch beside its best ones

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay"):
            given = getattr(self, name)
            values = tuple(given) if isinstance(given, list | tuple) else (given,)
            object.__setattr__(self, name, tuple(float(v) for v in values))
            if len(values) not in (1, self.members):
                raise ValueError(
                    f"got {len(values)} numbers for {name}, expected one, or one for each of "
                    f"{self.members} members"
                )
        object.__setattr__(self, "task_weights", tuple(tuple(w) for w in self.task_weights))
        if self.task_weights and len(self.task_weights) != self.members:
            raise ValueError(
                f"got task weights for {len(self.task_weights)} members, expected {self.members}"
            )
        if any(not 0 <= weight < math.inf for row in self.task_weights for weight in row):
            raise ValueError(
                f"got task_weights={self.task_weights}, expected finite numbers of at least 0"
            )
        lookup("optimiser", self.optimiser, OPTIMISERS)
        lookup("schedule", self.schedule, SCHEDULES)
        lookup("precision", self.precision, dict.fromkeys(PRECISIONS))
        lookup("select", self.select, dict.fromkeys(JUDGES))
        for name, least in (
            ("members", 1), ("epochs", 0), ("batch_size", 1), ("plateau", 1), ("patience", 1),
            ("warmup", 0),
        ):  # fmt: skip
            given = getattr(self, name)
            if given is not None and not given >= least:
                raise ValueError(f"got {name}={given}, expected at least {least}")
        for name, count in (("seed", self.members), ("data_seed", 1)):
            if not 0 <= getattr(self, name) <= _SEEDS - count:
                every = " and one for each further member" if count > 1 else ""
                raise ValueError(
                    f"got {name}={getattr(self, name)}, expected a number of at least 0{every} "
                    "below 2**63"
                )
        if not 0 < self.decay < 1:
            raise ValueError(f"got decay={self.decay}, expected a factor between 0 and 1")
        for name, values in (
            ("lr", self.lr), ("weight_decay", self.weight_decay), ("min_lr", (self.min_lr,)),
        ):  # fmt: skip
            if any(not 0 <= value < math.inf for value in values):
                raise ValueError(
                    f"got {name}={getattr(self, name)}, expected at least 0, and finite"
                )
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"got average={self.average}, expected a decay between 0 and 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"got clip={self.clip}, expected a norm above 0")

    @property
    def seeds(self) -> list[int]:
        return [self.seed + k for k in range(self.members)]

    def of_members(self, name: str) -> list[float]:
        """A list of these numbers, one for each member."""
        values = getattr(self, name)
        return list(values) * (self.members if len(values) == 1 else 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Settings:
        """What `as_dict` gave, read back from a file; a ValueError says what is wrong with it."""
        return made(cls, held, "settings")


@dataclass(frozen=True)
class ModelSettings:
    """A model by its names and numbers, from which it can be built again.

    Aggregators among the `arguments` may be names, classes and objects, also of your own. The
    settings keep a description of them; `own_aggregators` are the classes of your own, which are
    not saved.
    """

    convolution: str = "pna"
    architecture: str = "recurrent"
    hidden: int = 16
    init: str = "default"
    arguments: dict[str, Any] = field(default_factory=dict)  # of the architecture
    in_channels: int = 0
    node_targets: int = 0
    graph_targets: int = 0
    degrees: tuple[int, ...] = ()  # histogram of the training set's in-degrees
    own_aggregators: tuple[type[Aggregator], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        own = by_name([*self.own_aggregators, *classes_in(self.arguments)])
        object.__setattr__(self, "own_aggregators", tuple(own.values()))
        object.__setattr__(self, "arguments", encode(self.arguments))

    def as_dict(self) -> dict[str, Any]:
        held = asdict(self)
        del held["own_aggregators"]
        return held

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> ModelSettings:
        """What `as_dict` gave, read back from a file; a ValueError says what is wrong with it."""
        model = made(cls, held, "model")
        lookup("convolution", model.convolution, CONVOLUTIONS)
        lookup("architecture", model.architecture, ARCHITECTURES)
        lookup("initialisation", model.init, INITIAL)
        if min(model.hidden, model.in_channels, model.node_targets, model.graph_targets) < 0:
            raise ValueError("model has a negative width")
        return model
