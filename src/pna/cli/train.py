"""`pna train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pna.cli import options
from pna.cli.progress import print_json, telling, together
from pna.cli.shared import check_device, errors, make_console, say_error
from pna.cli.show import caption, table


def train(
    data: Annotated[
        Path | None, typer.Argument(help="A graph set; with --resume only if it has moved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; if not said, a new one in runs/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder.")
    ] = None,
    repair_metrics: Annotated[
        bool | None,
        typer.Option(
            "--repair-metrics",
            help="With --resume: go on with the readable rows of a damaged or missing metrics.csv. "
            "The damaged file is kept under another name.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    log_every: Annotated[int, typer.Option(min=1, help="Epochs between rows of metrics.csv.")] = 1,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print errors and warnings alone.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for every epoch, one at the end.")
    ] = False,
    model: options.Model = None,
    architecture: options.Architecture = None,
    hidden: options.Hidden = None,
    towers: options.Towers = None,
    depth: options.Depth = None,
    layers: options.Layers = None,
    dropout: options.Dropout = None,
    readout: options.Readout = None,
    virtual_node: options.VirtualNode = None,
    init: options.Init = None,
    edges: options.Edges = None,
    members: options.Members = None,
    seed: options.Seed = None,
    data_seed: options.DataSeed = None,
    epochs: options.Epochs = None,
    patience: options.Patience = None,
    batch_size: options.BatchSize = None,
    shuffle: options.Shuffle = None,
    optimiser: options.Optimiser = None,
    lr: options.LearningRate = None,
    weight_decay: options.WeightDecay = None,
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
    """Train a model, or a population of them, on a graph set.

    What is not said is chosen to suit the graphs. Ctrl-C saves where it is, to be resumed.
    """
    # the first statement, so that the local variables are the options, as Typer converted them
    given = {name: value for name, value in locals().items() if value is not None}
    from torch import OutOfMemoryError

    from pna.train.evaluation import evaluate
    from pna.train.loop import Interrupted
    from pna.train.loop import train as train_run
    from pna.train.tensorboard import events

    console = make_console()
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started
    with errors():
        check_device(device)
        asked = _asked_anew(given) if resume is None else _asked_again(given)
        folder, graphs = asked["out"], asked["data"]
        try:
            with (
                telling(console, quiet or not first, as_json) as tell,
                events(folder) as write,
            ):
                run = train_run(
                    **asked,
                    device=device or None,
                    save_every=save_every,
                    log_every=log_every,
                    report=together(tell, write),
                )
        except Interrupted as stopped:
            if first:
                say_error(f"{stopped}: {_launcher()}pna train --resume {folder}")
            raise typer.Exit(130) from None
        except OutOfMemoryError as error:
            raise MemoryError(
                f"the GPU is out of memory ({str(error).splitlines()[0]}); take a smaller "
                "--batch-size, fewer --members or --precision bfloat16"
            ) from error
        if not first:
            return
        summary = run.summary
        assert summary is not None
        if all(summary["broken"]):
            say_error(_broken(folder, summary))
        if quiet:
            return
        found = None
        if summary["epochs"] > 0:  # else there are no weights to evaluate
            split = run.config.data["splits"][1]
            found = evaluate(run, graphs, split, device=device or None)
        if as_json:
            validation = None if found is None else found.as_dict()
            print_json({"run": str(folder), "summary": summary, "validation": validation})
            return
        if found is not None:
            console.print(caption(found), highlight=False, markup=False, soft_wrap=True)
            console.print(table(found))
        console.print(_ending(folder, summary), highlight=False, markup=False, soft_wrap=True)


def _launcher() -> str:
    """What `pna` was started by, where that was torchrun."""
    many = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "" if many == "1" else f"torchrun --no-python --nproc-per-node {many} "


def _ending(folder: Path, summary: dict[str, Any]) -> str:
    members, broken, epochs = len(summary["broken"]), sum(summary["broken"]), summary["epochs"]
    lost = f", {broken} of {members} members broke" if broken else ""
    never = [str(k) for k, best in enumerate(summary["best"]) if best is None]
    if epochs > 0 and len(never) > broken:
        lost += f", never a finite loss in validation: member {', '.join(never)}"
    next_step = f"how good it is on other graphs: pna evaluate {folder}"
    if epochs == 0:
        next_step = f"to train it: pna train --resume {folder} --epochs 10, say"
    return (
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'} in {summary['seconds']:.1f} s, "
        f"{summary['parameters']:,} parameters{lost}. The run is in {folder}; {next_step}"
    )


def _broken(folder: Path, summary: dict[str, Any]) -> str:
    """That every member broke, and what is left of them; raises if nothing is."""
    said = f"{folder}: the loss of every member is not finite"
    remedy = "lower --lr, or set --clip"
    kept = [f"{k} of epoch {epoch}" for k, epoch in enumerate(summary["best_epoch"])
            if summary["best"][k] is not None]  # fmt: skip
    if not kept:
        raise ValueError(f"{said}; {remedy}")
    return (
        f"warning: {said} after {summary['epochs']} epochs; kept are the best weights before that, "
        f"of member {', '.join(kept)}; to train for longer, {remedy}"
    )


_WHEN_RESUMED = {
    "data",
    "resume",
    "device",
    "epochs",
    "repair_metrics",
    "save_every",
    "log_every",
    "quiet",
    "as_json",
}


def _asked_anew(given: dict[str, Any]) -> dict[str, Any]:
    """What `pna.train.train` is to be called with."""
    if "data" not in given:
        raise ValueError(
            "got no graph set, expected one: pna train DATA, or pna train --resume RUN"
        )
    if "repair_metrics" in given:
        raise ValueError("got --repair-metrics without --resume, expected both: leave it out")
    path = given["data"]
    name = f"{path.stem}-{given.get('model', 'pna')}"
    asked = options.asked(path, given)  # which says so if there is no such file
    return asked | {"data": path.resolve(), "out": given.get("out") or _new_folder(name)}


def _asked_again(given: dict[str, Any]) -> dict[str, Any]:
    """The same for a run to be resumed, which knows its settings and where its graphs are."""
    from pna.train.evaluation import own_path
    from pna.train.run import Run

    odd = [f"--{name.replace('_', '-')}" for name in given if name not in _WHEN_RESUMED]
    if odd:
        raise ValueError(
            f"got {', '.join(odd)} with --resume, expected at most --epochs: a run goes on as it "
            "was begun; leave them out, or train anew"
        )
    run = Run(given["resume"])
    path = given["data"] if "data" in given else own_path(run, run.config)
    return {
        "data": path,
        "out": run.folder,
        "resume": True,
        "epochs": given.get("epochs"),
        "repair_metrics": given.get("repair_metrics", False),
    }


def _new_folder(name: str) -> Path:
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
