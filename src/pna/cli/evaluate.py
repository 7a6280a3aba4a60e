"""`pna evaluate`."""

from __future__ import annotations

from pathlib import Path

from pna.cli import options
from pna.cli.folds import print_scores
from pna.cli.progress import print_json
from pna.cli.shared import (
    check_device,
    errors,
    print_line,
    warn_of_unfinished,
)
from pna.cli.show import caption, class_tables, lines, table


@options.explained
def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    split: str = "test",
    member: int | None = None,
    per_class: bool = False,
    slice_nodes: options.SliceNodes = None,
    device: options.Device = "",
    as_json: options.Json = False,
) -> None:
    """Print metrics of what pna predict writes: the mean prediction of the members of a run.

    Every member has its best weights. Errors are in the units of the targets. Losses are those of
    training, where targets are divided by their scales.

    Args:
        run: Folder of a run, or of a cross-validation, as pna train wrote it. Each fold of a
            cross-validation is evaluated on its own split.
        data: Graph set: a file that pna data wrote. Default: that of the run. For a run of
            results/weights, a missing one is made.
        split: Split to evaluate on, such as train, validation or test; "" means all graphs.
        member: Only this member, counted from 0. Default: the mean prediction of all members.
        per_class: Also print F1, average precision, ROC AUC and accuracy of every class.
    """
    from pna.paper.weights import make_graphs_of
    from pna.train.evaluation import evaluate as evaluate_run
    from pna.train.fold_runs import is_folds
    from pna.train.fold_scores import evaluate_folds

    with errors() as console:
        check_device(device)
        if is_folds(run):
            if per_class or slice_nodes is not None:
                raise ValueError(
                    f"got --per-class or --slice-nodes for {run}, a cross-validation, expected a "
                    f"run; leave it out, or name a fold, such as {run / 'fold-0'}"
                )
            scores = evaluate_folds(run, data, split or None, member, device=device or None)
            print_scores(console, scores, as_json)
            return
        warn_of_unfinished(run)
        if data is None:
            make_graphs_of(run, lambda words: None if as_json else print_line(console, words))
        found = evaluate_run(
            run, data, split or None, member, device=device or None, slice_nodes=slice_nodes,
            per_class=per_class,
        )  # fmt: skip
        if as_json:
            print_json(found.as_dict())
            return
        print_line(console, caption(found))
        console.print(table(found))
        for line in lines(found):
            print_line(console, line)
        for of_task in class_tables(found):
            console.print(of_task)
        if found.benchmark == "multitask" and "log10_of_mean_mse" in found.ensemble:
            value = found.ensemble["log10_of_mean_mse"]
            console.print(f"log10 of the mean MSE: {value:.4g}", highlight=False)
