"""Options that commands which train share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pna.train.schedules import help_of_lowest, help_of_schedules

T = TypeVar("T")


def _model(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Model")


def _training(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Training")


def _targets(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Targets")


Model = Annotated[str | None, _model("Convolution: pna, gin, gat, …")]
Architecture = Annotated[
    str | None, _model("recurrent (of the multi-task benchmark), standard, stacked (of others).")
]
Hidden = Annotated[int | None, _model("Features of a node: 16; stacked 64.")]
Towers = Annotated[int | None, _model("Layers side by side: 4; stacked 1.")]
Depth = Annotated[str | None, _model("Steps if recurrent: N/2, N, diameter, adaptive, a number, …")]
Layers = Annotated[int | None, _model("Convolutions if not recurrent.")]
Dropout = Annotated[float | None, _model("Share of features that is dropped: 0.")]
Readout = Annotated[str | None, _model("sum, mean or max; recurrent: set2set too.")]
VirtualNode = Annotated[
    bool | None, _model("Join all nodes of a graph through one more, if stacked.")
]
Init = Annotated[str | None, _model("How weights begin: default, published, remembering.")]
Edges = Annotated[bool | None, _model("Use edge features, if there are any.")]

Members = Annotated[int | None, _training("Models trained at once, each of its seed.")]
Seed = Annotated[int | None, _training("Of the first member; others count on.")]
DataSeed = Annotated[int | None, _training("Of the order of the graphs.")]
Epochs = Annotated[int | None, _training("At most so many: 1000.")]
Patience = Annotated[
    int | None, _training("Epochs a member goes on without getting better: 100; 0: all.")
]
BatchSize = Annotated[int | None, _training("Graphs of a step: 128; multi-task 512.")]
Shuffle = Annotated[bool | None, _training("Draw another order each epoch; multi-task does not.")]
Optimiser = Annotated[str | None, _training("adam or adamw.")]
LearningRate = Annotated[
    str | None, _training("Learning rate: 0.001; or one for each member, with commas between.")
]
WeightDecay = Annotated[str | None, _training("Likewise: 0.")]
Schedule = Annotated[str | None, _training(help_of_schedules())]
Warmup = Annotated[int | None, _training("Epochs in which it grows from 0.")]
Decay = Annotated[float | None, _training("What a plateau multiplies it by: 0.5.")]
Plateau = Annotated[int | None, _training("Epochs of a plateau: 10.")]
MinLearningRate = Annotated[float | None, _training(help_of_lowest())]
Clip = Annotated[float | None, _training("Greatest norm of a member's gradient.")]
Average = Annotated[
    float | None, _training("Validate and keep a moving average of the weights: 0.999, say.")
]
Precision = Annotated[str | None, _training("float32, tf32, float64, bfloat16 (slow on a CPU).")]

Loss = Annotated[
    str | None,
    _targets(
        "mse, mae, huber, bce, cross_entropy; or target=bce,… and mse else. If not said, that of "
        "the field for a benchmark's graphs, bce for a table's yes or no, mse for others."
    ),
]
Weights = Annotated[str | None, _targets("Of the losses: target=2,… and 1 else.")]
Balance = Annotated[bool | None, _targets("Divide losses by the variance of targets.")]
Even = Annotated[bool | None, _targets("Weigh losses by their inverse, so that all fall.")]
Tasks = Annotated[str | None, _targets("Which, with commas between; if not said, all.")]
Splits = Annotated[str | None, _targets("To train and to stop by: train,validation.")]

_OF_MODEL = ("architecture", "hidden", "towers", "depth", "layers", "dropout", "readout",
             "virtual_node", "init", "edges")  # fmt: skip


def asked(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Model, settings and targets, as `pna.train.train` takes them, from the options given."""
    from pna.data.graphset import GraphSet
    from pna.train.defaults import loss_for, model_for, settings_for
    from pna.train.settings import Settings

    graphs = GraphSet.load(path)
    loss = loss_for(graphs, parse_loss(given["loss"]) if "loss" in given else None)
    of_model = {name: given[name] for name in _OF_MODEL if name in given}
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
        "model": model_for(graphs, given.get("model", "pna"), of_model, loss),
        "settings": settings_for(graphs, chosen),
        "loss": loss,
        "weights": parse_named("weights", given.get("weights", ""), float),
        "tasks": parse_names(given.get("tasks", "")) or None,
        "splits": (splits[0], splits[1]),
    }


def parse_names(text: str) -> list[str]:
    """ "a, b" to both."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """ "1e-3,3e-4" to both."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"got {name} {text!r}, expected a number, or some with commas between: 1e-3,3e-4"
        ) from None


def parse_named(what: str, text: str, kind: Callable[[str], T]) -> dict[str, T]:
    """ "a=1,b=2" to a dictionary."""
    found: dict[str, T] = {}
    for part in parse_names(text):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            if not value:
                raise ValueError
            found[name] = kind(value)
        except ValueError:
            raise ValueError(
                f"got {part!r} in {what}, expected target=value, with commas between"
            ) from None
    return found


def parse_loss(text: str) -> str | dict[str, str]:
    """One name, or "target=name,…"."""
    return parse_named("loss", text, str) if "=" in text else text.strip()
