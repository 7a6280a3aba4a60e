"""Tables of the documentation that are made of benchmark results.

    for page in pages():
        page.write_text(with_tables(page.name, page.read_text(), Path("benchmarks/results")))

A page holds its tables between marks: ``<!-- table NAME: begin -->`` and ``<!-- table NAME: end
-->``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from pna.bench import example, molecule_tables
from pna.bench.contenders import (
    BOTH,
    CONTENDERS,
    FORWARD,
    OURS,
    OURS_COMPILED,
    OURS_RECORDED,
    PYG,
    PYG_COMPILED,
    PYG_RECORDED,
)
from pna.bench.layer_cases import CASES, SHAPES
from pna.bench.molecule_tables import CHEMPROP
from pna.bench.results import read
from pna.report.kernels import table as kernels_table

Row = Mapping[str, str]

NOT_MEASURED = "not measured yet"


@dataclass(frozen=True)
class Way:
    """A way to run a layer, and the rows of layer.csv that measure it."""

    words: str
    case: str
    work: str
    pyg: str
    ours: str


_FRESH, _REUSED = "molecules, fresh edges", "molecules"
WAYS = (
    Way("eager, new `edge_index` in each step", _FRESH, BOTH, PYG, OURS),
    Way("eager, graph reused (`Adjacency`)", _REUSED, BOTH, PYG, OURS),
    Way("`torch.compile`, new `edge_index`", _FRESH, BOTH, PYG_COMPILED, OURS_COMPILED),
    Way("`torch.compile`, graph reused", _REUSED, BOTH, PYG_COMPILED, OURS_COMPILED),
    Way("`reduce-overhead`, new `edge_index`", _FRESH, BOTH, PYG_RECORDED, OURS_RECORDED),
    Way("`reduce-overhead`, graph reused", _REUSED, BOTH, PYG_RECORDED, OURS_RECORDED),
    Way("forward only, eager, new `edge_index`", _FRESH, FORWARD, PYG, OURS),
    Way("forward only, eager, graph reused", _REUSED, FORWARD, PYG, OURS),
)


def with_tables(name: str, page: str, results: Path) -> str:
    """A page with all its tables written anew."""
    for (of_page, mark), table in TABLES.items():
        if of_page == name:
            page = _replaced(page, mark, table(results))
    return page


def ways(results: Path) -> str:
    """A line for each machine and way to run a layer: PyG's time and ours."""
    rows = read(results / "layer.csv")
    lines = []
    for machine, own in _by_machine(rows, {way.case for way in WAYS}):
        times = {(r["case"], r["work"], r["contender"]): float(r["ms"]) for r in own}
        for way in WAYS:
            pyg = times.get((way.case, way.work, way.pyg))
            ours = times.get((way.case, way.work, way.ours))
            if ours is not None:
                lines.append([machine, way.words, *_compared(pyg, ours, "{:.2f} ms")])
    return _table(["on", "one layer, 3,000 nodes, 6,500 edges, F = 64", PYG, OURS, "faster"], lines)


def epochs(results: Path) -> str:
    """A line for each machine: an epoch of PyG's example, its own loop and ours."""
    lines = []
    for machine, own in _by_machine(read(results / "example.csv"), {"example"}):
        times = {row["contender"]: float(row["ms"]) / 1e3 for row in own}
        what = f"PyG's loop, {int(own[0]['graphs']):,} graphs, with validation and test"
        pyg = times.get(example.PYG)
        for name, words in ((example.OURS, "only the layer changed"), (example.FREE, "no layer")):
            if name in times:
                cells = _compared(pyg, times[name], "{:.2f} s")
                lines.append([machine, f"{what}: {words}", *cells])
    for machine, own in _by_machine(read(results / "train.csv"), {"zinc-sized"}):
        times = {row["contender"]: float(row["ms"]) / 1e3 for row in own}
        what = f"`pna train`, {int(own[0]['graphs']):,} graphs of this size, no validation"
        if OURS in times:
            lines.append([machine, what, *_compared(times.get(PYG), times[OURS], "{:.2f} s")])
    return _table(["on", "an epoch of PyG's model for ZINC", PYG, OURS, "faster"], lines)


def peers(results: Path) -> str:
    """A line for each machine, case and contender: time, memory, and how much faster ours is."""
    wanted = {case.name: case for cases in CASES.values() for case in cases if not case.errors}
    lines = []
    names = [e.name for e in CONTENDERS if e.when == "peers"]
    for machine, own in _by_machine(read(results / "layer.csv"), set(wanted)):
        ours = {r["case"]: float(r["ms"]) for r in own if r["contender"] == OURS and _both(r)}
        for row in own:
            if row["contender"] in names and _both(row) and row["case"] in ours:
                ms = float(row["ms"])
                cells = [f"{ms:.2f} ms", f"{ours[row['case']]:.2f} ms"]
                faster = f"{ms / ours[row['case']]:.2f}×"
                lines.append([machine, row["case"], row["contender"], *cells, faster])
    return _table(["on", "case", "peer", "its time", OURS, "ours is faster"], lines)


