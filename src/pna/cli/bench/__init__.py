"""`pna bench`."""

import typer

from pna.cli.bench.layers import layer, nodes
from pna.cli.bench.parts import generate, kernels, tables
from pna.cli.bench.trainings import example, molecules, real_world, train

app = typer.Typer(help="Measure speed and memory, and compare them with PyG.", no_args_is_help=True)
for command in (
    layer, nodes, molecules, train, real_world, example, tables, generate, kernels
):  # fmt: skip
    app.command()(command)
