"""`pna sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli import options
from pna.cli.progress import print_json
from pna.cli.shared import console_of_notes, errors, make_table, print_error, print_line
from pna.cli.tables import graphs_of

if TYPE_CHECKING:
    from pna.train.sweep import Sweep, Trial


#: Options of `pna train` that a sweep searches, or has with another meaning.
_SEARCHED = ("members", "epochs", "lr", "weight_decay", "hidden", "dropout", "seed", "recipe")


@options.training_options(without=_SEARCHED)
def sweep(
    data: Path,
    *,
    out: Path,
    trials: int = 20,
    members: int = 4,
    epochs: int = 1000,
    lr: str = "1e-4..1e-2",
    weight_decay: str = "1e-8..1e-4",
    width: str = "16,32,64",
    dropout: str = "0,0.1,0.3",
    seed: int = 0,
    asha: bool = False,
    address: str = "local",
    cpus_per_trial: int = 1,
    gpus_per_trial: float | None = None,
    resume: bool = False,
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Search learning rate, weight decay, width and dropout with Ray Tune.

    Args:
        data: Graph set: a file that pna data wrote; or a table of molecules, whose graphs are made
            and kept beside it.
        out: Folder of the sweep; a new one unless --resume.
        trials: Number of trials: points of the search space, each trained once.
        members: Number of models per trial, with the seeds 0, 1, 2, …
        epochs: Maximum number of epochs of a trial.
        lr: Learning rates to search: LOW..HIGH, drawn uniformly on a logarithmic scale, or values
            separated by commas.
        weight_decay: Weight decays to search: LOW..HIGH, or values separated by commas.
        width: Numbers of features per node to search, separated by commas.
        dropout: Dropout probabilities to search: LOW..HIGH, or values separated by commas.
        seed: Random seed from which trials are drawn.
        asha: Stop the worse two thirds of the trials early, at 1/27, 1/9 and 1/3 of the epochs
            (ASHA).
        address: Ray cluster. Values: local (this machine), auto, HOST:PORT or ray://HOST:PORT.
        cpus_per_trial: Number of CPU cores per trial.
        gpus_per_trial: Number of GPUs per trial, such as 0.25. Default: 1 if there is a GPU.
        resume: Continue the sweep in the folder.
    """
    from pna.train.loop import Interrupted
    from pna.train.sweep import Space, parse_values
    from pna.train.sweep import sweep as search

    given |= {"members": members, "epochs": epochs}
    stderr = Console(stderr=True, emoji=False)
    try:
        with errors() as console:
            graphs = graphs_of(console_of_notes(console, False, as_json), data, given)
            found = search(
                graphs,
                out,
                **options.training_arguments(graphs, given),
                space=Space(*(parse_values(text) for text in (lr, weight_decay, width, dropout))),
                trials=trials,
                seed=seed,
                asha=asha,
                address=address,
                cpus_per_trial=cpus_per_trial,
                gpus_per_trial=gpus_per_trial,
                resume=resume,
                report=lambda state, trial: print_line(stderr, line(state, trial)),
            )
    except Interrupted as error:
        print_error(f"{error} with --resume")
        raise typer.Exit(130) from None
    if as_json:
        rows = [trial.as_dict() for trial in found.trials]
        best = None if found.best is None else found.best.as_dict()
        print_json({"folder": str(found.folder), "best": best, "trials": rows})
    else:
        console.print(table(found))
        print_line(console, f"wrote {found.folder}")
    if found.best is None:
        print_error(
            "error: no trial finished with a finite loss; the table says how each ended. Lower "
            "--lr or set --clip if losses were not finite; else see error.txt in a trial's folder"
        )
        raise typer.Exit(1)


def line(found: Sweep, trial: Trial) -> str:
    """One line about a trial that has ended."""
    done = len(found.trials) - len(found.waiting)
    reason = f": {trial.error}" if trial.error else f" with {_number(trial.objective)}"
    best = "" if found.best is None else f", best {_number(found.best.objective)}"
    return f"{done} of {len(found.trials)}: trial {trial.number} {trial.state}{reason}{best}"


def table(found: Sweep) -> Table:
    """All trials, the best first."""
    heads = ("trial", "lr", "weight decay", "width", "dropout", "loss", "epochs", "seconds")
    shown = make_table((), heads)
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
