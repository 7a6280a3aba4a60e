"""`pna doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from pna.cli.options import Json
from pna.cli.shared import make_table

if TYPE_CHECKING:
    from pna.doctor import Diagnosis


def doctor(
    as_json: Json = False,
) -> None:
    """Show which backends and optional packages work on this machine, and why others do not."""
    from pna.doctor import diagnose

    report = diagnose()
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        show(report, Console(emoji=False))


def show(report: Diagnosis, console: Console) -> None:
    """Print a report as text and tables."""
    console.print(
        f"[bold]pna {report.pna or '(not installed)'}[/] on Python {report.python}, "
        f"{report.platform}, {report.cpu}, {report.threads} threads"
    )
    for gpu in report.gpus:
        console.print(
            f"{gpu.name}, compute capability {gpu.capability}, {gpu.memory / 2**30:.0f} GiB"
        )
    if not report.gpus:
        console.print(
            "no CUDA device" + (", but MPS: the reference backend runs there" * report.mps)
        )

    backends = make_table(("backend", "runs on", "here"))
    for backend in report.backends:
        here = "[green]yes[/]" if backend.problem is None else f"no: {escape(backend.problem)}"
        if backend.lacks is not None:
            here += f", but {escape(backend.lacks)}"
        backends.add_row(backend.name, backend.hardware, here)
    console.print(backends)

    packages = make_table(("package", "version", "for"))
    for package in report.packages:
        if package.version is None:
            purpose = f"{package.purpose}: {escape(package.install)}"
            packages.add_row(package.name, "[yellow]missing[/]", purpose)
        else:
            packages.add_row(package.name, package.version, package.purpose)
    console.print(packages)
