"""An epoch of training beside the same model made of PyG's layers, in the same process.

    for case in cases("cpu"):
        results = measure_case(case, "cpu")

All graphs are on the device, but for those that PyG's loader puts together; float32, no TF32.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.bench.attempt import attempt, release, without_tf32
from pna.bench.layer import has_pyg
from pna.bench.measure import time_call, time_calls
from pna.bench.molecules import ATOMS, BONDS, molecules
from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.names import lookup
from pna.train.models import build, count_parameters, fitted
from pna.train.population import Population
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import tasks_of
from pna.train.trainer import Trainer

OURS, PYG, AUTHORS = "pna", "PyG", "the authors' code"
LOADED, COMPILED = "PyG, batches on the GPU", "PyG, compiled, batches on the GPU"

#: Seconds of an epoch of one run of the authors' multi-task model on one H200: measured once, with
#: their code, not by this benchmark.
AUTHORS_SECONDS = 1.53
_LONGEST_COMPILATION = 240  # seconds

_RECURRENT = ModelSettings(init="published", arguments={"towers": 4})
_STACKED = ModelSettings(
    architecture="stacked",
    hidden=75,
    arguments={"towers": 5, "edge_width": 50, "layers": 4, "head": [50, 25],
               "residual": False, "readout": "sum"},
)  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """Who trains: an epoch at each call."""

    name: str
    epoch: Callable[[], Any]
    parameters: int
    members: int = 1


@dataclass(frozen=True)
class Case:
    """What is trained, and against whom the others are told to be faster."""

    name: str
    make: Callable[[Case, torch.device], list[Contender]]
    beside: str  # name of a contender
    graphs: int  # of each size, or in all
    sizes: tuple[int, ...] = ()  # of multi-task graphs
    batch_size: int = 512
    published: bool = False  # whether the authors' time is that of the same work

    @property
    def size(self) -> str:
        sizes = f" of each size from {self.sizes[0]} to {self.sizes[-1]}" if self.sizes else ""
        return f"{self.graphs:,} graphs{sizes}, batches of {self.batch_size}"


@dataclass(frozen=True)
class Result:
    """One row; milliseconds of an epoch, None where not measured: `note` says why."""

    case: str
    contender: str
    members: int
    parameters: int | None
    graphs: int
    batch_size: int
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    per_second: float | None = None  # epochs a second of one member
    faster: float | None = None  # times as many of them as the one beside it
    beside: str | None = None
    note: str | None = None


def cases(
    device: torch.device | str, small: bool = False, only: str | None = None
) -> tuple[Case, ...]:
    """What is measured on a device of this kind; on a CPU a whole population if asked for."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"got device {str(device)!r}, expected cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"got device {str(device)!r}, but torch finds no GPU: `pna doctor`")
    sizes = tuple(range(15, 25))
    every: tuple[Case, ...] = (
        Case("population", _population, AUTHORS, 512, sizes, published=kind == "cuda"),
        Case("multitask", _multitask, PYG, 512, sizes),
        Case("zinc-sized", _zinc, PYG, 10_000 if kind == "cuda" else 1_280, batch_size=128),
    )
    if small:
        every = (
            Case("small population", _population, AUTHORS, 8, (6,), batch_size=8),
            Case("small multitask", _multitask, PYG, 8, (6,), batch_size=8),
            Case("small zinc-sized", _zinc, PYG, 16, batch_size=16),
        )
    elif kind == "cpu" and only is None:
        every = every[1:]
    if only is None:
        return every
    chosen = {case.name.removeprefix("small "): case for case in every}
    return (lookup("case", only, chosen),)


def measure_case(
    case: Case,
    device: torch.device | str = "cpu",
    seconds: float = 5.0,
    compiled: bool = True,
    doing: Say = print,
) -> list[Result]:
    """All rows of a case; whatever fails becomes a row whose note tells of it."""
    device = torch.device(device)
    results: list[Result] = []

    def measure() -> None:
        doing(f"{case.name}: making {case.size}")
        contenders = case.make(case, device)
        if not compiled:
            contenders = [c for c in contenders if c.name != COMPILED]
        results.extend(_race(case, contenders, device, seconds, doing))

    with without_tf32():
        _, problem = attempt(measure)
    if problem is not None:
        results.append(_row(case, Contender("all", lambda: None, 0), note=problem))
    torch.compiler.reset()
    release()
    return results


