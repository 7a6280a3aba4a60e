"""`pna data`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli.options import AtLeast0, AtLeast1, Force, explained, parse_names, parse_numbers
from pna.cli.shared import (
    STANDARD,
    check_target,
    errors,
    make_table,
    print_error,
    print_line,
    progress,
    read_standard_input,
)
from pna.files import check_readable

if TYPE_CHECKING:
    from pna.data.describe import Description
    from pna.data.graphset import GraphSet
    from pna.data.node_graph import NodeGraph
    from pna.data.progress import Progress

app = typer.Typer(
    help="Make, check and describe files to train on: sets of graphs, and one graph whose nodes or "
    "edges are predicted.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="Graph set: a file that pna data wrote.")]
AnyFile = Annotated[Path, typer.Argument(help="Graph set or graph: a file that pna data wrote.")]
Columns = list[str] | None
Out = Annotated[Path, typer.Option(help="File to write, such as graphs.safetensors.")]
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
_LONGEST = 500  # characters of an entry of the metadata that are printed
_CLASSES = 10  # a target with more whole numbers is not taken for one of classes
Workers = Annotated[int, typer.Option(help="Number of worker processes, at least 1.")]


@app.command()
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


@app.command()
def zinc(out: Out, where: From = "", force: Force = False) -> None:
    """Make ZINC-12k: molecules and their penalised logP.

    `--from public` downloads all of ZINC, about 180 MB.
    """
    from pna.data.zinc import published
    from pna.data.zinc import zinc as make

    make_benchmark("zinc", out, where, force, lambda update: make(where), ("bytes", published))


@app.command()
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


@app.command()
def mnist(out: Out, where: From = "", workers: Workers = 1, force: Force = False) -> None:
    """Make MNIST as superpixels, with ten classes of digits.

    `--from public` downloads the images.
    """
    make_superpixels("mnist", out, where, workers, force)


@app.command()
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


def file_size(path: Path) -> str:
    """The size of a file for a reader: "27.9 kB", "153.0 MB"."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def save(graphs: GraphSet, out: Path, force: bool, console: Console) -> None:
    graphs.save(out, force=force)
    print_line(console, f"wrote {out}: {len(graphs):,} graphs, {file_size(out)}")


@app.command()
@explained
def molecules(
    table: Path,
    *,
    out: Out,
    targets: str = "",
    smiles: str = "",
    split: str = "",
    seed: AtLeast0 = 0,
    calibration: float = 0.0,
    weight: str = "",
    skip: bool = False,
    keep: bool = False,
    strict: bool = False,
    take_limits: bool = False,
    encoding: str = "",
    features: str = "ogb,descriptors",
    workers: Workers = 1,
    force: Force = False,
) -> None:
    r"""Make a graph set of your own molecules and their measured properties. Needs pna\[chem].

    Cells may be empty. Columns that hold only 0 and 1 are trained as probabilities. Special rows,
    such as duplicates and salts, are counted, and listed in a file: X.rows.csv beside
    X.safetensors.

    Args:
        table: Table with one molecule per row: CSV, TSV, SDF, Parquet, or .smi (a SMILES and a
            name in each line); text may be packed with gzip. - means standard input: CSV or SMILES.
        targets: Columns to predict, separated by commas. Default: none.
        smiles: Column of the SMILES. Default: found by its name.
        split: How molecules are split. Values: scaffold, random, or a column that holds train,
            validation, test or calibration. Default: scaffold if there are targets, else no split.
        seed: Random seed of the random split and of --calibration.
        calibration: Share of the training molecules that are not trained on, such as 0.1, to
            calibrate predictions; pna predict --interval needs them.
        weight: Column of numbers of at least 0, the weights of the molecules in the loss. Default:
            all molecules have the same weight.
        skip: Leave out rows that RDKit refuses. Default: a row that it cannot read is an error.
        keep: With --skip, keep molecules that RDKit refuses because an atom has too many bonds;
            they are read without that check. Default: they are kept without --skip only.
        strict: Rows that RDKit refuses are an error, and so are rows with wildcards, with a limit
            instead of a number, or with a molecule that an earlier row has with another target.
        take_limits: Take 0.01 as the number of a cell such as <0.01. Default: an error.
        encoding: Encoding of the table, such as latin-1, cp1252 or utf-16. Default: utf-8.
        features: Features of the molecules, separated by commas, ogb first. Values: ogb (of atoms
            and bonds), descriptors (of RDKit), morgan (counts of a fingerprint), walks and
            laplacian (of atoms), bond-walks and bond-heat. A number sets the size of all but the
            first two, such as morgan=1024,walks=16.
    """
    from pna.data.molecule_table import from_table
    from pna.data.molecules import check_chemistry
    from pna.data.special_rows import RowRules, SpecialRow, save_rows, summary
    from pna.data.table import Table as Written

    with errors() as console:
        check_target(out, force)
        listed = out.with_name(f"{out.stem}.rows.csv")
        check_target(listed, force)
        if table.resolve() in (out.resolve(), listed.resolve()):
            raise ValueError(
                f"got the table {table}, which would be overwritten; choose another --out"
            )
        special: list[SpecialRow] = []
        rules = RowRules(skip, keep, strict, take_limits, lambda _, rows: special.extend(rows))
        check_chemistry()
        with tempfile.TemporaryDirectory() as folder:
            given = read_standard_input(Path(folder)) if str(table) == STANDARD else table
            content = Written.read(given, encoding)
        named = [targets] if targets in content.columns else parse_names(targets)  # may have commas
        with progress(console, "molecules") as update:
            graphs = from_table(
                content, named, smiles=smiles, split=split, seed=seed,
                calibration=calibration, weight=weight, rows=rules,
                features=parse_names(features), workers=workers, progress=update,
            )  # fmt: skip
        save(graphs, out, force, console)
        for words in facts_of(graphs):
            print_line(console, words)
        if special or listed.exists():
            save_rows(listed, special)
            print_line(console, f"wrote {listed}, which lists the special rows:")
        for words in summary(special):
            print_line(console, f"  {words}")


