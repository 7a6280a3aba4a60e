"""`pna train`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pna.cli.progress import print_json, telling
from pna.cli.shared import errors, make_console, say_error
from pna.cli.show import table

if TYPE_CHECKING:
    from pna.train.evaluation import Evaluation
    from pna.train.run import Run

T = TypeVar("T")

_MODEL, _TRAINING, _DATA = "Model", "Training", "Data and targets"


def train(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="A graph set; with --resume, if it has moved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; if not said, a new one in runs/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors alone.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for every epoch, and one at the end.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(rich_help_panel=_MODEL, help="Convolution: pna, gin, gcn, …")
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MODEL,
            help="recurrent (the multi-task benchmark's), standard, or stacked (all others').",
        ),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(rich_help_panel=_MODEL, help="Features of a node: 16, or 64 if stacked."),
    ] = None,
    towers: Annotated[
        int | None,
        typer.Option(rich_help_panel=_MODEL, help="Narrow layers side by side: 4, or 1 if stacked."),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MODEL,
            help="Steps of a recurrent model: N/2, N, 4log2N, 2log2N, 3sqrtN, diameter, adaptive, "
            "or a number.",
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(rich_help_panel=_MODEL, help="Convolutions of the others.")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(rich_help_panel=_MODEL, help="Share of features dropped.")
    ] = None,
    readout: Annotated[
        str | None, typer.Option(rich_help_panel=_MODEL, help="sum, mean or max; not recurrent.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(rich_help_panel=_MODEL, help="How weights begin: default, or published."),
    ] = None,
    edges: Annotated[
        bool | None,
        typer.Option(rich_help_panel=_MODEL, help="Whether edge features are used."),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TRAINING, help="Models trained at once, each of its seed."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TRAINING, help="Of the first member; others count on."),
    ] = None,
    data_seed: Annotated[
        int | None, typer.Option(rich_help_panel=_TRAINING, help="Of the order of the graphs.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(rich_help_panel=_TRAINING, help="At most: 1000.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Epochs without a better validation loss until a member stops: 100; 0: never.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TRAINING, help="Graphs of a step: 128; 512 of multi-task."),
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Another order each epoch; not of multi-task, for one size at a time.",
        ),
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(rich_help_panel=_TRAINING, help="adam, or adamw.")
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_TRAINING, help="Learning rate: 0.001; or one for each member, by commas."
        ),
    ] = None,
    weight_decay: Annotated[
        str | None, typer.Option(rich_help_panel=_TRAINING, help="One, or one for each member.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(rich_help_panel=_TRAINING, help="Of the rate: constant, plateau or cosine."),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(rich_help_panel=_TRAINING, help="Epochs in which the rate grows.")
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(rich_help_panel=_TRAINING, help="What a plateau multiplies the rate by: 0.5."),
    ] = None,
    plateau: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TRAINING, help="Epochs without a better loss until then: 10."),
    ] = None,
    min_lr: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_TRAINING, help="Where cosine ends, and a plateau stops a member."
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(rich_help_panel=_TRAINING, help="Greatest norm of a gradient.")
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(rich_help_panel=_TRAINING, help="Keep an average of the weights: 0.999, say."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(rich_help_panel=_TRAINING, help="float32, float64 or bfloat16.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="mse, mae, huber, bce, cross_entropy; or target=loss, by commas, else mse.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(rich_help_panel=_DATA, help="Of losses: target=2, by commas, else 1."),
    ] = None,
    balance: Annotated[
        bool | None,
        typer.Option("--balance", rich_help_panel=_DATA,
                     help="Divide each loss by its targets' variance."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Which targets, by commas; else all.")
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(rich_help_panel=_DATA, help="To train and to validate on: train,validation."),
    ] = None,
) -> None:  # fmt: skip
    """Train a model, or a population of them, on a graph set.

    Whatever is not said takes a default that suits the graphs. Ctrl-C saves where it is.
    """
    from pna.train.evaluation import evaluate
    from pna.train.loop import Interrupted

    console = make_console()
    chief = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
    quiet = quiet or not chief
    given = {name: value for name, value in context.params.items() if value is not None}
    with errors():
        where, work = _prepared(given)
        try:
            with telling(console, quiet, as_json) as told:
                run = _trained(work, where, told)
        except Interrupted as stopped:
            say_error(f"{stopped}: pna train --resume {where}")
            raise typer.Exit(130) from None