def shapes(results: Path) -> str:
    """A line for each machine and case of other widths, degrees, edges or precisions: PyG's time
    and memory, and ours."""
    lines = []
    for machine, own in _by_machine(read(results / "layer.csv"), {case.name for case in SHAPES}):
        found = {(r["case"], r["contender"]): r for r in own if _both(r)}
        for case in SHAPES:
            pyg, ours = found.get((case.name, PYG)), found.get((case.name, OURS))
            if pyg is not None and ours is not None:
                times = _compared(float(pyg["ms"]), float(ours["ms"]), "{:.2f} ms")
                size = _compared(float(pyg["mib"]), float(ours["mib"]), "{:,.0f} MiB")
                lines.append([machine, case.size, *times, *size])
    head = ["on", "one layer, forward and backward", PYG, OURS, "faster"]
    return _table([*head, f"memory of {PYG}", f"memory of {OURS}", "less"], lines)


def nodes(results: Path) -> str:
    """A line for each machine and case of `pna bench nodes`: a step of PyG's layers and of ours."""
    lines = []
    rows = read(results / "nodes.csv")
    for machine, own in _by_machine(rows, {row["case"] for row in rows}):
        times = {(row["case"], row["contender"]): float(row["ms"]) for row in own}
        for row in own:
            if row["contender"] != OURS:
                continue
            pyg = times.get((row["case"], PYG))
            cells = _compared(pyg, times[row["case"], OURS], "{:.1f} ms", none="not run")
            gib = f"{float(row['mib']) / 1024:.1f} GiB"
            lines.append([machine, row["case"], row["work"], *cells, gib])
    return _table(["on", "graph", "step", PYG, OURS, "faster", "memory of ours"], lines)


def molecule_errors(results: Path) -> str:
    """A line for each table of `pna bench molecules`: test errors of one model and of ensembles, on
    a CPU. They hardly depend on it: if several have measured a model, the last one counts."""
    lines = []
    for (table, _), own in _by_table(results).items():
        own = list({(row["contender"], row["model"]): row for row in own}.values())
        cells = [table, f"{int(own[0]['molecules']):,}", own[0]["metric"]]
        for kind in _KINDS:
            for contender in (CHEMPROP, molecule_tables.OURS):
                rows = _of_models(own, contender, kind)
                found = [float(row["value"]) for row in rows]
                spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
                cells.append(
                    f"{mean(found):.3f}{spread} ({_size(rows)})" if found else NOT_MEASURED
                )
        lines.append(cells)
    names = [f"{who}, {what}" for what in _KINDS.values() for who in (CHEMPROP, OURS)]
    return _table(["table", "molecules", "metric", *names], lines)


def molecule_times(results: Path) -> str:
    """A line for each table and machine that has measured both packages: processor time of the
    training commands. If not all models of chemprop's ensemble were measured there, its time is
    that of so many times one model, and marked."""
    lines = []
    for (table, _, cpu), own in _by_table(results, "cpu").items():
        own = [row for row in own if row["cpu_seconds"]]
        if {row["contender"] for row in own} < {CHEMPROP, molecule_tables.OURS}:
            continue
        cells, one_model = [table, cpu], None
        for kind in _KINDS:
            times = []
            both = [_of_models(own, name, kind) for name in (CHEMPROP, molecule_tables.OURS)]
            for rows in both:
                times.append(mean(float(row["cpu_seconds"]) for row in rows) if rows else None)
                cells.append(NOT_MEASURED if times[-1] is None else f"{times[-1]:,.0f} s")
            theirs, ensemble = both
            alike = theirs and ensemble and _size(theirs) == _size(ensemble)
            if one_model and ensemble and not alike:
                times[0] = one_model * _size(ensemble)
                cells[-2] = f"≈ {times[0]:,.0f} s"
            chemprop, ours = times
            one_model = chemprop
            cells.append(f"{chemprop / ours:.1f}×" if chemprop and ours else "")
        lines.append(cells)
    head = [CHEMPROP, OURS, "less"]
    names = [f"{name}, {what}" for what in _KINDS.values() for name in head]
    return _table(["table", "on", *names], lines)


