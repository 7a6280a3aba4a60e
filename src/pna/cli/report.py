"""`pna report`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import typer

from pna.cli.options import explained
from pna.cli.shared import check_target, errors, print_line


@explained
def report(results: Path, *, out: Path | None = None, markdown: Path | None = None) -> None:
    """Write one page that compares results with the paper's numbers, and draw the figures.

    Args:
        results: Folder with the results of one or more `pna reproduce`.
        out: HTML file to write. Default: report.html in that folder.
        markdown: Also write the page as Markdown to this file. Default: no Markdown.
    """
    if find_spec("matplotlib") is None:
        typer.echo("matplotlib not found: pip install 'pna[plot]'", err=True)
        raise typer.Exit(1)

    from pna.report.drawings import draw
    from pna.report.experiments import write_markdown, write_page
    from pna.report.read import ExperimentResult, find

    page = out or results / "report.html"
    with errors() as console:
        folders = find(results)
        for target in (page, markdown):
            if target is not None:
                check_target(target, force=True)
        found = [ExperimentResult.read(folder) for folder in folders]
        figures = [path for folder in folders for path in draw(folder)]
        write_page(page, found)
        if markdown is not None:
            write_markdown(markdown, dict(zip(folders, found, strict=True)))
    also = "" if markdown is None else f", as Markdown {markdown}"
    drawn = f"drew {len(figures)} figures beside the scores of {len(folders)} results"
    print_line(console, f"{drawn}; the page is {page}{also}")