def facts_of(graphs: GraphSet) -> Iterator[str]:
    """Lines about the splits and the targets of molecules."""
    if graphs.splits:
        yield ", ".join(f"{len(graphs.split(name)):,} {name}" for name in graphs.splits)
    losses = graphs.metadata.get("losses", {})
    for column, name in enumerate(graphs.graph_targets):
        assert graphs.y_graph is not None
        known = int((~graphs.y_graph[:, column].isnan()).sum())
        kind = ", 0 or 1" if name in losses else ""
        yield f"to predict: {name}{kind}, known of {known:,}{_assumed(graphs, column)}"
    if graphs.sample_weight is not None:
        low, high = (float(end) for end in graphs.sample_weight.aminmax())
        yield f"weights in the loss: from {low:g} to {high:g}"
    if not graphs.graph_targets:
        yield "nothing to train: no columns to predict were named (--targets)"


def _assumed(graphs: GraphSet, column: int) -> str:
    """What was assumed of a target whose few whole numbers may be classes."""
    assert graphs.y_graph is not None
    name, numbers = graphs.graph_targets[column], graphs.y_graph[:, column]
    values = sorted({*numbers[~numbers.isnan()].tolist()})
    first, count = values[0], len(values)
    if not 2 <= count <= _CLASSES or first not in (0, 1) or values[-1] != first + count - 1:
        return ""
    if count == 2:
        return "; 1 and 2 are taken as numbers: for two classes, write 0 and 1" if first else ""
    shift = "subtract 1 and " if first else ""
    return f"; taken as numbers: for {count} classes, {shift}train with --loss {name}=cross_entropy"