def molecules_on_gpus(results: Path) -> str:
    """A line for each table, GPU and package: test errors, and wall time of the training commands.
    An ensemble that was not measured takes so many times one model, and is marked."""
    lines = []
    for (table, _, gpu), own in _by_table(results, "gpu", on_gpu=True).items():
        size = max((_size([row]) for row in own if row["model"].startswith("ensemble")), default=1)
        for contender in (CHEMPROP, molecule_tables.OURS):
            alone, ensemble = (_of_models(own, contender, kind) for kind in _KINDS)
            timed = [float(row["seconds"]) for row in alone if row["seconds"]]
            if not timed:
                continue
            errors = [float(row["value"]) for row in alone]
            spread = f" ± {stdev(errors):.3f}" if len(errors) > 1 else ""
            cells = [f"{mean(errors):.3f}{spread} ({len(errors)})", f"{mean(timed):,.0f} s"]
            if ensemble:
                row, own_size = ensemble[-1], _size(ensemble[-1:])
                cells += [
                    f"{float(row['value']):.3f} ({own_size})", f"{float(row['seconds']):,.0f} s"
                ]  # fmt: skip
            else:
                cells += [NOT_MEASURED, f"≈ {size * mean(timed):,.0f} s"]
            lines.append([table, gpu, contender, own[0]["metric"], *cells])
    names = [f"{what}{more}" for what in _KINDS.values() for more in ("", ", wall time")]
    return _table(["table", "on", "", "metric", *names], lines)


def molecule_rates(results: Path) -> str:
    """A line for each rate of prediction."""
    lines = []
    for (table, _, cpu), own in _by_table(results, "cpu").items():
        for row in own:
            if row["metric"] != molecule_tables.RATE:
                continue
            count, seconds = int(row["molecules"]), float(row["predict_seconds"])
            each = 1e3 * float(row["predict_cpu_seconds"]) / count
            cells = [f"{float(row['value']):,.0f}", f"{count / seconds:,.0f}", f"{each:.1f} ms"]
            what = row["model"].removeprefix("prediction, ")
            lines.append([table, cpu, f"{row['contender']}, {what}", *cells])
    head = ["molecules per second, after the start", "with the start", "processor time of one"]
    return _table(["table", "on", "", *head], lines)


#: Kinds of rows by the word with which their models begin.
_KINDS = {"seed": "one model", "ensemble": "ensemble"}


def _by_table(results: Path, *more: str, on_gpu: bool = False) -> dict[tuple[str, ...], list[Row]]:
    """The rows of each table and split, and of the same values in `more` columns: those of machines
    with a GPU, or of others."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in read(results / "molecules.csv"):
        if bool(row["gpu"]) != on_gpu:
            continue
        found.setdefault(tuple(row[name] for name in ("table", "split", *more)), []).append(row)
    return found


def _of_models(rows: Sequence[Row], contender: str, kind: str) -> list[Row]:
    own = [row for row in rows if row["contender"] == contender]
    return [row for row in own if row["model"].startswith(kind)]


def _size(rows: Sequence[Row]) -> int:
    """How many models the rows are of: an ensemble, or models alone."""
    last = rows[0]["model"].split()
    return int(last[-1]) if last[0] == "ensemble" else len(rows)


def _both(row: Row) -> bool:
    return row["work"] == BOTH


def _by_machine(rows: Sequence[Row], cases: set[str]) -> Iterator[tuple[str, list[Row]]]:
    """Rows of these cases that have a time, for each machine; GPUs first."""
    found: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        if row["case"] in cases and row["ms"]:
            is_cpu = row["device"] == "cpu"
            machine = f"{row['cpu']}, {row['threads']} threads" if is_cpu else row["gpu"]
            found.setdefault((is_cpu, machine), []).append(row)
    for (_, machine), own in sorted(found.items(), key=lambda item: item[0]):
        yield machine, own


def _compared(pyg: float | None, ours: float, form: str, none: str = NOT_MEASURED) -> list[str]:
    if pyg is None:
        return [none, form.format(ours), ""]
    return [form.format(pyg), form.format(ours), f"{pyg / ours:.2f}×"]


def _table(head: list[str], lines: list[list[str]]) -> str:
    lines = lines or [[NOT_MEASURED, *[""] * (len(head) - 1)]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _replaced(page: str, mark: str, table: str) -> str:
    name = f" {mark}" if mark else ""
    begins, ends = f"<!-- table{name}: begin -->", f"<!-- table{name}: end -->"
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"got a page without {begins} and {ends}, expected the table between them")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _kernels(results: Path) -> str:
    return kernels_table(read(results / "kernels.csv"))


#: By page and the name in its marks.
TABLES: dict[tuple[str, str], Callable[[Path], str]] = {
    ("which-way.md", "ways"): ways,
    ("which-way.md", "epochs"): epochs,
    ("layer.md", "peers"): peers,
    ("layer.md", "shapes"): shapes,
    ("one-graph.md", "nodes"): nodes,
    ("molecules.md", "molecule errors"): molecule_errors,
    ("molecules.md", "molecule times"): molecule_times,
    ("molecules.md", "molecule rates"): molecule_rates,
    ("molecules.md", "molecules on GPUs"): molecules_on_gpus,
    ("kernels.md", ""): _kernels,
}
