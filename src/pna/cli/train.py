"""`pna train`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pna.cli import options
from pna.cli.folds import FoldTraining
from pna.cli.progress import print_json, show_epochs, together
from pna.cli.shared import check_device, console_of_notes, errors, print_error, print_line
from pna.cli.show import caption, lines, table
from pna.cli.tables import graphs_of


@options.training_options()
def train(
    data: Path | None = None,
    *,
    out: Path | None = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN")] = None,
    repair_metrics: bool = False,
    folds: int | None = None,
    repeats: int | None = None,
    device: options.Device = "",
    save_every: float = 60.0,
    log_every: options.AtLeast1 = 1,
    quiet: bool = False,
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Train one model, or a population of models, on graphs or on a table of molecules.

    Options that are left out get defaults that suit the graphs. Ctrl-C saves a checkpoint, and the
    run can be resumed.

    Args:
        data: File that pna data wrote, of a graph set or of one graph; or a table of molecules,
            whose graphs are made and kept beside it. With --resume only if the file has moved.
        out: Folder of the run. Default: a new folder in runs/.
        resume: Continue the run in this folder.
        repair_metrics: With --resume: continue with the readable rows of a damaged or missing
            metrics.csv. The damaged file is kept under another name.
        folds: Cross-validation: divide a table of molecules, or a set of graphs without splits,
            into this many folds, and train with each as the test set. At least 2. --split says how.
            Default: one split.
        repeats: With --folds: how often to divide into folds, with other seeds. Default: 1.
            Without: the number of random splits, each with a tenth to test. Default: one split.
        save_every: Seconds between checkpoints.
        log_every: Epochs between rows of metrics.csv.
        quiet: Print only errors and warnings.
        as_json: Print one JSON object per epoch, and one at the end.
    """
    from pna.data.division import FoldOptions
    from pna.train.evaluation import evaluate
    from pna.train.fold_runs import is_folds
    from pna.train.loop import Interrupted
    from pna.train.loop import train as train_run
    from pna.train.tensorboard import events

    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started
    with errors() as console:
        check_device(device)
        if resume is None and repair_metrics:
            raise ValueError("got --repair-metrics without --resume; leave it out")
        how: dict[str, Any] = {
            "device": device or None, "save_every": save_every, "log_every": log_every
        }  # fmt: skip
        divided = {n: v for n, v in {"folds": folds, "repeats": repeats}.items() if v is not None}
        cross_validation = FoldTraining(console, quiet, as_json, how)
        if resume is None and divided:
            return cross_validation.new(data, out, FoldOptions(**divided), given)
        if resume is None:
            arguments = _new_run(console_of_notes(console, quiet, as_json), data, out, given)
            if first and not (quiet or as_json):
                _say_duration(console, arguments, device)
        else:
            given |= divided if out is None else {"out": out, **divided}
            if is_folds(resume):
                given |= {"repair_metrics": True} if repair_metrics else {}
                return cross_validation.resumed(resume, data, given)
            arguments = _resumed_run(resume, data, given)
            arguments["repair_metrics"] = repair_metrics
        folder = arguments["out"]
        try:
            with (
                show_epochs(console, quiet or not first, as_json) as show,
                events(folder) as write,
            ):
                run = train_run(
                    **arguments,
                    **how,
                    report=together(show, write),
                )
        except Interrupted as stopped:
            if first:
                print_error(f"{stopped}: {_launcher()}pna train --resume {folder}")
            raise typer.Exit(130) from None
        if not first:
            return
        summary = run.summary
        assert summary is not None
        if all(summary["broken"]):
            print_error(_broken(folder, summary))
        if quiet:
            return
        found = None
        if summary["epochs"] > 0:  # otherwise there are no weights to evaluate
            split = run.config.data["splits"][1]
            found = evaluate(run, arguments["data"], split, device=device or None)
        if as_json:
            validation = None if found is None else found.as_dict()
            print_json({"run": str(folder), "summary": summary, "validation": validation})
            return
        if found is not None:
            print_line(console, caption(found))
            console.print(table(found))
            for line in lines(found):
                print_line(console, line)
        print_line(console, _ending(folder, summary))


