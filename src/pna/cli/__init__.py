"""The `pna` command. Commands parse options, call the package and print the results."""

from importlib import metadata
from typing import Annotated

import typer

from pna.cli import (
    advise,
    bench,
    data,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    fingerprint,
    predict,
    report,
    reproduce,
    sweep,
    train,
)

app = typer.Typer(no_args_is_help=True, add_completion=False)


def _print_version(value: bool) -> None:
    if not value:
        return
    try:
        typer.echo(f"pna {metadata.version('pna')}")
    except metadata.PackageNotFoundError:
        typer.echo("pna, run from a folder: it is not installed")
    raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Principal Neighbourhood Aggregation for graph neural networks."""


app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(explain.explain)
app.command()(fingerprint.fingerprint)
app.command()(export.export)
app.command()(sweep.sweep)
app.command()(reproduce.reproduce)
app.command()(report.report)
app.command()(advise.advise)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
