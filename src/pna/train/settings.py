"""Settings of models and of training: everything that a run saves to be repeated."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from pna.data.edge_labels import MESSAGES
from pna.data.neighbours import check_fan_out
from pna.names import lookup
from pna.nn.architectures import ARCHITECTURES
from pna.nn.initial import INITIAL
from pna.nn.registry import CONVOLUTIONS
from pna.ops.aggregators import Aggregator
from pna.stored import made
from pna.train.arguments import by_name, classes_in, encode
from pna.train.metrics import METRICS
from pna.train.schedules import SCHEDULES

#: Optimisers; whether weight decay is decoupled from the gradient.
OPTIMISERS = {"adam": False, "adamw": True}
ALL = "all"  # splits of one graph, each for members of its own
#: What the best epoch is selected by: the validation loss, or a metric.
SELECTIONS = ("loss", *METRICS)
#: Thresholds of probabilities: 0.5, or the one with the largest metric on validation.
THRESHOLDS = ("half", "f1", "balanced_accuracy")
_LEAST = {"members": 1, "epochs": 0, "batch_size": 1, "plateau": 1, "patience": 1, "warmup": 0}
_SEEDS = 2**63  # number of seeds: dropout keeps its seed in an int64


class Precision(NamedTuple):
    """What a precision means in training and prediction. Nothing has a default."""

    weights: torch.dtype
    autocast: torch.dtype | None  # of products; None: that of the weights
    tf32: bool  # whether products may round to TF32

    def context(self, device: torch.device) -> Any:
        """The context in which models are called."""
        return (
            nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)
        )


PRECISIONS = {
    "float32": Precision(torch.float32, None, tf32=False),
    "tf32": Precision(torch.float32, None, tf32=True),
    "float64": Precision(torch.float64, None, tf32=False),
    "bfloat16": Precision(torch.float32, torch.bfloat16, tf32=False),
}


@dataclass(frozen=True)
class Settings:
    """Settings of training. Tuples have one number per member, or one for all members."""

    members: int = 1
    seed: int = 0  # of the weights and dropout of member 0; member k uses seed + k
    data_seed: int = 0  # of the order of the graphs
    epochs: int = 1000
    patience: int | None = 100  # epochs without a better one by `select`; None: no early stopping
    batch_size: int = 128
    shuffle: bool = True  # otherwise graphs are in the order of the file
    sample: tuple[int, ...] = ()  # for each layer, most in-neighbours of a node that are sampled,
    # first those of the seed nodes, which batches have instead of graphs; default: all neighbours,
    # unless one graph seems too large for the memory
    full_batch: bool = False  # take all neighbours, even if one graph seems too large
    optimiser: str = "adam"  # of `OPTIMISERS`
    lr: tuple[float, ...] = (1e-3,)
    weight_decay: tuple[float, ...] = (0.0,)
    schedule: str = "constant"  # of `pna.train.schedules.SCHEDULES`
    warmup: int = 0  # epochs in which the learning rate rises linearly from 0
    decay: float = 0.5  # factor by which the schedule "plateau" multiplies the learning rate
    plateau: int = 10  # epochs without a better validation loss before "plateau" does
    min_lr: float = 0.0  # lowest learning rate; the schedule decides what happens there
    clip: float | None = None  # highest norm of the gradient of a member
    average: float | None = None  # decay of the moving average that is validated and saved
    precision: str = "float32"  # of `PRECISIONS`; "tf32" uses tensor cores of a GPU
    task_weights: tuple[tuple[float, ...], ...] = ()  # of each task, for each member; default:
    # those of the tasks
    balance: bool = False  # divide each loss by the variance of its targets
    class_weights: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by target: one for
    # each class, by which errors are multiplied; default: 1
    balance_classes: bool = False  # weigh classes by the inverse of their frequency in training
    even: bool = False  # weigh each loss by the inverse of its last value, so that all fall
    select: str = "loss"  # of `SELECTIONS`: by which the best epoch is selected, on validation
    threshold: str = "half"  # of `THRESHOLDS`: from which probability on class 1 is predicted
    mask_column: str = "0"  # of one graph with several splits: the number of one, or `ALL`
    keep_last: bool = False  # save the weights of the last epoch of every member too
    message_edges: str = "all"  # of `pna.data.edge_labels.MESSAGES`: which edges send messages

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
        by_name = {name: tuple(map(float, of)) for name, of in self.class_weights.items()}
        object.__setattr__(self, "class_weights", by_name)
        if self.task_weights and len(self.task_weights) != self.members:
            raise ValueError(
                f"got task weights for {len(self.task_weights)} members, expected {self.members}"
            )
        if self.sample and self.full_batch:
            raise ValueError(
                f"got sample={self.sample} and full_batch=True, expected one of them; leave one out"
            )
        if self.sample not in ((), []):
            object.__setattr__(self, "sample", check_fan_out(self.sample))
        lookup("optimiser", self.optimiser, OPTIMISERS)
        lookup("schedule", self.schedule, SCHEDULES)
        lookup("precision", self.precision, PRECISIONS)
        lookup("select", self.select, dict.fromkeys(SELECTIONS))
        if self.mask_column != ALL and not self.mask_column.isdecimal():
            raise ValueError(
                f"got mask_column={self.mask_column!r}, expected the number of a split, counted "
                f"from 0, or {ALL!r}"
            )
        lookup("threshold", self.threshold, dict.fromkeys(THRESHOLDS))
        lookup("message edges", self.message_edges, dict.fromkeys(MESSAGES))
        for name, least in _LEAST.items():
            self._check(name, partial(operator.le, least), f"at least {least}")
        for name in ("lr", "weight_decay", "min_lr", "task_weights"):
            self._check(name, lambda v: 0 <= v < math.inf, "finite numbers of at least 0")
        self._check("decay", lambda value: 0 < value < 1, "a factor between 0 and 1")
        self._check("average", lambda value: 0 < value < 1, "a decay between 0 and 1")
        self._check("clip", lambda value: value > 0, "a norm above 0")
        for name, count in (("seed", self.members), ("data_seed", 1)):
            every = " and one for each further member" if count > 1 else ""
            fits = partial(_is_seed, count)
            self._check(name, fits, f"a number of at least 0{every} below 2**63")

    def _check(self, name: str, fits: Callable[[Any], bool], expected: str) -> None:
        """Raise unless all numbers of a field fit; None always does."""
        given = getattr(self, name)
        if not all(number is None or fits(number) for number in _numbers(given)):
            raise ValueError(f"got {name}={given}, expected {expected}")

    @property
    def seeds(self) -> list[int]:
        return [self.seed + k for k in range(self.members)]

    def of_members(self, name: str) -> list[float]:
        """One number for each member."""
        values = getattr(self, name)
        return list(values) * (self.members if len(values) == 1 else 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Settings:
        """From the output of `as_dict`, read from a file; a ValueError says what is wrong."""
        return made(cls, content, "settings")


def _is_seed(count: int, seed: int) -> bool:
    """Whether there are `count` seeds from this one on."""
    return 0 <= seed <= _SEEDS - count


def _numbers(given: Any) -> Iterator[Any]:
    """The numbers in nested tuples, or a number itself."""
    if not isinstance(given, tuple):
        yield given
        return
    for part in given:
        yield from _numbers(part)


@dataclass(frozen=True)
class ModelSettings:
    """Settings from which a model can be built.

    Aggregators among the `arguments` may be names, classes and objects, also your own. They are
    saved in encoded form; `own_aggregators` are the classes of your own, which are not saved.
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
    edge_targets: int = 0
    out_degrees: tuple[int, ...] = ()  # histogram of out-degrees, for the direction "both"

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(
                f"got hidden={self.hidden}, expected a width of at least 1; raise it (--hidden)"
            )
        own = by_name([*self.own_aggregators, *classes_in(self.arguments)])
        object.__setattr__(self, "own_aggregators", tuple(own.values()))
        object.__setattr__(self, "arguments", encode(self.arguments))

    @property
    def edge_features(self) -> int:
        """Number of edge features that the model takes; 0 if it uses none."""
        return self.arguments.get("edge_columns") or self.arguments.get("edge_dim") or 0

    @property
    def graph_features(self) -> int:
        """Number of graph features that the model takes; 0 if it uses none."""
        return len(self.arguments.get("graph_scales", ()))

    def as_dict(self) -> dict[str, Any]:
        content = asdict(self)
        del content["own_aggregators"]
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> ModelSettings:
        """From the output of `as_dict`, read from a file; a ValueError says what is wrong."""
        model = made(cls, content, "model")
        lookup("convolution", model.convolution, CONVOLUTIONS)
        lookup("architecture", model.architecture, ARCHITECTURES)
        lookup("initialisation", model.init, INITIAL)
        targets = (model.node_targets, model.graph_targets, model.edge_targets)
        if min(model.in_channels, *targets) < 0:
            raise ValueError("model has a negative width")
        return model
