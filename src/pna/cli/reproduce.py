"""`pna reproduce`."""

from __future__ import annotations

import time
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pna.cli.shared import (
    check_device,
    check_folder,
    cores,
    errors,
    make_console,
    progress,
    say_error,
)

if TYPE_CHECKING:
    from pna.paper.experiment import Experiment, Variant


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment; --list names them.")] = "",
    list_all: Annotated[
        bool, typer.Option("--list", help="Name the experiments, and what each asks.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few graphs, few epochs, two members: minutes.")
    ] = False,
    protocol: Annotated[
        str,
        typer.Option(help="Synthetic graphs as in the paper, or published: as in its code."),
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            help="Synthetic training: redrawn, tuned or steady, ours; plain: the paper's."
        ),
    ] = "",
    members: Annotated[
        int, typer.Option(min=0, help="Runs of each model; 0: as in the paper, or two if quick.")
    ] = 0,
    models: Annotated[
        str,
        typer.Option("--models", "--model", help="Some rows alone, commas between; empty: all."),
    ] = "",
    edges: Annotated[
        bool | None,
        typer.Option("--edges/--no-edges", help="Rows with or without edge features alone."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what was interrupted.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; results/, or quick/ if quick.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of graphs and trained models.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    workers: Annotated[
        int, typer.Option(min=0, help="Models trained at a time; 0: as many as there are cores.")
    ] = 0,
) -> None:
    """Run an experiment of the paper: train, test, and show it beside the published numbers.

    Models that are trained already are used again, and rows that the results have already are
    not run again. Ctrl-C saves where each is, to be resumed.
    """
    from pna.cli.theory import COMPUTED, compute
    from pna.names import lookup
    from pna.paper.registry import EXPERIMENTS
    from pna.paper.reproduce import reproduce as run
    from pna.paper.results import SCORES

    console = make_console()
    if list_all or not name:
        console.print(listed())
        return
    if name in COMPUTED:
        with errors():
            folder = (out or Path("results")) / name
            check_folder(folder)
            compute(name, folder, console)
        return
    begin = time.monotonic()
    with errors():
        check_device(device)
        lookup("experiment", name, dict.fromkeys((*EXPERIMENTS, *COMPUTED)))
        experiment = EXPERIMENTS[name]
        protocol, recipe = protocol or experiment.protocols[0], recipe or experiment.recipes[0]
        folder = (out or Path("quick" if quick else "results")) / name / f"{protocol}-{recipe}"
        for place in (folder, runs):
            check_folder(place)
        named = [model.strip() for model in models.split(",") if model.strip()]
        chosen = experiment.chosen(named)
        if edges is not None:
            asked, chosen = chosen, of_edges(experiment, chosen, edges)
            left_out = {v.row for v in asked} - {v.row for v in chosen} if named else set()
            if left_out:
                console.print(f"left out, as they are not there {_with(edges)} edge features: "
                              f"{', '.join(sorted(left_out))}", highlight=False)  # fmt: skip
        count = members or (2 if quick else experiment.members)
        trials = experiment.trials(protocol, recipe, count, quick, chosen)
        together = min(workers or _at_a_time(device), len(trials))
        total = sum(trial.settings.epochs for trial in trials)
        done = {trial.variant.name: 0 for trial in trials}
        if quick:
            console.print("quick: few graphs and epochs, to see that it works; not evidence")
        try:
            with progress(console, "epochs") as tell:

                def told(which: str, epoch: int) -> None:
                    done[which] = epoch
                    tell(sum(done.values()), total)

                run(
                    experiment,
                    folder,
                    runs,
                    protocol=protocol,
                    recipe=recipe,
                    members=count,
                    quick=quick,
                    models=chosen,
                    device=device or None,
                    workers=together,
                    threads=None if together == 1 else 1,
                    resume=resume,
                    told=told,
                    said=lambda words: console.print(words, highlight=False, markup=False),
                )
        except KeyboardInterrupt:
            kept = f"; what was finished is in {folder}" if (folder / SCORES).is_file() else ""
            say_error(
                f"stopped{kept}; to go on: pna reproduce {name} --resume, and the same options"
            )
            raise typer.Exit(130) from None
        show(folder, console)
    taken = timedelta(seconds=round(time.monotonic() - begin))
    console.print(f"{taken}. Numbers and figures are in {folder}; as one page: pna report {folder}",
                  highlight=False, markup=False)  # fmt: skip


def of_edges(experiment: Experiment, chosen: list[Variant], edges: bool) -> list[Variant]:
    """Of the populations chosen those that see edge features, or those that do not."""
    if not any("edges" in variant.arguments for variant in experiment.variants):
        raise ValueError(
            f"got --{'' if edges else 'no-'}edges for {experiment.name!r}, whose graphs have no "
            "edge features; leave it out"
        )
    found = [variant for variant in chosen if variant.arguments.get("edges", True) == edges]
    if not found:
        raise ValueError(
            f"got {', '.join(variant.name for variant in chosen)} "
            f"{_with(edges)} edge features, of which there are none; leave out "
            f"--{'' if edges else 'no-'}edges"
        )
    return found


def _with(edges: bool) -> str:
    return "with" if edges else "without"


def show(folder: Path, console: Console) -> None:
    """Print the tables and verdicts of results, and draw their figures beside them."""
    from pna.report.read import Result
    from pna.report.results import claims, tables
    from pna.report.tables import print_table

    result = Result.read(folder)
    for table in (*tables(result), *claims(result)):
        print_table(console, table)
    if find_spec("matplotlib") is None:
        console.print("matplotlib not found, so no figures: pip install 'pna\\[plot]'")
        return
    from pna.report.drawings import draw

    draw(folder)


def listed() -> Table:
    """Every experiment in a row."""
    from pna.cli.theory import COMPUTED
    from pna.paper.registry import EXPERIMENTS

    table = Table(box=SIMPLE_HEAD)
    for head in ("name", "what it shows", "models", "protocols"):
        table.add_column(head)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.title, str(len(experiment.variants)),
                      ", ".join(experiment.protocols))  # fmt: skip
    for name, (title, _) in COMPUTED.items():
        table.add_row(name, title, "", "")
    return table


def _at_a_time(device: str) -> int:
    """On a CPU one for each core; a GPU has enough to do with one."""
    import torch

    on_gpu = device.startswith("cuda") or (not device and torch.cuda.is_available())
    return 1 if on_gpu else cores()
