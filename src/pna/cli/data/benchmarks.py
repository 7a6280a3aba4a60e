"""`pna data multitask`, and the data of the paper's other benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pna.cli.data.shared import Out, Workers, save
from pna.cli.options import AtLeast1, Force, explained, parse_names
from pna.cli.shared import check_target, errors, print_line, progress

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet
    from pna.data.progress import Progress

From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="PNA_DATA",
        metavar="FOLDER",
        help="Data folder, its address (https://…), or `public`: download the published data. "
        "Default: the environment variable PNA_DATA.",
    ),
]


@explained
def multitask(
    *,
    out: Out,
    seed: int = 0,
    protocol: str = "paper",
    extrapolation: bool = False,
    types: bool = False,
    sizes: str = "15-24",
    tasks: str = "",
    mixture: str = "",
    draws: AtLeast1 = 1,
    workers: Workers = 1,
    force: Force = False,
) -> None:
    """Make the multi-task benchmark: random graphs of ten types, with six targets.

    Args:
        seed: Random seed of the graphs.
        protocol: How graphs are made. Values: paper (as the paper describes them), published (as
            the authors' code makes them).
        extrapolation: Validate on 25 to 29 nodes, and test on 20 to 99.
        types: Add a test split for each type of graph.
        sizes: Numbers of nodes, such as 15-24 or 15,17,20-22; ends included.
        tasks: Targets, separated by commas; an unknown name prints all of them. Default: the
            six of the paper: sssp,eccentricity,laplacian,connected,diameter,spectral_radius.
        mixture: Shares of the types of graphs, such as star=1,line=3. Values: erdos_renyi,
            barabasi_albert, grid, caveman, power_law_tree, ladder, line, star, caterpillar,
            lobster. Default: the paper's shares.
        draws: Number of copies of each training graph, with other inputs.
    """
    from pna.data.multitask import multitask as make
    from pna.data.multitask.labels import SIX

    with errors() as console:
        check_target(out, force)
        chosen = parse_names(tasks) or list(SIX)
        span, shares = parse_sizes(sizes), parse_mixture(mixture)
        with progress(console, "graphs") as update:
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
                progress=update,
            )
        save(graphs, out, force, console)


def zinc(out: Out, where: From = "", force: Force = False) -> None:
    """Make ZINC-12k: molecules and their penalised logP.

    `--from public` downloads all of ZINC, about 180 MB.
    """
    from pna.data.zinc import published
    from pna.data.zinc import zinc as make

    make_benchmark("zinc", out, where, force, lambda update: make(where), ("bytes", published))


def molhiv(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    r"""Make ogbg-molhiv: molecules and whether they inhibit HIV. Needs pna\[chem].

    `--from public` downloads MoleculeNet's table.
    """
    from pna.data.molecules import check_chemistry
    from pna.data.molhiv import molhiv as make
    from pna.data.molhiv import published

    def made(update: Progress) -> GraphSet:
        return make(where, workers=workers, progress=update)

    public = ("molecules to split", published)
    make_benchmark("molhiv", out, where, force, made, public, check_chemistry)


def mnist(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    """Make MNIST as superpixels, with ten classes of digits.

    `--from public` downloads the images.
    """
    make_superpixels("mnist", out, where, workers, force)


def cifar10(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    """Make CIFAR10 as superpixels, with ten classes of photographs.

    `--from public` downloads the images.
    """
    make_superpixels("cifar10", out, where, workers, force)


def make_superpixels(name: str, out: Path, where: str, workers: int, force: bool) -> None:
    from pna.data import superpixels
    from pna.data.slic import check_images
    from pna.data.sources import PUBLIC, fetch_all

    def fetch(update: Progress) -> None:
        check_images()
        fetch_all(PUBLIC[name].files, PUBLIC[name].address, update)

    def made(update: Progress) -> GraphSet:
        graphs: GraphSet = getattr(superpixels, name)(where, workers=workers, progress=update)
        return graphs

    make_benchmark(name, out, where, force, made, ("bytes", fetch))


def make_benchmark(
    name: str,
    out: Path,
    where: str,
    force: bool,
    make: Callable[[Progress], GraphSet],
    public: tuple[str, Callable[[Progress], object]],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Fetch the data, make the graph set, write it, and print its licence and citation.

    `public` is the unit of progress and the download of the published data. `check` raises if
    packages are missing, before anything is fetched.
    """
    from pna.data.sources import FROM_PUBLIC, SOURCES, fetch_all, is_address

    source = SOURCES[name]
    with errors() as console:
        check_target(out, force)
        check()
        if is_address(where):
            with progress(console, "bytes") as update:
                fetch_all(source.files, where, update)
        elif where == FROM_PUBLIC:
            with progress(console, public[0]) as update:
                public[1](update)
        with progress(console, "graphs") as update:
            graphs = make(update)
        save(graphs, out, force, console)
        print_line(console, f"licence: {source.licence}")
        print_line(console, f"cite: {source.citation}")


def parse_sizes(text: str) -> list[int]:
    """The whole numbers in "15-24" or "15,17,20-22"; both ends are included."""
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
    """The shares in "star=1,line=3"; None for an empty text."""
    shares: dict[str, int] = {}
    for part in parse_names(text):
        name, _, share = part.partition("=")
        if name.strip() in shares:
            raise ValueError(f"got {name.strip()} more than once in the mixture, expected it once")
        if not share.strip().isdecimal():
            raise ValueError(f"got {part!r} in the mixture, expected a share such as star=1")
        shares[name.strip()] = int(share)
    return shares or None
