"""The `pna` command: parses, calls the package, prints. Imports happen inside each command."""

import typer

from pna.cli import (
    advise,
    bench,
    data,
    demo,
    doctor,
    evaluate,
    report,
    reproduce,
    sweep,
    train,
)

app = typer.Typer(
    help="Principal Neighbourhood Aggregation for graph neural networks.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(evaluate.predict)
app.command()(sweep.sweep)
app.command()(reproduce.reproduce)
app.command()(report.report)
app.command()(advise.advise)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
