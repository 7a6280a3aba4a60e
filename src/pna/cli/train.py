"""`pna train`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pna.cli.progress import print_json, telling, together
from pna.cli.shared import check_device, errors, make_console, say_error
from pna.cli.show import caption, table

T = TypeVar("T")


def _model(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Model")


def _training(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Training")


def _targets(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel="Targets")


def train(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="A graph set; with --resume only if it has moved.")
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
        bool, typer.Option("--json", help="Print a JSON object for every epoch, one at the end.")
    ] = False,
    model: Annotated[str | None, _model("Convolution: pna, gin, gat, …")] = None,
    architecture: Annotated[
        str | None,
        _model("recurrent (of the multi-task benchmark), standard, stacked (of others)."),
    ] = None,
    hidden: Annotated[int | None, _model("Features of a node: 16; stacked 64.")] = None,
    towers: Annotated[int | None, _model("Layers side by side: 4; stacked 1.")] = None,
    depth: Annotated[
        str | None, _model("Steps if recurrent: N/2, N, diameter, adaptive, a number, …")
    ] = None,
    layers: Annotated[int | None, _model("Convolutions if not recurrent.")] = None,
    dropout: Annotated[float | None, _model("Share of features that is dropped: 0.")] = None,
    readout: Annotated[str | None, _model("sum, mean or max if not recurrent.")] = None,
    init: Annotated[str | None, _model("How weights begin: default, published.")] = None,
    edges: Annotated[bool | None, _model("Use edge features, if there are any.")] = None,
    members: Annotated[int | None, _training("Models trained at once, each of its seed.")] = None,
    seed: Annotated[int | None, _training("Of the first member; others count on.")] = None,
    data_seed: Annotated[int | None, _training("Of the order of the graphs.")] = None,
    epochs: Annotated[int | None, _training("At most so many: 1000.")] = None,
    patience: Annotated[
        int | None, _training("Epochs a member goes on without getting better: 100; 0: all.")
    ] = None,
    batch_size: Annotated[int | None, _training("Graphs of a step: 128; multi-task 512.")] = None,
    shuffle: Annotated[
        bool | None, _training("Draw another order each epoch; multi-task does not.")
    ] = None,
    optimiser: Annotated[str | None, _training("adam or adamw.")] = None,
    lr: Annotated[
        str | None, _training("Learning rate: 0.001; or one for each member, with commas between.")
    ] = None,
    weight_decay: Annotated[str | None, _training("Likewise: 0.")] = None,
    schedule: Annotated[
        str | None, _training("Of the learning rate: constant, plateau, cosine.")
    ] = None,
    warmup: Annotated[int | None, _training("Epochs in which it grows from 0.")] = None,
    decay: Annotated[float | None, _training("What a plateau multiplies it by: 0.5.")] = None,
    plateau: Annotated[int | None, _training("Epochs of a plateau: 10.")] = None,
    min_lr: Annotated[
        float | None, _training("Where cosine ends; below it a plateau stops a member.")
    ] = None,
    clip: Annotated[float | None, _training("Greatest norm of a member's gradient.")] = None,
    average: Annotated[
        float | None, _training("Validate and keep a moving average of the weights: 0.999, say.")
    ] = None,
    precision: Annotated[str | None, _training("float32, float64, bfloat16.")] = None,
    loss: Annotated[
        str | None, _targets("mse, mae, huber, bce, cross_entropy; or target=bce,… and mse else.")
    ] = None,
    weights: Annotated[str | None, _targets("Of the losses: target=2,… and 1 else.")] = None,
    balance: Annotated[bool | None, _targets("Divide losses by the variance of targets.")] = None,
    tasks: Annotated[str | None, _targets("Which, with commas between; if not said, all.")] = None,
    splits: Annotated[str | None, _targets("To train and to stop by: train,validation.")] = None,
) -> None:
    """Train a model, or a population of them, on a graph set.

    What is not said is chosen to suit the graphs. Ctrl-C saves where it is, to be resumed.
    """
    from torch import OutOfMemoryError

    from pna.train.evaluation import evaluate
    from pna.train.loop import Interrupted
    from pna.train.loop import train as train_run
    from pna.train.tensorboard import events

    console = make_console()
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started
    given = {name: value for name, value in context.params.items() if value is not None}
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
                    report=together(tell, write),
                )
        except Interrupted as stopped:
            say_error(f"{stopped}: pna train --resume {folder}")
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
            raise ValueError(
                f"{folder}: the loss of every member is not finite; lower --lr, or set --clip"
            )
        if quiet:
            return
        split = run.config.data["splits"][1]
        found = evaluate(run, graphs, split, device=device or None)
        if as_json:
            print_json({"run": str(folder), "summary": summary, "validation": found.as_dict()})
            return
        console.print(caption(found), highlight=False, markup=False, soft_wrap=True)
        console.print(table(found))
        console.print(_ending(folder, summary), highlight=False, markup=False, soft_wrap=True)


def _ending(folder: Path, summary: dict[str, Any]) -> str:
    members, broken = len(summary["broken"]), sum(summary["broken"])
    lost = f", {broken} of {members} members broke" if broken else ""
    return (
        f"{summary['epochs']} epochs in {summary['seconds']:.1f} s, {summary['parameters']:,} "
        f"parameters{lost}. The run is in {folder}; how good it is on other graphs: "
        f"pna evaluate {folder}"
    )


_MODEL = ("architecture", "hidden", "towers", "depth", "layers", "dropout", "readout", "init",
          "edges")  # fmt: skip
_WHEN_RESUMED = {"data", "resume", "device", "save_every", "quiet", "as_json"}


def _asked_anew(given: dict[str, Any]) -> dict[str, Any]:
    """What `pna.train.train` is to be called with."""
    from pna.data.graphset import GraphSet
    from pna.train.defaults import model_for, settings_for
    from pna.train.settings import Settings

    if "data" not in given:
        raise ValueError(
            "got no graph set, expected one: pna train DATA, or pna train --resume RUN"
        )
    path = given["data"]
    graphs = GraphSet.load(path)
    convolution = given.get("model", "pna")
    loss = parse_loss(given.get("loss", "mse"))
    model = model_for(graphs, convolution, {k: given[k] for k in _MODEL if k in given}, loss)
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
        "data": path.resolve(),
        "out": given.get("out") or _new_folder(f"{path.stem}-{convolution}"),
        "model": model,
        "settings": settings_for(graphs, chosen),
        "loss": loss,
        "weights": parse_named("weights", given.get("weights", ""), float),
        "tasks": parse_names(given.get("tasks", "")) or None,
        "splits": (splits[0], splits[1]),
    }


def _asked_again(given: dict[str, Any]) -> dict[str, Any]:
    """The same for a run to be resumed, which knows its settings and where its graphs are."""
    from pna.train.evaluation import own_path
    from pna.train.run import Run

    odd = [f"--{name.replace('_', '-')}" for name in given if name not in _WHEN_RESUMED]
    if odd:
        raise ValueError(
            f"got {', '.join(odd)} with --resume, expected none: a run goes on as it was begun; "
            "leave them out, or train anew"
        )
    run = Run(given["resume"])
    path = given["data"] if "data" in given else own_path(run, run.config)
    return {"data": path, "out": run.folder, "resume": True}


def _new_folder(name: str) -> Path:
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


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
