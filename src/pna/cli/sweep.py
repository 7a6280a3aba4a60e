"""`pna sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli import options
from pna.cli.progress import print_json
from pna.cli.shared import errors, make_console, say_error

if TYPE_CHECKING:
    from pna.train.sweep import Sweep, Trial


#: What is searched, and where it is drawn from, is no setting of a trial.
_SEARCHED = ("lr", "weight_decay", "width", "dropout", "seed")


def sweep(
    data: Annotated[Path, typer.Argument(help="A graph set.")],
    out: Annotated[Path, typer.Option(help="Folder for the sweep, a new one.")],
    trials: Annotated[int, typer.Option(help="How many points to try.")] = 20,
    members: Annotated[int, typer.Option(help="Models of a trial, of seeds 0, 1, 2, …")] = 4,
    epochs: Annotated[int, typer.Option(help="Epochs of a trial, at most.")] = 1000,
    lr: Annotated[
        str, typer.Option(help="Learning rates: a range of logarithms, or a list.")
    ] = "1e-4..1e-2",
    weight_decay: Annotated[str, typer.Option(help="Weight decays, likewise.")] = "1e-8..1e-4",
    width: Annotated[str, typer.Option(help="Features of a node's state.")] = "16,32,64",
    dropout: Annotated[str, typer.Option(help="Shares that are dropped.")] = "0,0.1,0.3",
    seed: Annotated[int, typer.Option(help="Another seed, other points.")] = 0,
    asha: Annotated[
        bool, typer.Option("--asha", help="Stop the worse trials early, by ASHA.")
    ] = False,
    address: Annotated[
        str, typer.Option(help="Of a Ray cluster: auto, HOST:PORT, ray://…; local: this machine.")
    ] = "local",
    cpus_per_trial: Annotated[int, typer.Option(help="Processors of a trial.")] = 1,
    gpus_per_trial: Annotated[
        float | None, typer.Option(help="GPUs of a trial, such as 0.25; one if there is any.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in the folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    model: options.Model = None,
    architecture: options.Architecture = None,
    towers: options.Towers = None,
    depth: options.Depth = None,
    layers: options.Layers = None,
    readout: options.Readout = None,
    virtual_node: options.VirtualNode = None,
    init: options.Init = None,
    edges: options.Edges = None,
    data_seed: options.DataSeed = None,
    patience: options.Patience = None,
    batch_size: options.BatchSize = None,
    shuffle: options.Shuffle = None,
    optimiser: options.Optimiser = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    decay: options.Decay = None,
    plateau: options.Plateau = None,
    min_lr: options.MinLearningRate = None,
    clip: options.Clip = None,
    average: options.Average = None,
    precision: options.Precision = None,
    loss: options.Loss = None,
    weights: options.Weights = None,
    balance: options.Balance = None,
    even: options.Even = None,
    tasks: options.Tasks = None,
    splits: options.Splits = None,
) -> None:
    """Search learning rate, weight decay, width and dropout with Ray Tune."""
    # the first statement, so that the local variables are the options, as Typer converted them
    params = locals().items()
    given = {name: v for name, v in params if v is not None and name not in _SEARCHED}
    from pna.train.loop import Interrupted
    from pna.train.sweep import Space, parse_values
    from pna.train.sweep import sweep as search

    console, aside = make_console(), Console(stderr=True)
    try:
        with errors():
            found = search(
                data,
                out,
                **options.asked(data, given),
                space=Space(*(parse_values(text) for text in (lr, weight_decay, width, dropout))),
                trials=trials,
                seed=seed,
                asha=asha,
                address=address,
                cpus_per_trial=cpus_per_trial,
                gpus_per_trial=gpus_per_trial,
                resume=resume,
                say=lambda held, trial: aside.print(
                    line(held, trial), highlight=False, markup=False, soft_wrap=True
                ),
            )
    except ModuleNotFoundError as error:
        say_error(f"error: {error}")
        raise typer.Exit(1) from error
    except Interrupted as error:
        say_error(f"{error} with --resume")
        raise typer.Exit(130) from None
    if as_json:
        rows = [trial.as_dict() for trial in found.trials]
        best = None if found.best is None else found.best.as_dict()
        print_json({"folder": str(found.folder), "best": best, "trials": rows})
    else:
        console.print(table(found))
        console.print(f"wrote {found.folder}", highlight=False, markup=False, soft_wrap=True)
    if found.best is None:
        say_error(
            "error: no trial has finished with a finite loss; the table says how each ended: lower "
            "--lr or set --clip if losses were not finite, else see error.txt in a trial's folder"
        )
        raise typer.Exit(1)


def line(found: Sweep, trial: Trial) -> str:
    """A trial that has ended, in a line."""
    done = len(found.trials) - len(found.waiting)
    reason = f": {trial.error}" if trial.error else f" with {_number(trial.objective)}"
    best = "" if found.best is None else f", best {_number(found.best.objective)}"
    return f"{done} of {len(found.trials)}: trial {trial.number} {trial.state}{reason}{best}"


def table(found: Sweep) -> Table:
    """All trials, the best first."""
    shown = Table(box=SIMPLE_HEAD)
    for name in ("trial", "lr", "weight decay", "width", "dropout", "loss", "epochs", "s"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("state")
    order = ("finished", "stopped", "failed", "waiting")
    for trial in sorted(
        found.trials,
        key=lambda t: (order.index(t.state), t.objective is None, t.objective or 0.0, t.number),
    ):
        point = trial.point
        shown.add_row(
            str(trial.number),
            f"{point.lr:.2e}",
            f"{point.weight_decay:.2e}",
            str(point.width),
            f"{point.dropout:g}",
            _number(trial.objective),
            str(trial.epochs),
            f"{trial.seconds:.1f}",
            trial.state + (f": {escape(trial.error)}" if trial.error else ""),
            style="bold" if trial == found.best else None,
        )
    return shown


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