def _race(
    case: Case, contenders: list[Contender], device: torch.device, seconds: float, doing: Say
) -> list[Result]:
    """A first epoch each, in which they compile and record; then in turns."""
    failed: dict[str, str | None] = {}
    for contender in contenders:
        limit = _LONGEST_COMPILATION if contender.name == COMPILED else None
        hint = ", which may compile for minutes" if limit else ""
        doing(f"{case.name}: first epoch of {contender.name}{hint}")
        with _at_most(limit):
            _, problem = attempt(contender.epoch)
        if problem is not None:
            failed[contender.name] = problem
    standing = [c for c in contenders if c.name not in failed]
    doing(f"{case.name}: timing {' / '.join(c.name for c in standing)}")
    times: dict[str, dict[str, float]] = {}
    in_turns, _ = attempt(time_calls, [c.epoch for c in standing], device, seconds)
    for i, contender in enumerate(standing):
        timing = None if in_turns is None else in_turns[i]
        if timing is None:
            timing, failed[contender.name] = attempt(time_call, contender.epoch, device, seconds)
        if timing is not None:
            taken = {"ms": timing.median, "ms_low": timing.low, "ms_high": timing.high}
            times[contender.name] = {name: 1e3 * value for name, value in taken.items()}
    rate = {c.name: 1e3 * c.members / times[c.name]["ms"] for c in standing if c.name in times}
    rows = []
    if case.published:
        rate[AUTHORS] = 1 / AUTHORS_SECONDS
        authors = Contender(AUTHORS, lambda: None, contenders[0].parameters)
        note = "a constant: measured before on one H200, not in this run"
        rows = [_row(case, authors, {"ms": 1e3 * AUTHORS_SECONDS}, rate, note)]
    return [
        *(_row(case, c, times.get(c.name, {}), rate, failed.get(c.name)) for c in contenders),
        *rows,
    ]


def _row(
    case: Case,
    contender: Contender,
    times: dict[str, float] | None = None,
    rate: dict[str, float] | None = None,
    note: str | None = None,
) -> Result:
    own, other = (None if rate is None else rate.get(n) for n in (contender.name, case.beside))
    graphs = case.graphs * max(len(case.sizes), 1)
    return Result(
        case.name, contender.name, contender.members, contender.parameters or None, graphs,
        case.batch_size, **(times or {}), per_second=own,
        faster=None if own is None or other is None else own / other,
        beside=None if other is None else case.beside, note=note,
    )  # fmt: skip


def _population(case: Case, device: torch.device) -> list[Contender]:
    """Ten runs at once, and one."""
    graphs = _graphs(case)
    ten, one = (_trained(graphs, case, device, members) for members in (10, 1))
    return [ten, one]


def _multitask(case: Case, device: torch.device) -> list[Contender]:
    """One run of ours, and PyG's."""
    graphs = _graphs(case)
    ours = _trained(graphs, case, device, 1)
    return [Contender(OURS, ours.epoch, ours.parameters), *_pyg_multitask(graphs, case, device)]


