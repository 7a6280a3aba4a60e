"""`pna data verify` and `pna data describe`: files that are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from pna.cli.options import explained
from pna.cli.shared import errors, make_table, print_error, print_line, progress
from pna.files import check_readable

if TYPE_CHECKING:
    from pna.data.describe import Description
    from pna.data.graphset import GraphSet
    from pna.data.node_graph import NodeGraph

AnyFile = Annotated[Path, typer.Argument(help="Graph set or graph: a file that pna data wrote.")]
_LONGEST = 500  # characters of an entry of the metadata that are printed


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
