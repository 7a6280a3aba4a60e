"""`pna report`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pna.cli.shared import check_target, errors, make_console


def report(
    results: Annotated[
        Path, typer.Argument(help="Results of pna reproduce: a folder of one, or of several.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; if not said, report.html among the results.")
    ] = None,
) -> None:
    """Show results beside the paper's numbers: one page, and figures beside the scores."""
    if find_spec("matplotlib") is None:
        typer.echo("matplotlib not found: pip install 'pna[plot]'", err=True)
        raise typer.Exit(1)

    from pna.report.drawings import draw
    from pna.report.experiments import write_page
    from pna.report.read import Result, find

    console = make_console()
    page = out or results / "report.html"
    with errors():
        folders = find(results)
        check_target(page, force=True)
        found = [Result.read(folder) for folder in folders]
        figures = [path for folder in folders for path in draw(folder)]
        write_page(page, found)
    console.print(f"drew {len(figures)} figures beside the scores of {len(folders)} results; the "
                  f"page is {page}", highlight=False, markup=False, soft_wrap=True)  # fmt: skip
