"""`pna data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli.shared import (
    check_target,
    errors,
    make_console,
    needing_packages,
    progress,
    say_error,
)
from pna.files import check_readable

if TYPE_CHECKING:
    from pna.data.describe import Description
    from pna.data.download import Progress
    from pna.data.graphset import GraphSet

    Public = tuple[str, Callable[[Progress], object]]  # what to count, and fetching it

app = typer.Typer(help="Make graph sets, and look at them.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="File to write, such as graphs.safetensors.")]
From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="PNA_DATA",
        metavar="FOLDER",
        help="The data folder, its address (https://…), or public: from what is published.",
    ),
]
Workers = Annotated[int, typer.Option(help="Processes to share the work.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


@app.command()
def multitask(
    out: Out,
    seed: Annotated[int, typer.Option(help="Another seed, another set.")] = 0,
    protocol: Annotated[
        str, typer.Option(help="paper, or published: as the authors' code had it.")
    ] = "paper",
    extrapolation: Annotated[
        bool, typer.Option("--extrapolation", help="Test on sizes of up to 99.")
    ] = False,
    types: Annotated[
        bool, typer.Option("--types", help="A test of each type of graph as well.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="Nodes of a graph, both ends included.")] = "15-24",
    tasks: Annotated[
        str, typer.Option(help="Targets, with commas between; empty: the six of the paper.")
    ] = "",
    mixture: Annotated[
        str, typer.Option(help="Other shares of types, such as star=1,line=3; empty: the paper's.")
    ] = "",
    draws: Annotated[
        int, typer.Option(min=1, help="How often a training graph comes, its inputs drawn anew.")
    ] = 1,
    workers: Workers = 1,
    force: Force = False,
) -> None:
    """Make the multi-task benchmark: random graphs of ten types, and what to predict of them."""
    from pna.data.multitask import multitask as make
    from pna.data.multitask.labels import SIX

    console = make_console()
    with errors():
        check_target(out, force)
        chosen = [name.strip() for name in tasks.split(",") if name.strip()] or list(SIX)
        span, shares = parse_sizes(sizes), parse_mixture(mixture)
        with progress(console, "graphs") as told:
            graphs = make(
                seed,
                protocol,
                extrapolation=extrapolation,
                types=types,
                sizes=span,
                tasks=chosen,
                mixture=shares,
                draws=draws,
                workers=workers,
                progress=told,
            )
        graphs.save(out, force=force)
    say_written(console, out, graphs)


@app.command()
def zinc(out: Out, where: From = "", force: Force = False) -> None:
    """Make ZINC-12k: molecules, and their penalised logP to predict.

    With --from public out of all of ZINC, some 180 MB.
    """
    from pna.data.zinc import published
    from pna.data.zinc import zinc as make

    public = ("bytes", published)
    make_benchmark("zinc", out, where, force, lambda told: make(where), public)


@app.command()
def molhiv(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    r"""Make ogbg-molhiv: molecules, and whether they inhibit HIV to predict. Needs pna\[chem].

    With --from public from MoleculeNet's table.
    """
    from pna.data.molecules import check_chemistry
    from pna.data.molhiv import molhiv as make
    from pna.data.molhiv import published

    made = partial(make, where, workers=workers)
    public = ("molecules to split", published)
    make_benchmark(
        "molhiv", out, where, force, lambda told: made(progress=told), public, check_chemistry
    )


@app.command()
def mnist(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    """Make MNIST as superpixels: digits to tell apart. With --from public from the images."""
    from pna.data.superpixels import mnist as make

    made = partial(make, where, workers=workers)
    make_benchmark("mnist", out, where, force, lambda told: made(progress=told), of_images("mnist"))


@app.command()
def cifar10(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    """Make CIFAR10 as superpixels: ten classes of photographs. With --from public from them."""
    from pna.data.superpixels import cifar10 as make

    made = partial(make, where, workers=workers)
    public = of_images("cifar10")
    make_benchmark("cifar10", out, where, force, lambda told: made(progress=told), public)


def of_images(name: str) -> Public:
    """Their files fetched into the cache."""
    from pna.data.slic import check_images
    from pna.data.sources import PUBLIC, fetch_all

    def fetch(told: Progress) -> None:
        check_images()
        fetch_all(PUBLIC[name].files, PUBLIC[name].address, told)

    return "bytes", fetch


def make_benchmark(
    name: str,
    out: Path,
    where: str,
    force: bool,
    make: Callable[[Progress], GraphSet],
    public: Public,
    check: Callable[[], None] | None = None,
) -> None:
    """Fetch what it is made of, make it, write it, and say whom it is owed to.

    `public` is how, where it is asked for what is published; what `check` says of packages that
    are missing is said before anything is fetched.
    """
    from pna.data.sources import FROM_PUBLIC, SOURCES, fetch_all, is_address

    console = make_console()
    with errors():
        check_target(out, force)
        with needing_packages():
            if check is not None:
                check()
            if is_address(where):
                with progress(console, "bytes") as told:
                    fetch_all(SOURCES[name].files, where, told)
            elif where == FROM_PUBLIC:
                what, fetch = public
                with progress(console, what) as told:
                    fetch(told)
            with progress(console, "graphs") as told:
                graphs = make(told)
        graphs.save(out, force=force)
    say_written(console, out, graphs)
    source = SOURCES[name]
    for words in (f"licence: {source.licence}", f"cite: {source.citation}"):
        console.print(words, highlight=False, markup=False, soft_wrap=True)


def say_written(console: Console, out: Path, graphs: GraphSet) -> None:
    megabytes = out.stat().st_size / 1e6
    words = f"wrote {out}: {len(graphs):,} graphs, {megabytes:.1f} MB"
    console.print(words, highlight=False, markup=False, soft_wrap=True)


@app.command()
def molecules(
    table: Annotated[Path, typer.Argument(help="CSV, one molecule a row.")],
    out: Out,
    targets: Annotated[
        str, typer.Option(help="Columns to predict, commas between; empty: none.")
    ] = "",
    smiles: Annotated[
        str, typer.Option(help="The column of SMILES; empty: found by its name.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            help="scaffold, random, or a column that says train, validation or test; empty: "
            "scaffold, if there are targets."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of a random split.")] = 0,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out molecules that cannot be read.")
    ] = False,
    workers: Workers = 1,
    force: Force = False,
) -> None:
    r"""Make graphs of your own molecules, and of what was measured of them. Needs pna\[chem].

    Cells may be empty where nothing was measured. What is 0 or 1 is trained as a probability.
    """
    from pna.data.molecule_table import from_table
    from pna.data.molecules import check_chemistry
    from pna.data.table import Table as Written

    console = make_console()
    with errors():
        check_target(out, force)
        with needing_packages():
            check_chemistry()
        held = Written.read(table)
        whole = [targets] if targets in held.columns else targets.split(",")  # names have commas
        named = [name.strip() for name in whole if name.strip()]
        with progress(console, "molecules") as told:
            graphs = from_table(
                held, named, smiles=smiles, split=split, seed=seed, skip=skip, workers=workers,
                progress=told,
            )  # fmt: skip
        graphs.save(out, force=force)
    say_written(console, out, graphs)
    for words in facts_of(graphs):
        console.print(words, highlight=False, markup=False, soft_wrap=True)


def facts_of(graphs: GraphSet) -> Iterator[str]:
    """How molecules are divided, and what is to be predicted of them."""
    if graphs.splits:
        yield ", ".join(f"{len(graphs.split(name)):,} {name}" for name in graphs.splits)
    losses = graphs.metadata.get("losses", {})
    for column, name in enumerate(graphs.graph_targets):
        assert graphs.y_graph is not None
        known = int((~graphs.y_graph[:, column].isnan()).sum())
        kind = ", 0 or 1" if name in losses else ""
        yield f"to predict: {name}{kind}, known of {known:,}"
    if not graphs.graph_targets:
        yield "nothing to train: no columns to predict were named (--targets)"


@app.command()
def walks(
    file: Annotated[Path, typer.Argument(help="A graph set.")],
    out: Out,
    steps: Annotated[
        int, typer.Option(min=0, help="How likely a walk is to be back by then.")
    ] = 16,
    edge_steps: Annotated[
        int, typer.Option(min=0, help="Of edges: to be at the other end by then.")
    ] = 0,
    force: Force = False,
) -> None:
    """Add features of random walks to a graph set: in which rings a node is, and an edge."""
    from pna.data.graphset import GraphSet
    from pna.data.walks import with_walks

    console = make_console()
    with errors():
        check_target(out, force)
        graphs = with_walks(GraphSet.load(file), steps, edge_steps)
        graphs.save(out, force=force)
    say_written(console, out, graphs)


@app.command()
def verify(file: Annotated[Path, typer.Argument(help="A graph set.")]) -> None:
    """Compare the contents of a graph set with its checksum.

    Exit status: 0 if they agree, 1 if the file is damaged, 2 if it has no checksum.
    """
    from pna.data.graphset import GraphSet
    from pna.data.tensor_file import IN_MEMORY

    console = make_console()
    with errors():
        check_readable(file)
        large = file.stat().st_size > IN_MEMORY
        with progress(console, "bytes") if large else nullcontext() as told:
            has_checksum = GraphSet.verify(file, told)
        if not has_checksum:
            GraphSet.load(file)  # what can be seen without one
    if not has_checksum:
        say_error(
            f"{file} has no checksum, as an older version of pna wrote it; to add one, save it "
            "again: pna.GraphSet.load(file).save(file, force=True)"
        )
        raise typer.Exit(2)
    console.print(f"{file}: its contents agree with its checksum", highlight=False, markup=False)


@app.command()
def describe(
    file: Annotated[Path, typer.Argument(help="A graph set.")],
    figure: Annotated[
        Path | None, typer.Option(help="Where the figure goes; beside the file if not said.")
    ] = None,
) -> None:
    """Print and plot sizes, degrees, types and targets, and what predicting the mean would give."""
    from pna.data.describe import describe as figures_of
    from pna.data.graphset import GraphSet

    console = make_console()
    with errors():
        graphs = GraphSet.load(file)
        found = figures_of(graphs)
        for table in tables(found):
            console.print(table)
        if find_spec("matplotlib") is None:
            console.print("matplotlib not found, so no figure: pip install 'pna\\[plot]'")
            return
        from pna.report.describe import draw_description
        from pna.report.figures import save_svg

        path = figure or file.with_suffix(".svg")
        if path.suffix != ".svg":
            raise ValueError(f"got a figure {path}, expected a name that ends in .svg")
        try:
            save_svg(draw_description(graphs, file.name), path)
        except OSError as error:
            raise OSError(f"{error}; --figure says where the figure goes") from error
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def tables(found: Description) -> Iterator[Table]:
    """Facts, splits, types and targets."""
    if found.metadata:
        facts = Table(box=None, show_header=False)
        for name, value in found.metadata.items():
            facts.add_row(escape(name), escape(str(value)))
        yield facts
    splits = Table(box=SIMPLE_HEAD)
    for name in ("split", "graphs", "nodes of a graph", "nodes", "edges", "mean degree", "δ"):
        splits.add_column(name, justify="left" if name == "split" else "right")
    for split in found.splits:
        low, high = split.sizes
        counts = (f"{split.graphs:,}", f"{low}-{high}", f"{split.nodes:,}", f"{split.edges:,}")
        means = (f"{split.mean_degree:.3f}", f"{split.mean_log_degree:.4f}")
        splits.add_row(escape(split.name), *counts, *means)
    yield splits
    if any(split.types for split in found.splits):
        types = Table(box=SIMPLE_HEAD)
        types.add_column("type, % of graphs")
        for split in found.splits:
            types.add_column(escape(split.name), justify="right")
        for kind in dict.fromkeys(kind for split in found.splits for kind in split.types):
            shares = [100 * split.types.get(kind, 0) / split.graphs for split in found.splits]
            types.add_row(escape(kind), *[f"{share:.1f}" if share else "" for share in shares])
        yield types
    targets = Table(box=SIMPLE_HEAD)
    names = [split.name for split in found.splits]
    for name in ("target", "of", "least", "mean", "greatest", "missing", "scale"):
        targets.add_column(name, justify="left" if name in ("target", "of") else "right")
    for name in names:
        targets.add_column(f"log10 MSE of the mean, {escape(name)}", justify="right")
    for target in found.targets:
        values = [f"{v:.4g}" for v in (target.least, target.mean, target.greatest)]
        errors = [f"{target.baseline[name]:.2f}" for name in names]
        row = (
            escape(target.name),
            target.level,
            *values,
            f"{target.missing:,}",
            f"{target.scale:.4g}",
        )
        targets.add_row(*row, *errors)
    if found.targets:
        averages = [
            f"{sum(target.baseline[name] for target in found.targets) / len(found.targets):.2f}"
            for name in names
        ]
        targets.add_row("average", *[""] * 6, *averages, style="bold")
        yield targets
    if any(target.counts for target in found.targets):
        yield _shares(found)


def _shares(found: Description) -> Table:
    """How often each value comes, of targets that may be classes."""
    shares = Table(box=SIMPLE_HEAD)
    shares.add_column("target, % of values")
    for name in ("", *(escape(split.name) for split in found.splits)):
        shares.add_column(name, justify="right")
    for target in found.targets:
        for value, counts in enumerate(zip(*target.counts.values(), strict=True)):
            totals = [max(sum(of), 1) for of in target.counts.values()]
            told = [f"{100 * c / n:.1f}" for c, n in zip(counts, totals, strict=True)]
            shares.add_row(escape(target.name) if value == 0 else "", str(value), *told)
    return shares


def parse_sizes(text: str) -> list[int]:
    """ "15-24" or "15,17,20-22": whole numbers, both ends of a span included."""
    sizes: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"got sizes {text!r}, expected spans such as 15-24 or 15,17,20-22")
        span = range(int(first), int(last or first) + 1)
        if len(span) == 0:
            raise ValueError(f"got sizes {part.strip()!r}, expected the smaller one first")
        sizes += span
    return sizes


def parse_mixture(text: str) -> dict[str, int] | None:
    """ "star=1,line=3"; None of nothing."""
    shares: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = part.partition("=")
        if name.strip() in shares:
            raise ValueError(f"got {name.strip()} more than once in the mixture, expected it once")
        if not share.strip().isdecimal():
            raise ValueError(f"got {part!r} in the mixture, expected a share such as star=1")
        shares[name.strip()] = int(share)
    return shares or None
