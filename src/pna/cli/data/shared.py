"""Options that `pna data` commands have in common, and writing a graph set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pna.cli.shared import print_line

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet

File = Annotated[Path, typer.Argument(help="Graph set: a file that pna data wrote.")]
Out = Annotated[Path, typer.Option(help="File to write, such as graphs.safetensors.")]
Workers = Annotated[int, typer.Option(help="Number of worker processes, at least 1.")]


def file_size(path: Path) -> str:
    """The size of a file for a reader: "27.9 kB", "153.0 MB"."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def save(graphs: GraphSet, out: Path, force: bool, console: Console) -> None:
    graphs.save(out, force=force)
    print_line(console, f"wrote {out}: {len(graphs):,} graphs, {file_size(out)}")
