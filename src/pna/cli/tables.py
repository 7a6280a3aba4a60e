"""Tables of molecules as the data of commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pna.cli import options
from pna.cli.data.own import facts_of
from pna.cli.shared import cores, print_line, progress
from pna.train.defaults import arguments_of

if TYPE_CHECKING:
    from pna.data.division import FoldOptions


def graphs_of(
    console: Console, data: Path, given: dict[str, Any], folds: FoldOptions | None = None
) -> Path:
    """The graph set to train on: the file, or the set of a table of molecules, with folds if asked
    for, which is made if it is not beside the table; with the encodings of the recipe, if any. The
    options of a table are taken out of `given`."""
    recipe = options.recipe_of(given)
    arguments_of(recipe, given.get("model", "pna"), given)  # raises before the graphs are made
    path = _bare_graphs(console, data, given, folds)
    if not recipe.encodings:
        return path
    from pna.data.encodings import ENCODINGS
    from pna.data.kept_graphs import kept_encodings

    is_used = {"node": True, "edge": given.get("edges", True)}
    sizes = {n: size for n, size in recipe.encodings.items() if is_used[ENCODINGS[n].level]}
    with progress(console, "encodings") as update:
        encoded, found = kept_encodings(path, sizes, update)
    words = ", ".join(f"{name}={size}" for name, size in found)
    print_line(console, f"the graphs with the encodings {words} are in {encoded}")
    return encoded


def _bare_graphs(
    console: Console, data: Path, given: dict[str, Any], folds: FoldOptions | None
) -> Path:
    from pna.data.table import Table, is_table

    own = {name: given.pop(name) for name in options.OPTIONS["Table"] if name in given}
    if not is_table(data):
        if own:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in own)
            raise ValueError(
                f"got {names} with {data}, which is not a table of molecules; leave "
                f"{'it' if len(own) == 1 else 'them'} out"
            )
        return data
    from pna.data.graphset import GraphSet
    from pna.data.kept_graphs import TableOptions, kept_graphs
    from pna.data.special_rows import RowRules, SpecialRow, save_rows, summary

    special: list[SpecialRow] = []
    rules = {
        name: own.pop(name) for name in ("skip", "keep", "strict", "take_limits") if name in own
    }
    if "targets" in own:
        text = own["targets"]
        columns = Table.read(data, own.get("encoding", "")).columns if "," in text else ()
        own["targets"] = [text] if text in columns else options.parse_names(text)
        if not own["targets"]:
            raise ValueError(
                f"got --targets {text!r} without a name, expected columns of {data}; leave it out "
                "to predict all columns of numbers"
            )
    if "features" in own:
        own["features"] = options.parse_names(own["features"])
    with progress(console, "molecules") as update:
        path, made = kept_graphs(
            data,
            TableOptions(**own, folds=folds),
            RowRules(**rules, report=lambda _, rows: special.extend(rows)),
            workers=cores(),
            progress=update,
        )
    listed = path.with_suffix(".rows.csv")
    if made is None:
        print_line(console, f"the graphs of {data} are in {path}")
        for words in facts_of(GraphSet.load(path)):
            print_line(console, words)
        if listed.exists():
            print_line(console, f"{listed} lists the special rows")
        return path
    print_line(console, f"wrote the graphs of {data} to {path}")
    for words in facts_of(made):
        print_line(console, words)
    if special or listed.exists():
        save_rows(listed, special)
        print_line(console, f"wrote {listed}, which lists the special rows:")
    for words in summary(special):
        print_line(console, f"  {words}")
    return path