@app.command()
@explained
def graph(
    file: Path | None = None,
    *,
    out: Out,
    edges: Path | None = None,
    nodes: Path | None = None,
    target: Columns = None,
    edge_target: Columns = None,
    split: str = "",
    edge_split: str = "",
    random_split: str = "",
    seed: AtLeast0 = 0,
    directed: Annotated[bool, typer.Option("--directed/--undirected")] = False,
    id: str = "",
    source: str = "",
    dest: str = "",
    categorical: Columns = None,
    numeric: Columns = None,
    ignore: Columns = None,
    force: Force = False,
) -> None:
    """Make one graph whose nodes or edges are to be predicted, from tables or an npz file.

    Tables are CSV files with commas, semicolons or tabs, plain or packed with gzip. Columns without
    another use are features. Options that name a column may be given several times.

    Args:
        file: File in npz format with node_features, node_labels, edges, train_masks, val_masks and
            test_masks. Default: none; --edges and --nodes are read.
        edges: Table with one edge per row. Default: none; the npz file is read.
        nodes: Table with one node per row. Default: none; nodes are those that edges name, and
            their degree is their feature.
        target: Column of nodes to predict. Default: none.
        edge_target: Column of edges to predict. Default: none.
        split: Column of nodes with train, validation or test; empty cells: not used. Default: none.
        edge_split: Column of edges with train, validation or test; empty cells: not used.
            Default: none.
        random_split: Fractions of training, validation and test for targets without a column of
            splits, such as 0.6,0.2,0.2. Classes are split evenly. Default: no random split.
        seed: Random seed of the random split.
        directed: Whether edges send in the direction in which they are listed only, or in both.
        id: Column of nodes with their names. Default: the first.
        source: Column of edges with the name of the sender. Default: the first.
        dest: Column of edges with the name of the receiver. Default: the second.
        categorical: Column that holds categories or classes, even if they look like numbers.
            Default: columns with a text that is no number, and targets of few whole numbers.
        numeric: Column that holds numbers. Default: columns with numbers only.
        ignore: Column to leave out. Default: none.
    """
    from pna.data.graph_tables import GraphColumns
    from pna.data.node_graph import NodeGraph

    with errors() as console:
        check_target(out, force)
        columns = GraphColumns(
            id, source, dest, target or (), edge_target or (), split, edge_split,
            categorical or (), numeric or (), ignore or (),
        )  # fmt: skip
        if file is not None:
            if edges or nodes or random_split or columns != GraphColumns():
                raise ValueError(
                    f"got {file} and options about tables, expected an npz file, which has its own "
                    "targets and splits, or tables; leave one of them out"
                )
            made = NodeGraph.from_npz(file, directed=directed)
        elif edges is None:
            raise ValueError("got no edges, expected a table of them (--edges) or an npz file")
        else:
            with progress(console, "bytes") as update:
                made = NodeGraph.from_tables(
                    edges, nodes, directed=directed, random_split=parse_fractions(random_split),
                    seed=seed, progress=update, **vars(columns),
                )  # fmt: skip
        made.save(out, force=force)
        print_line(console, f"wrote {out}: {file_size(out)}")
        for line in made.summary():
            print_line(console, line)


@app.command()
@explained
def walks(
    file: File, *, out: Out, steps: AtLeast0 = 16, edge_steps: AtLeast0 = 0, force: Force = False
) -> None:
    """Add random-walk features to a graph set. They show in which rings a node or edge lies.

    Args:
        steps: Node features: the probability to return after 1 to this many steps.
        edge_steps: Edge features: the probability to reach the other end in 1 to this many steps.
    """
    from pna.data.graphset import GraphSet
    from pna.data.walks import with_walks

    with errors() as console:
        check_target(out, force)
        graphs = with_walks(GraphSet.load(file), steps, edge_steps)
        save(graphs, out, force, console)


@app.command()
@explained
def laplacian(
    file: File, *, out: Out, vectors: AtLeast0 = 8, edge_times: AtLeast0 = 0, force: Force = False
) -> None:
    """Add Laplacian features to a graph set. They show where in its graph a node lies.

    Args:
        vectors: Node features: so many eigenvectors. Training flips their signs at random.
        edge_times: Edge features: the heat kernel at so many times, 1, 2, 4, …
    """
    from pna.data.graphset import GraphSet
    from pna.data.laplacian import with_laplacian

    with errors() as console:
        check_target(out, force)
        graphs = with_laplacian(GraphSet.load(file), vectors, edge_times)
        save(graphs, out, force, console)


@app.command()
def verify(file: AnyFile) -> None:
    """Compare the contents of a graph set or a graph with its checksum.

    Exit status: 0 if they agree, 1 if the file is damaged, 2 if it has no checksum.
    """
    from pna.data.tensor_file import IN_MEMORY

    with errors() as console:
        check_readable(file)
        kind = kind_of(file)
        large = file.stat().st_size > IN_MEMORY
        with progress(console, "bytes") if large else nullcontext() as update:
            has_checksum = kind.verify(file, update)
        if not has_checksum:
            kind.load(file)  # finds damage that shows without a checksum
    if not has_checksum:
        print_error(
            f"{file} has no checksum, as an older version of pna wrote it; to add one, save it "
            "again: pna.GraphSet.load(file).save(file, force=True)"
        )
        raise typer.Exit(2)
    print_line(console, f"{file}: its contents agree with its checksum")


