"""How many new molecules prediction intervals cover: the mean over random splits of a table.

    python benchmarks/coverage.py TABLE TARGET [--splits 10] [--level 0.9] [--epochs 8] [--out FILE]

Each split does what these commands do, with a small model that trains in seconds:

    pna train TABLE --targets TARGET --split random --split-seed K --calibration 0.1
    pna predict RUN TABLE --interval 0.9
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from pna.bench.results import write
from pna.data.molecule_table import CALIBRATION, from_table
from pna.data.table import Table
from pna.machine import machine
from pna.train import Settings, predict, train
from pna.train.defaults import model_for

RESULTS = Path(__file__).parent / "results" / "coverage.csv"


@dataclass(frozen=True)
class Coverage:
    """The test molecules of one split, or the mean over all splits."""

    table: str
    split: str  # its seed, or "mean of 10"
    level: float  # share that intervals should cover
    members: int
    epochs: int
    train: int  # molecules
    calibration: int
    test: int
    covered: float  # share of the test molecules
    width: float  # mean width of an interval, in the units of the target
    rmse: float  # of the mean prediction


def measured(table: Table, target: str, seed: int, level: float, settings: Settings) -> Coverage:
    """Train on a random split, and count the test molecules inside their intervals."""
    graphs = from_table(
        table, [target], split="random", seed=seed, calibration=0.1, features=["ogb"]
    )
    model = model_for(graphs, "pna", {"hidden": 32, "layers": 2})
    settings = replace(settings, seed=seed * settings.members, data_seed=seed)
    test = graphs.split("test")
    with tempfile.TemporaryDirectory() as folder:
        run = train(graphs, Path(folder) / "run", model, settings, device="cpu")
        found = predict(run, test, device="cpu", interval=level)
    assert test.y_graph is not None
    y, ends = test.y_graph[:, 0].double().numpy(), found.spread["graph"]
    low, high = ends[f"{target}_low"], ends[f"{target}_high"]
    return Coverage(
        Path(table.name).stem, str(seed), level, settings.members, settings.epochs,
        *(len(graphs.split(name)) for name in ("train", CALIBRATION, "test")),
        covered=round(float(((low <= y) & (y <= high)).mean()), 4),
        width=round(float((high - low).mean()), 4),
        rmse=round(float(np.sqrt(np.square(found.graph[target] - y).mean())), 4),
    )  # fmt: skip


def mean_of(rows: list[Coverage]) -> Coverage:
    names = ("covered", "width", "rmse")
    means = {n: round(float(np.mean([getattr(row, n) for row in rows])), 4) for n in names}
    return replace(rows[0], split=f"mean of {len(rows)}", **means)


def main(
    table: Path,
    target: str,
    splits: int = 10,
    level: float = 0.9,
    members: int = 2,
    epochs: int = 8,
    out: Annotated[Path, typer.Option()] = RESULTS,
) -> None:
    content, rows = Table.read(table), list[Coverage]()
    settings = Settings(epochs=epochs, members=members, lr=(3e-3,))
    for seed in range(splits):
        rows.append(measured(content, target, seed, level, settings))
        print(f"{table.stem}, split {seed}: {rows[-1].covered:.3f} covered", flush=True)
    rows.append(mean_of(rows))
    print(f"{table.stem}, {rows[-1].split}: {rows[-1].covered:.3f} covered, {level:g} wanted")
    where = machine()
    write(out, [asdict(row) | where for row in rows], key=("table", "split", "level", "members"))


if __name__ == "__main__":
    typer.run(main)