def _launcher() -> str:
    """The torchrun command that started `pna`, if there was one."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "" if count == "1" else f"torchrun --no-python --nproc-per-node {count} "


def _ending(folder: Path, summary: dict[str, Any]) -> str:
    members, broken, epochs = len(summary["broken"]), sum(summary["broken"]), summary["epochs"]
    lost = f", {broken} of {members} members broke" if broken else ""
    never = [str(k) for k, best in enumerate(summary["best"]) if best is None]
    if epochs > 0 and len(never) > broken:
        lost += f", never a finite validation loss: member {', '.join(never)}"
    next_step = f"to test it: pna evaluate {folder}, or with plots: pna report {folder}"
    if epochs == 0:
        next_step = f"to train it: pna train --resume {folder} --epochs 10"
    return (
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'} in {summary['seconds']:.1f} s, "
        f"{summary['parameters']:,} parameters{lost}. The run is in {folder}; {next_step}"
    )


def _broken(folder: Path, summary: dict[str, Any]) -> str:
    """The warning that all members broke; raises if there are no best weights."""
    problem = f"{folder}: the loss of every member is not finite"
    remedy = "lower --lr, or set --clip"
    kept = [
        f"{member} of epoch {epoch}"
        for member, epoch in enumerate(summary["best_epoch"])
        if summary["best"][member] is not None
    ]
    if not kept:
        raise ValueError(f"{problem}; {remedy}")
    return (
        f"warning: {problem} after {summary['epochs']} epochs; the best weights before that are "
        f"kept, of member {', '.join(kept)}; to train for longer, {remedy}"
    )


def _new_run(
    console: Console, data: Path | None, out: Path | None, given: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of `pna.train.train` for a new run."""
    if data is None:
        raise ValueError(
            "got no graph set, expected one: pna train DATA, or pna train --resume RUN"
        )
    graphs = graphs_of(console, data, given)
    arguments = options.training_arguments(graphs, given)  # raises if there is no such file
    name = f"{data.name.partition('.')[0]}-{given.get('model', 'pna')}"
    return arguments | {"data": graphs.resolve(), "out": out or _new_folder(name)}


def _say_duration(console: Console, arguments: dict[str, Any], device: str) -> None:
    """Say how long the training on molecules will likely take on a CPU."""
    from pna.data.graphset import GraphSet
    from pna.data.molecule_features import RECORD
    from pna.train.distributed import device_of
    from pna.train.duration import likely_seconds

    graphs = GraphSet.load(arguments["data"])
    if RECORD not in graphs.metadata or device_of(device or None).type != "cpu":
        return
    others = {name: value for name, value in arguments.items() if name not in ("data", "out")}
    seconds = likely_seconds(graphs, **others)
    if seconds is not None:
        members, epochs = (getattr(arguments["settings"], name) for name in ("members", "epochs"))
        models = "1 model" if members == 1 else f"{members} models together"
        print_line(
            console,
            f"likely {timedelta(seconds=round(seconds))} for {epochs} epochs of {models}; Ctrl-C "
            "saves a checkpoint",
        )


def _resumed_run(folder: Path, data: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `pna.train.train` for a run that knows its settings and its graphs."""
    from pna.train.evaluation import own_path
    from pna.train.run import Run

    epochs = given.pop("epochs", None)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"got {names} with --resume, expected at most --epochs: a run continues with its own "
            "settings; leave them out, or start a new run"
        )
    run = Run(folder)
    path = own_path(run, run.config) if data is None else data
    return {"data": path, "out": run.folder, "resume": True, "epochs": epochs}


def _new_folder(name: str) -> Path:
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
