"""`pna data`."""

import typer

from pna.cli.data.benchmarks import cifar10, mnist, molhiv, multitask, zinc
from pna.cli.data.encodings import laplacian, walks
from pna.cli.data.own import graph, molecules
from pna.cli.data.stored import describe, verify

app = typer.Typer(
    help="Make, check and describe files to train on: sets of graphs, and one graph whose nodes or "
    "edges are predicted.",
    no_args_is_help=True,
)
for command in (
    multitask, zinc, molhiv, mnist, cifar10, molecules, graph, walks, laplacian, verify, describe
):  # fmt: skip
    app.command()(command)
