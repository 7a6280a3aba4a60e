"""`pna reproduce`."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from pna.cli.options import AtLeast0, Device, explained, parse_names
from pna.cli.shared import (
    check_device,
    check_folder,
    cores,
    errors,
    make_table,
    print_error,
    print_line,
    progress,
)

if TYPE_CHECKING:
    from pna.paper.experiment import Experiment, Variant
    from pna.paper.reproduce import Options


@explained
def reproduce(
    name: str = "",
    *,
    list_all: Annotated[bool, typer.Option("--list")] = False,
    quick: bool = False,
    protocol: str = "",
    recipe: str = "",
    members: AtLeast0 = 0,
    models: Annotated[str, typer.Option("--models", "--model")] = "",
    edges: bool | None = None,
    resume: bool = False,
    again: bool = False,
    out: Path | None = None,
    runs: Path = Path("runs"),
    weights: Path | None = None,
    device: Device = "",
    workers: AtLeast0 = 0,
) -> None:
    """Run an experiment of the paper and compare the results with the published numbers.

    Rows that are already in the results are shown, not trained; --again trains them anew. Models
    that are already trained are used again. Ctrl-C saves a checkpoint; --resume continues.

    Args:
        name: Name of an experiment, nodes for tolokers and minesweeper, or fresh for fresh-choice
            and fresh-test. Default: list all experiments.
        list_all: List the experiments and what each one shows.
        quick: Few graphs, few epochs and two members: takes minutes.
        protocol: Graphs. Values: paper (as the paper describes them), published (as the authors'
            code makes them), benchmark (real-world data). Default: the experiment's first, see
            --list.
        recipe: Training settings. Values: plain (the paper's); steady (ours: a cosine schedule and
            averaged weights); redrawn (steady with eight draws of the inputs of each graph); tuned
            (redrawn with settings for each model); published (of real-world data); full-batch (of
            the nodes of one graph); candidates (of fresh-choice: tries several); chosen (of
            fresh-test: what these chose).
            Default: the experiment's first, see --list.
        members: Number of runs of each model; 0: as in the paper, or 2 with --quick.
        models: Models: rows of the results table, separated by commas. Default: all.
        edges: Only models with, or without, edge features. Default: all.
        resume: Continue an interrupted experiment.
        again: Train rows that are in the results anew, with the same seeds, and print the new
            scores beside the stored ones. Stored results stay as they are: the new ones go to
            results-again (or OUT-again).
        out: Folder for the results. Default: results, or quick with --quick.
        runs: Folder for graph sets and trained models.
        weights: Folder, such as results/weights: for each of the models whose run is in --runs,
            keep the weights of the member that is best in validation. Default: keep none.
        workers: Number of models trained at the same time; 0: one per CPU core, or 1 on a GPU.
    """
    from pna.cli.theory import COMPUTED, compute
    from pna.names import lookup
    from pna.paper.registry import EXPERIMENTS, GROUPS
    from pna.paper.reproduce import Options, plan
    from pna.paper.reproduce import reproduce as run
    from pna.paper.results import SCORES
    from pna.paper.workers import sigterm_as_ctrl_c
    from pna.train.distributed import device_of

    if name in GROUPS and not list_all:
        failed = []
        for each in GROUPS[name]:
            try:
                reproduce(
                    each, quick=quick, protocol=protocol, recipe=recipe, members=members,
                    models=models, edges=edges, resume=resume, again=again, out=out, runs=runs,
                    weights=weights, device=device, workers=workers,
                )  # fmt: skip
            except typer.Exit as stopped:
                if stopped.exit_code != 1:  # as after Ctrl-C
                    raise
                failed.append(each)
        if failed:
            print_error(f"error: {', '.join(failed)} failed; see above")
            raise typer.Exit(1)
        return
    begin = time.monotonic()
    with errors() as console:
        if list_all or not name:
            console.print(listed())
            return
        if name in COMPUTED:
            if again:
                raise ValueError(
                    f"got --again for {name!r}, which is computed each time, expected an "
                    "experiment that trains models; leave it out"
                )
            folder = (out or Path("results")) / name
            check_folder(folder)
            compute(name, folder, console)
            return
        check_device(device)
        lookup("experiment", name, dict.fromkeys((*EXPERIMENTS, *GROUPS, *COMPUTED)))
        experiment = EXPERIMENTS[name]
        protocol, recipe = protocol or experiment.protocols[0], recipe or experiment.recipes[0]
        base = out or Path("quick" if quick else "results")
        experiment = experiment.prepared(base, protocol)
        folder = stored = base / name / f"{protocol}-{recipe}"
        if again:
            base = base.with_name(f"{base.name}-again")
            folder = base / name / f"{protocol}-{recipe}"
        for path in (folder, runs, *([] if weights is None else [weights])):
            check_folder(path)
        named = parse_names(models)
        chosen = experiment.chosen(named)
        if edges is not None:
            requested, chosen = chosen, of_edges(experiment, chosen, edges)
            left_out = {v.row for v in requested} - {v.row for v in chosen} if named else set()
            if left_out:
                names = ", ".join(sorted(left_out))
                print_line(
                    console, f"left out, as they do not exist {_with(edges)} edge features: {names}"
                )
        if again:
            requested, chosen = chosen, those_stored(stored, chosen)
            if len(chosen) < len(requested):
                names = ", ".join(v.name for v in requested if v not in chosen)
                print_line(console, f"left out, as {stored} has no results of them: {names}")
        on_gpu = device_of(device or None).type == "cuda"
        options = Options(
            protocol=protocol,
            recipe=recipe,
            members=members or (2 if quick else None),
            quick=quick,
            models=chosen,
            device=device or None,
            resume=resume,
            again=base / "runs" if again else None,
        )
        trials = plan(experiment, folder, options)[2]
        together = max(min(workers or (1 if on_gpu else cores()), len(trials)), 1)
        options = replace(options, workers=together, threads=None if together == 1 else 1)
        total = sum(trial.settings.epochs for trial in trials)
        done = {trial.variant.name: 0 for trial in trials}
        if quick:
            print_line(
                console, "quick: few graphs and epochs, to check that it works; not evidence"
            )
        try:
            with sigterm_as_ctrl_c(), progress(console, "epochs") as update:

                def on_epoch(which: str, epoch: int) -> None:
                    done[which] = epoch
                    update(sum(done.values()), total)

                run(experiment, folder, runs, options, on_epoch, partial(print_line, console))
        except KeyboardInterrupt:
            kept = f"; what was finished is in {folder}" if (folder / SCORES).is_file() else ""
            print_error(f"stopped{kept}; to continue, run the same command with --resume")
            raise typer.Exit(130) from None
        if again:
            print_comparison(stored, folder, console)
        else:
            show(folder, console, chosen, redraw=bool(trials))
        if weights is not None:
            keep(experiment, folder, runs, options, weights, console)
    taken = timedelta(seconds=round(time.monotonic() - begin))
    done_now = f"{taken}." if trials else "Nothing was trained: these are stored results."
    print_line(
        console, f"{done_now} Results and figures are in {folder}; one page: pna report {folder}"
    )


def keep(
    experiment: Experiment,
    folder: Path,
    runs: Path,
    options: Options,
    weights: Path,
    console: Console,
) -> None:
    """Keep the weights of the best runs, and list them."""
    from pna.paper.weights import keep_weights
    from pna.report.kept import write_list

    log = partial(print_line, console)
    if keep_weights(experiment, folder, runs, options, weights, log):
        write_list(weights, folder.parent.parent)


def those_stored(folder: Path, chosen: list[Variant]) -> list[Variant]:
    """The chosen populations of which a folder has results."""
    from pna.paper.results import SCORES, load

    stored = load(folder)[0].populations if (folder / SCORES).is_file() else {}
    found = [v for v in chosen if v.name in stored]
    if not found:
        raise ValueError(
            f"got --again for {', '.join(v.name for v in chosen)}, of which {folder} has no "
            "results, expected some to compare with; run it without --again first"
        )
    return found


def print_comparison(stored: Path, new: Path, console: Console) -> None:
    """Print stored results beside new ones."""
    from pna.report.comparison import comparison
    from pna.report.read import ExperimentResult
    from pna.report.tables import print_table

    print_table(console, comparison(*(ExperimentResult.read(folder) for folder in (stored, new))))


def of_edges(experiment: Experiment, chosen: list[Variant], edges: bool) -> list[Variant]:
    """The chosen populations that use edge features, or those that do not."""
    if not any("edges" in variant.arguments for variant in experiment.variants):
        raise ValueError(
            f"got --{'' if edges else 'no-'}edges for {experiment.name!r}, whose graphs have no "
            "edge features; leave it out"
        )
    found = [variant for variant in chosen if variant.arguments.get("edges", True) == edges]
    if not found:
        raise ValueError(
            f"got {', '.join(variant.name for variant in chosen)} "
            f"{_with(edges)} edge features, which do not exist; leave out "
            f"--{'' if edges else 'no-'}edges"
        )
    return found


def _with(edges: bool) -> str:
    return "with" if edges else "without"


def show(folder: Path, console: Console, chosen: list[Variant], redraw: bool) -> None:
    """Print the tables of the chosen populations, verdicts of all, and draw their figures; without
    `redraw` only if there are none, so that stored results stay as they are."""
    from pna.report.read import ExperimentResult
    from pna.report.results import claims, tables
    from pna.report.tables import print_table

    result = ExperimentResult.read(folder)
    for table in (*tables(result.only(chosen)), *claims(result)):
        print_table(console, table)
    left_out = result.scores.populations.keys() - {variant.name for variant in chosen}
    if left_out:
        print_line(console, f"rows not shown: {len(left_out)}; to see all: pna report {folder}")
    if not redraw and any(folder.glob("*.svg")):
        return
    if find_spec("matplotlib") is None:
        console.print("matplotlib not found, so no figures: pip install 'pna\\[plot]'")
        return
    from pna.report.drawings import draw

    draw(folder)


def listed() -> Table:
    """One row per experiment."""
    from pna.cli.theory import COMPUTED
    from pna.paper.registry import EXPERIMENTS, GROUPS

    table = make_table(("name", "what it shows", "models", "protocols", "recipes"))
    for name, experiment in EXPERIMENTS.items():
        choices = (", ".join(experiment.protocols), ", ".join(experiment.recipes))
        table.add_row(name, experiment.title, str(len(experiment.variants)), *choices)
    for name, several in GROUPS.items():
        table.add_row(name, f"{', then '.join(several)}", "", "", "")
    for name, (title, _) in COMPUTED.items():
        table.add_row(name, title, "", "", "")
    return table
