"""The options that commands share, and those of every command that trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pna.nn.architectures import ARCHITECTURES
from pna.nn.depth import RULES
from pna.nn.initial import INITIAL
from pna.nn.registry import CONVOLUTIONS
from pna.train.schedules import help_of_lowest, help_of_schedules
from pna.train.settings import OPTIMISERS, PRECISIONS, Settings
from pna.train.tasks import LOSSES

T = TypeVar("T")

Device = Annotated[
    str, typer.Option(help="Device: cpu, cuda or cuda:N. Default: a GPU if there is one, else cpu.")
]
Workers = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def values(names: Iterable[str]) -> str:
    """The allowed values of an option, for its help."""
    return f"Values: {', '.join(names)}."


#: Options of commands that train, by panel and name: type and help. A default that the help does
#: not name is that of `Settings`.
OPTIONS: dict[str, dict[str, tuple[type, str]]] = {
    "Model": {
        "model": (str, f"Graph convolution. {values(CONVOLUTIONS)} Default: pna."),
        "architecture": (
            str,
            f"Model around the convolutions. {values(ARCHITECTURES)} Default: recurrent for the "
            "multi-task benchmark, else stacked.",
        ),
        "hidden": (int, "Number of features per node. Default: 64 if stacked, else 16."),
        "towers": (
            int,
            "Number of parallel towers of a layer. Default: 1 if stacked, else 4.",
        ),
        "depth": (
            str,
            f"Number of message-passing steps of a recurrent model. {values(RULES)} A whole number "
            "is allowed too. Default: N/2, where N is the number of nodes.",
        ),
        "layers": (
            int,
            "Number of convolutions of a stacked or standard model. Default: 4 if stacked, 8 if "
            "standard.",
        ),
        "dropout": (float, "Dropout probability, at least 0 and below 1. Default: 0."),
        "readout": (
            str,
            "Pooling from nodes to graphs. Values: sum, mean, max, and set2set for recurrent "
            "models. Default: set2set if recurrent, sum if stacked, mean if standard.",
        ),
        "virtual_node": (
            bool,
            "Add a node that is connected to all nodes of a graph. Only for stacked models. "
            "Default: no.",
        ),
        "init": (str, f"Initialisation of the weights. {values(INITIAL)} Default: default."),
        "edges": (bool, "Use edge features. Default: yes, if the graphs have them."),
    },
    "Training": {
        "members": (int, "Number of models trained at once, each with its own seed."),
        "seed": (int, "Random seed of member 0; member k uses seed + k."),
        "data_seed": (int, "Random seed of the order of the graphs."),
        "epochs": (int, "Maximum number of epochs."),
        "patience": (
            int,
            "Early stopping: a member stops after this many epochs without a better validation "
            "loss; 0: no early stopping.",
        ),
        "batch_size": (
            int, "Number of graphs per batch. Default: 512 for the multi-task benchmark, else 128."
        ),
        "shuffle": (
            bool,
            "Draw a new order of the graphs every epoch. Default: yes, except for the multi-task "
            "benchmark.",
        ),
        "optimiser": (str, f"Optimiser. {values(OPTIMISERS)}"),
        "lr": (str, "Learning rate: one value, or one per member separated by commas."),
        "weight_decay": (str, "Weight decay: one value, or one per member separated by commas."),
        "schedule": (str, help_of_schedules()),
        "warmup": (int, "Number of epochs in which the learning rate rises linearly from 0."),
        "decay": (float, "Factor by which `plateau` multiplies the learning rate."),
        "plateau": (
            int,
            "Number of epochs without a better validation loss after which `plateau` lowers the "
            "learning rate.",
        ),
        "min_lr": (float, help_of_lowest()),
        "clip": (float, "Clip the norm of each member's gradient to this. Default: no clipping."),
        "average": (
            float,
            "Decay of an exponential moving average of the weights, such as 0.999. The average is "
            "validated and saved. Default: no average.",
        ),
        "precision": (
            str, f"Floating-point precision. {values(PRECISIONS)} bfloat16 is slow on a CPU."
        ),
    },
    "Targets": {
        "loss": (
            str,
            f"Loss for all targets, or target=loss,… for some. {values(LOSSES)} Default: mse; the "
            "usual loss for the graphs of a benchmark; bce for the 0 or 1 columns of a table.",
        ),
        "weights": (str, "Weights of the losses: target=2,… Default: 1 each."),
        "balance": (bool, "Divide each loss by the variance of its targets. Default: no."),
        "even": (
            bool,
            "Weigh each loss by the inverse of its last value, so that all of them fall. "
            "Default: no.",
        ),
        "tasks": (str, "Targets to train on, separated by commas. Default: all."),
        "splits": (
            str,
            "Names of the splits to train and to validate on, separated by a comma. "
            "Default: train,validation.",
        ),
    },
}  # fmt: skip

Command = TypeVar("Command", bound=Callable[..., None])


def training_options(without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Decorator: the command takes all `OPTIONS` but some; ``**given`` has those that were set."""

    def decorate(command: Command) -> Command:
        own = [
            parameter
            for parameter in signature(command, eval_str=True).parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        more = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    kind | None,
                    typer.Option(help=_with_default(name, words), rich_help_panel=panel),
                ],
            )
            for panel, options in OPTIONS.items()
            for name, (kind, words) in options.items()
            if name not in without
        ]
        optional = {parameter.name for parameter in more}

        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            command(**{n: v for n, v in arguments.items() if n not in optional or v is not None})

        parameters = [*own, *more]
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called  # type: ignore[return-value]

    return decorate


