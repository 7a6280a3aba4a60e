"""`pna data molecules` and `pna data graph`: one's own data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pna.cli.data.shared import Out, Workers, file_size, save
from pna.cli.options import AtLeast0, Force, explained, parse_names, parse_numbers
from pna.cli.shared import (
    STANDARD,
    check_target,
    errors,
    print_line,
    progress,
    read_standard_input,
)

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet

Columns = list[str] | None
_CLASSES = 10  # a target with more whole numbers is not taken for one of classes


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


def parse_fractions(text: str) -> tuple[float, float, float] | None:
    """The fractions in "0.6,0.2,0.2"; None for an empty text."""
    if not text:
        return None
    found = parse_numbers("random split", text)
    if len(found) != 3:
        raise ValueError(f"got the random split {text!r}, expected three fractions: 0.6,0.2,0.2")
    return found[0], found[1], found[2]