def kind_of(file: Path) -> type[GraphSet] | type[NodeGraph]:
    """The class whose `load` reads a file."""
    from pna.data import tensor_file
    from pna.data.graphset import GraphSet
    from pna.data.node_graph import KIND, NodeGraph

    return NodeGraph if tensor_file.kind_of(file) == KIND else GraphSet


@app.command()
@explained
def describe(file: AnyFile, *, figure: Path | None = None) -> None:
    """Print and plot sizes, degrees, types and targets, and the error of predicting their mean.

    Of one graph, its features, targets and splits are printed.

    Args:
        figure: SVG file for the figure. Default: next to the graph set.
    """
    from pna.data.describe import describe as figures_of
    from pna.data.graphset import GraphSet
    from pna.data.node_graph import NodeGraph

    with errors() as console:
        if kind_of(file) is NodeGraph:
            if figure is not None:
                raise ValueError("got --figure for one graph, which is not drawn; leave it out")
            for line in NodeGraph.load(file).summary():
                print_line(console, line)
            return
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
            raise OSError(f"{error}; choose another file with --figure") from error
        print_line(console, f"wrote {path}")


def tables(found: Description) -> Iterator[Table]:
    """Tables of metadata, splits, types and targets."""
    if found.metadata:
        facts = Table(box=None, show_header=False)
        for name, value in found.metadata.items():
            text = str(value)  # folds have a letter for each graph
            text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
            facts.add_row(escape(name), escape(text))
        yield facts
    columns = ("graphs", "nodes per graph", "nodes", "edges", "mean degree", "δ")
    splits = make_table(["split"], columns)
    for split in found.splits:
        low, high = split.sizes
        counts = (f"{split.graphs:,}", f"{low}-{high}", f"{split.nodes:,}", f"{split.edges:,}")
        means = (f"{split.mean_degree:.3f}", f"{split.mean_log_degree:.4f}")
        splits.add_row(escape(split.name), *counts, *means)
    yield splits
    if any(split.types for split in found.splits):
        types = make_table(["type, % of graphs"], (escape(split.name) for split in found.splits))
        for kind in dict.fromkeys(kind for split in found.splits for kind in split.types):
            shares = [100 * split.types.get(kind, 0) / split.graphs for split in found.splits]
            types.add_row(escape(kind), *[f"{share:.1f}" if share else "" for share in shares])
        yield types
    names = [split.name for split in found.splits]
    baselines = (f"log10 MSE of the mean, {escape(name)}" for name in names)
    heads = ("minimum", "mean", "maximum", "missing", "scale", *baselines)
    targets = make_table(("target", "level"), heads)
    for target in found.targets:
        least, mean, most, scale = (
            f"{v:.4g}" for v in (target.least, target.mean, target.greatest, target.scale)
        )
        errors = [f"{target.baseline[name]:.2f}" for name in names]
        row = (target.level, least, mean, most, f"{target.missing:,}", scale)
        targets.add_row(escape(target.name), *row, *errors)
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
    """The share of each value of targets that may be classes."""
    names = (escape(split.name) for split in found.splits)
    shares = make_table(["target, % of values"], ("", *names))
    for target in found.targets:
        for value, counts in enumerate(zip(*target.counts.values(), strict=True)):
            totals = [max(sum(of), 1) for of in target.counts.values()]
            cells = [f"{100 * c / n:.1f}" for c, n in zip(counts, totals, strict=True)]
            shares.add_row(escape(target.name) if value == 0 else "", str(value), *cells)
    return shares


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


def parse_fractions(text: str) -> tuple[float, float, float] | None:
    """The fractions in "0.6,0.2,0.2"; None for an empty text."""
    if not text:
        return None
    found = parse_numbers("random split", text)
    if len(found) != 3:
        raise ValueError(f"got the random split {text!r}, expected three fractions: 0.6,0.2,0.2")
    return found[0], found[1], found[2]


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