def _with_default(name: str, words: str) -> str:
    if "Default:" in words:
        return words
    default = getattr(Settings, name)
    return f"{words} Default: {default[0] if isinstance(default, tuple) else default}."


def training_arguments(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Model, settings and targets, as `pna.train.train` takes them, from the options given."""
    from pna.data.graphset import GraphSet
    from pna.train.defaults import loss_for, model_for, settings_for

    graphs = GraphSet.load(path)
    loss = loss_for(graphs, parse_loss(given["loss"]) if "loss" in given else None)
    of_model = {name: given[name] for name in OPTIONS["Model"] if name in given}
    convolution = of_model.pop("model", "pna")
    chosen = {f.name: given[f.name] for f in fields(Settings) if f.name in given}
    for name in ("lr", "weight_decay"):
        if name in chosen:
            chosen[name] = parse_numbers(name, chosen[name])
    if chosen.get("patience") == 0:
        chosen["patience"] = None
    splits = parse_names(given.get("splits", "train,validation"))
    if len(splits) != 2:
        raise ValueError(f"got splits {given['splits']!r}, expected two such as train,validation")
    return {
        "model": model_for(graphs, convolution, of_model, loss),
        "settings": settings_for(graphs, chosen),
        "loss": loss,
        "weights": parse_named("weights", given.get("weights", ""), float),
        "tasks": parse_names(given.get("tasks", "")) or None,
        "splits": (splits[0], splits[1]),
    }


def parse_names(text: str) -> list[str]:
    """The names in "a, b"."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """The numbers in "1e-3,3e-4"."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"got {name} {text!r}, expected a number, or numbers separated by commas: 1e-3,3e-4"
        ) from None


def parse_named(what: str, text: str, kind: Callable[[str], T]) -> dict[str, T]:
    """The dictionary written as "a=1,b=2"."""
    found: dict[str, T] = {}
    for part in parse_names(text):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            if not value:
                raise ValueError
            found[name] = kind(value)
        except ValueError:
            raise ValueError(
                f"got {part!r} in {what}, expected target=value, separated by commas"
            ) from None
    return found


def parse_loss(text: str) -> str | dict[str, str]:
    """One name, or "target=name,…"."""
    return parse_named("loss", text, str) if "=" in text else text.strip()