def _graphs(case: Case) -> GraphSet:
    counts = {"train": case.graphs, "validation": max(case.graphs // 4, 1), "test": 0}
    return multitask(0, "published", sizes=case.sizes, counts=counts)


def _trained(graphs: GraphSet, case: Case, device: torch.device, members: int) -> Contender:
    settings = Settings(
        members=members, batch_size=case.batch_size, shuffle=False, lr=(0.003,),
        weight_decay=(1e-6,), patience=None,
    )  # fmt: skip
    parts = graphs.split("train"), graphs.split("validation")
    trainer = _trainer(*parts, _RECURRENT, settings, "mse", device)
    numbers = itertools.count()
    name = f"{OURS}, {members} member{'s' if members > 1 else ''}"
    parameters = count_parameters(trainer.population.model)
    return Contender(name, lambda: trainer.run_epoch(next(numbers)), parameters, members)


def _trainer(
    training: GraphSet,
    validation: GraphSet,
    model: ModelSettings,
    settings: Settings,
    loss: str,
    device: torch.device,
) -> Trainer:
    tasks = tasks_of(training, loss)
    model = fitted(model, training, tasks)
    population = Population([build(model, seed) for seed in settings.seeds]).to(device)
    return Trainer(population, tasks, settings, training.to(device), validation.to(device))


def _pyg_multitask(graphs: GraphSet, case: Case, device: torch.device) -> list[Contender]:
    """The same batches to train on; to validate, one for each size: so deep is the model."""
    if not has_pyg():
        return []
    from pna.bench.pyg_models import Recurrent

    training, validation = graphs.split("train"), graphs.split("validation")
    assert training.x is not None
    degrees = torch.bincount(training.degree.long())
    widths = training.x.shape[1], 16, len(graphs.node_targets), len(graphs.graph_targets)
    model = Recurrent(*widths, degrees).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003, weight_decay=1e-6)
    to_train = _pyg_batches(training, case.batch_size, device)
    to_validate = _pyg_batches(validation, len(validation) // len(case.sizes), device)

    def loss(batch: Any, size: int) -> Tensor:
        node, graph = model(batch, size)
        errors = [(node - batch.y_node).square().mean(0), (graph - batch.y_graph).square().mean(0)]
        return torch.cat(errors).mean()

    def epoch() -> None:
        model.train()
        for batch, size in to_train:
            _step(optimiser, loss(batch, size))
        model.eval()
        with torch.no_grad():
            torch.stack([loss(batch, size) for batch, size in to_validate]).mean()

    return [Contender(PYG, epoch, count_parameters(model))]


def _pyg_batches(graphs: GraphSet, batch_size: int, device: torch.device) -> list[tuple[Any, int]]:
    """Batches with scaled targets on the device, and how many nodes their graphs have."""
    from torch_geometric.data import Batch

    data = graphs.to_pyg()
    found = []
    for first in range(0, len(data), batch_size):
        batch = Batch.from_data_list(data[first : first + batch_size])
        batch.y_node = batch.y_node / torch.tensor(graphs.node_scale)
        batch.y_graph = batch.y_graph / torch.tensor(graphs.graph_scale)
        size = int(graphs.sizes[first])
        assert bool((graphs.sizes[first : first + batch_size] == size).all())
        found.append((batch.to(device), size))
    return found


def _zinc(case: Case, device: torch.device) -> list[Contender]:
    """An epoch without validation of the model of PyG's example."""
    graphs = molecules(case.graphs)
    settings = Settings(batch_size=case.batch_size, shuffle=True, lr=(1e-3,), patience=None)
    trainer = _trainer(graphs, graphs[:1], _STACKED, settings, "mae", device)
    numbers = itertools.count()

    def epoch() -> None:
        trainer.population.train()
        trainer.training.run(next(numbers))

    ours = Contender(OURS, epoch, count_parameters(trainer.population.model))
    return [ours, *_pyg_zinc(graphs, case, device)] if has_pyg() else [ours]


def _pyg_zinc(graphs: GraphSet, case: Case, device: torch.device) -> Iterator[Contender]:
    """With its loader; on a GPU also with batches made beforehand, and compiled as well."""
    from torch_geometric.loader import DataLoader

    from pna.bench.pyg_models import Molecules

    data = graphs.to_pyg()
    for graph in data:
        graph.y = graph.y / graphs.graph_scale[0]
    loader = DataLoader(data, batch_size=case.batch_size, shuffle=True)
    degrees = torch.bincount(graphs.degree.long())

    def contender(name: str, batches: Sequence[Any] | Any, compiled: bool = False) -> Contender:
        model = Molecules(ATOMS, BONDS, degrees).to(device)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        forward: Any = torch.compile(model, dynamic=True) if compiled else model

        def epoch() -> None:
            model.train()
            for batch in batches:
                b = batch.to(device)
                out = forward(b.x, b.edge_index, b.edge_attr, b.batch, b.num_graphs)
                _step(optimiser, F.l1_loss(out, b.y.squeeze(1)))

        return Contender(name, epoch, count_parameters(model))

    yield contender(PYG, loader)
    if device.type == "cuda":
        loaded = [batch.to(device) for batch in loader]
        yield contender(LOADED, loaded)
        yield contender(COMPILED, loaded, compiled=True)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Interrupt what takes longer, where that can be done: in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
