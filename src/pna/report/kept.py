"""The list of runs whose weights are kept with the results: their own scores beside the means."""

from __future__ import annotations

from pathlib import Path

from pna.files import replacing
from pna.paper.headline import headline
from pna.paper.weights import ORIGIN
from pna.report.comparison import headline_of
from pna.report.read import ExperimentResult
from pna.report.tables import TextTable, estimate, number, to_markdown
from pna.stored import check, read_json

_OF_ORIGIN = {"results": str, "population": str, "member": int, "epoch": str}
_ABOUT = """# Weights of single runs

Each folder is the run of a population in `results/` that was best in validation.
`pna reproduce NAME --weights results/weights` writes it. `pna evaluate results/weights/FOLDER`
prints its own number; it takes the graphs from `runs/`, and makes them there if they are missing.
To use other files, pass them: `pna evaluate results/weights/FOLDER GRAPHS`.
"""


def kept_runs(folder: Path, results: Path) -> TextTable:
    """Every kept run: its own score, and the mean over all runs of its population."""
    rows = []
    for path in sorted(folder.glob(f"*/{ORIGIN}")):
        origin = read_json(path)
        check(origin, _OF_ORIGIN, str(path))
        result = ExperimentResult.read(results / origin["results"])
        name = origin["population"]
        what, times, digits = headline_of(result)
        every = headline(result.experiment, result.scores, name, times)
        own = every.values[0]  # the one with the lowest validation loss
        cells = (number(own, digits), estimate(every, digits))
        rows.append((path.parent.name, result.label(name), what, str(origin["member"]), *cells))
    heads = ("folder", "model", "number", "member", "this run", "mean of all runs")
    return TextTable("Kept runs", heads, tuple(rows), 3)


def write_list(folder: Path, results: Path) -> Path:
    """Write README.md in the folder of kept runs."""
    path = folder / "README.md"
    with replacing(path) as file:
        file.write(f"{_ABOUT}\n{to_markdown(kept_runs(folder, results))}")
    return path
