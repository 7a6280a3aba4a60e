"""Cross-validation in `pna train` and `pna evaluate`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli import options
from pna.cli.progress import print_json, show_epochs, together
from pna.cli.shared import console_of_notes, make_table, print_error, print_line
from pna.cli.show import form_of, metrics_of, spread, units_of
from pna.cli.tables import graphs_of

if TYPE_CHECKING:
    from pna.data.division import FoldOptions
    from pna.data.graphset import GraphSet
    from pna.train.fold_runs import FoldRuns
    from pna.train.fold_scores import FoldScores
    from pna.train.folds import FoldPlan
    from pna.train.loop import Callback
    from pna.train.run import Run

_MOST = 3  # metrics of a table, which must fit into 80 columns


@dataclass(frozen=True)
class FoldTraining:
    """`pna train` with folds: how it prints, and arguments of `pna.train.train`."""

    console: Console
    quiet: bool
    as_json: bool
    how: dict[str, Any]

    def new(
        self, data: Path | None, out: Path | None, wanted: FoldOptions, given: dict[str, Any]
    ) -> None:
        """Train the folds of a table or of a set of graphs. The same call again continues."""
        from pna.data.graphset import GraphSet
        from pna.train.folds import planned
        from pna.train.run import Run

        _check_one_process()
        if data is None:
            raise ValueError(
                "got --folds or --repeats without data, expected a table of molecules: pna train "
                "TABLE --folds 5"
            )
        shown = console_of_notes(self.console, self.quiet, self.as_json)
        path = _folded(shown, data, wanted, given).resolve()
        arguments = options.training_arguments(path, given)
        graphs = GraphSet.load(path)
        plan = planned(graphs, path, **arguments)
        name = f"{data.name.partition('.')[0]}-{given.get('model', 'pna')}-folds"
        folder = out or _folder_of(plan, name)
        with Run(folder).alone():
            self._train(plan.start(folder), graphs)

    def resumed(self, folder: Path, data: Path | None, given: dict[str, Any]) -> None:
        """Continue the cross-validation in a folder with its own settings."""
        from pna.data.graphset import GraphSet
        from pna.train.evaluation import own_path
        from pna.train.fold_runs import FoldRuns
        from pna.train.run import Run

        _check_one_process()
        found, epochs = FoldRuns.load(folder), given.pop("epochs", None)
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(
                f"got {names} with --resume of {folder}, a cross-validation, expected at most "
                f"--epochs; leave them out, or name one fold, such as {found.runs[0].folder}"
            )
        first = found.runs[0]
        if not all(run.exists for run in found.runs):
            raise ValueError(
                f"got {folder}, which was stopped before all of its folds were written, expected "
                "them; give the command that started it again, instead of --resume"
            )
        path = own_path(first, first.config) if data is None else data
        with Run(folder).alone():
            self._train(found, GraphSet.load(path), epochs)

    def _train(self, found: FoldRuns, graphs: GraphSet, epochs: int | None = None) -> None:
        from pna.train.fold_scores import TABLE, evaluate_folds
        from pna.train.folds import train_folds
        from pna.train.loop import Interrupted

        shown = not (self.quiet or self.as_json)
        done = sum(run.summary is not None for run in found.runs)
        if done and shown:
            print_line(self.console, f"{done} of {len(found.runs)} folds are trained already")

        @contextmanager
        def around(number: int, run: Run) -> Iterator[Callback]:
            from pna.train.tensorboard import events

            fold = found.folds[number]
            if shown:
                parts = f"{fold.train:,} train, {fold.validation:,} validation, {fold.test:,} test"
                count = f"fold {number + 1} of {len(found.runs)}"
                print_line(self.console, f"{count}, in {run.folder}: {parts}")
            elif self.as_json and not self.quiet:
                print_json({"run": str(run.folder), "repeat": fold.repeat, "fold": fold.fold})
            with (
                show_epochs(self.console, self.quiet, self.as_json) as show,
                events(run.folder) as write,
            ):
                yield together(show, write)

        try:
            train_folds(found, graphs, around, epochs, **self.how)
        except Interrupted as stopped:
            print_error(
                f"{stopped}; all folds: the same command, or pna train --resume {found.folder}"
            )
            raise typer.Exit(130) from None
        scores = evaluate_folds(found.folder, graphs, device=self.how["device"])
        scores.save()
        if self.quiet:
            return
        print_scores(self.console, scores, self.as_json)
        if shown:
            print_line(
                self.console,
                f"The runs are in {found.folder}, and the table in {found.folder / TABLE}; to "
                f"predict with all of them: pna predict {found.folder} TABLE",
            )


def print_scores(console: Console, scores: FoldScores, as_json: bool) -> None:
    """Print the metrics of every fold, and their means and deviations."""
    if as_json:
        print_json(scores.as_dict())
        return
    first = scores.evaluations[0]
    who = f"mean prediction of {len(first.members)} members of each fold"
    if len(first.members) == 1:
        who = "one member of each fold"
    of_fold = "average over the targets; " if len(scores.targets) > 1 else ""
    last = f"; {of_fold}then mean ± standard deviation over the folds"
    units = units_of(metrics_of(first))
    print_line(console, f"{first.split or 'all graphs'}, {who}{last}{units}:")
    console.print(fold_table(scores))


def fold_table(scores: FoldScores) -> Table:
    """A row for each fold, with averages over the targets; then the means and deviations."""
    from pna.train.metrics import METRICS  # imports torch

    names, last = metrics_of(scores.evaluations[0])[:_MOST], scores.targets[-1]
    shown = make_table(("fold",), ("graphs", *(METRICS[name].title for name in names)))
    values, repeated = scores.values(last), scores.folds[-1].repeat > 0
    for k, fold in enumerate(scores.folds):
        label = f"repeat {fold.repeat}, {fold.fold}" if repeated else str(fold.fold)
        numbers = [f"{values[n][k]:{form_of(n)}}" if n in values else "" for n in names]
        end = k + 1 == len(scores.folds)
        graphs = f"{scores.evaluations[k].graphs:,}"
        shown.add_row(label, graphs, *numbers, end_section=end)
    for target in scores.targets:
        means = scores.means(target)
        cells = [spread(*means[name], form_of(name)) if name in means else "" for name in names]
        label = escape(target) if len(scores.targets) > 1 else "mean ± std"
        shown.add_row(label, "", *cells, style="bold" if target == last else "")
    return shown


def _check_one_process() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(
            "got --folds or --repeats in several processes, expected one; start it without torchrun"
        )


def _folder_of(plan: FoldPlan, name: str) -> Path:
    """The folder in runs/ with the same cross-validation, or a new one."""
    from pna.train.fold_runs import is_folds

    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        if is_folds(path) and not plan.differences(path):
            return path
        number += 1
    return path


def _folded(console: Console, data: Path, wanted: FoldOptions, given: dict[str, Any]) -> Path:
    """The file of the graphs with their folds. Its options are taken out of `given`."""
    from pna.data.kept_graphs import kept_folds
    from pna.data.molecule_table import RANDOM
    from pna.data.node_graph import KIND
    from pna.data.table import is_table
    from pna.data.tensor_file import kind_of
    from pna.files import check_readable

    if "mask_column" in given:
        raise ValueError(
            "got --mask-column with --folds or --repeats, which make the splits; leave it out"
        )
    if is_table(data):
        return graphs_of(console, data, given, wanted)
    check_readable(data)
    if kind_of(data) == KIND:
        raise ValueError(
            f"got {data}, one graph, with --folds or --repeats, expected a table of molecules or a "
            "set of graphs; give the graph several splits instead, and train with --mask-column all"
        )
    if (split := given.pop("split", RANDOM)) != RANDOM:
        raise ValueError(
            f"got --split {split} for {data}, a set of graphs, expected {RANDOM}; leave it out, or "
            "pass the table of the molecules"
        )
    seed = given.pop("split_seed", 0)
    return kept_folds(graphs_of(console, data, given), wanted, seed)
