"""`pna report`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import typer

from pna.cli import options
from pna.cli.shared import check_device, check_target, errors, print_line


@options.explained
def report(
    results: Path,
    *,
    out: Path | None = None,
    markdown: Path | None = None,
    summary: Path | None = None,
    data: Path | None = None,
    interval: float | None = None,
    device: options.Device = "",
) -> None:
    """Write one page: the plots and metrics of a run, or results beside the paper's numbers.

    The page of a run has its predictions of the test split, or else of the validation split. It
    may draw ROC curves, which need scikit-learn.

    Args:
        results: Folder of a run, as pna train wrote it; or folder with the results of one or more
            pna reproduce.
        out: HTML file to write. Default: report.html in that folder.
        markdown: With results of pna reproduce: also write the page as Markdown to this file.
            Default: no Markdown.
        summary: With results of pna reproduce: also write the summary of all claims as Markdown to
            this file, the page of PNA at its best to best.md beside it, and a figure to a folder
            figures there. Default: no summary.
        data: With a run: its graph set, if the file has moved. Default: the file that it was
            trained on.
        interval: With a run: draw intervals that cover this share of molecules like those of the
            training set. Default: 0.9, if the run has enough calibration molecules.
    """
    if find_spec("matplotlib") is None:
        typer.echo("matplotlib not found: pip install 'pna[plot]'", err=True)
        raise typer.Exit(1)

    from pna.train.fold_runs import is_folds
    from pna.train.run import Run

    page = out or results / "report.html"
    with errors() as console:
        check_device(device)
        if is_folds(results):
            raise ValueError(
                f"got {results}, a cross-validation, expected a run or results of pna reproduce; "
                f"pass one of its folds, such as {results / 'fold-0'}"
            )
        if Run(results).exists:
            for option, file in (("--markdown", markdown), ("--summary", summary)):
                if file is not None:
                    raise ValueError(
                        f"got {option} for the run {results}, expected it with results of pna "
                        "reproduce; leave it out"
                    )
            from pna.report.run_page import write_page as write_run
            from pna.report.run_results import RunResults

            check_target(page, force=True)
            write_run(page, RunResults.of(results, data, interval, device or None))
            print_line(console, f"wrote {page}")
            return
        if data is not None or interval is not None:
            raise ValueError(
                f"got --data or --interval for {results}, which is not the folder of a run; leave "
                "them out"
            )
        print_line(console, _report_experiments(results, page, markdown, summary))


def _report_experiments(
    results: Path, page: Path, markdown: Path | None, summary: Path | None
) -> str:
    """Write the page of results of `pna reproduce`; returns what was written, in words."""
    from pna.report.drawings import draw
    from pna.report.experiments import write_markdown, write_page
    from pna.report.read import ExperimentResult, find
    from pna.report.summary import write_summary

    folders = find(results)
    for target in (page, markdown, summary):
        if target is not None:
            check_target(target, force=True)
    found = [ExperimentResult.read(folder) for folder in folders]
    figures = [path for folder in folders for path in draw(folder)]
    write_page(page, found)
    if markdown is not None:
        write_markdown(markdown, dict(zip(folders, found, strict=True)))
    also = "" if markdown is None else f", as Markdown {markdown}"
    if summary is not None:
        best = write_summary(summary, results)[1]
        also += f", the summary {summary} and {best}"
    drawn = f"drew {len(figures)} figures beside the scores of {len(folders)} results"
    return f"{drawn}; the page is {page}{also}"
