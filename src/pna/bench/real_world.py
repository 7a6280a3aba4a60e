"""An epoch of the paper's models on the real-world benchmarks, beside PyG's, in one process.

    for case in cases("cuda", Path("runs")):
        results = measure_case(case, "cuda")

Models and how they are trained are those of the experiments `zinc`, `molhiv`, `mnist` and
`cifar10`; an epoch is of the training split, without validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.bench.epoch_times import LOADED, PYG, Contender, EpochCase
from pna.bench.epochs import our_contender, pyg_contender, trainer_of, without_validation
from pna.bench.layer_cases import has_pyg
from pna.bench.measure import check_device
from pna.data.graphset import GraphSet
from pna.names import lookup
from pna.paper.experiment import PlannedRun
from pna.paper.real_world import RealWorld
from pna.paper.registry import EXPERIMENTS
from pna.train.models import fitted
from pna.train.tasks import tasks_of

EXAMPLE, EXAMPLE_LOADED = "PyG's example", "PyG's example, batches on the GPU"

#: The row of each experiment that is trained.
ROWS = {"zinc": "pna edges", "molhiv": "pna", "mnist": "pna edges", "cifar10": "pna edges"}

#: Graphs to train on, on a CPU and to try it out.
_ON_A_CPU, _SMALL = 1_280, 32

#: PyG's longer epochs are extrapolated from so many steps: some would take minutes.
_STEPS = 80

#: Losses of outputs (graphs, targets or classes) and the one target (graphs,).
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae_in_units": lambda out, y: F.l1_loss(out.squeeze(1), y),
    "bce": lambda out, y: F.binary_cross_entropy_with_logits(out.squeeze(1), y),
    "cross_entropy": lambda out, y: F.cross_entropy(out, y.long()),
}


def cases(
    device: torch.device | str,
    runs: Path,
    small: bool = False,
    only: str | None = None,
    workers: int = 1,
) -> Iterator[EpochCase]:
    """The benchmarks, their graphs read from the folder `runs`, or made into it, one by one."""
    kind = check_device(device)
    names = list(ROWS) if only is None else [lookup("case", only, {n: n for n in ROWS})]
    most = _SMALL if small else _ON_A_CPU if kind == "cpu" else None
    return (_case(name, runs, small, most, workers) for name in names)


def _case(name: str, runs: Path, small: bool, most: int | None, workers: int) -> EpochCase:
    trial = trial_of(name, ROWS[name], EXPERIMENTS[name].members)
    if small:
        trial = replace(trial, settings=replace(trial.settings, batch_size=16))
    called, baseline = f"small {name}" if small else name, EXAMPLE if name == "zinc" else PYG
    size = trial.settings.batch_size
    try:
        graphs = _training(name, trial, runs, workers, most)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        return EpochCase(called, partial(_fail, error), baseline, 0, batch_size=size)
    make = partial(_contenders, trial, graphs)
    return EpochCase(called, make, baseline, len(graphs), batch_size=size)


def trial_of(name: str, variant: str, members: int) -> PlannedRun:
    """The training of a row of an experiment, of so many members."""
    experiment = EXPERIMENTS[name]
    assert isinstance(experiment, RealWorld)
    # a name alone would stand for all groups of a row
    chosen = lookup("model", variant, {known.name: known for known in experiment.variants})
    (trial,) = experiment.trials(members=members, chosen=[chosen])
    # there is no validation, so the metric to select by does not matter
    return replace(trial, settings=replace(trial.settings, select="loss"))


def _training(name: str, trial: PlannedRun, runs: Path, workers: int, most: int | None) -> GraphSet:
    try:
        path = trial.graphs.made(runs, workers)
    except FileNotFoundError as error:
        path = runs / f"{name}.safetensors"
        raise FileNotFoundError(f"no graphs; pna data {name} --out {path} ({error})") from error
    return GraphSet.load(path).split("train")[:most]


def _fail(error: Exception, case: EpochCase, device: torch.device) -> list[Contender]:
    raise error


def _contenders(
    trial: PlannedRun, graphs: GraphSet, case: EpochCase, device: torch.device
) -> list[Contender]:
    """Our model, with one member and with all; the same of PyG's layers; PyG's example."""
    found = [_ours(trial, graphs, members, device) for members in (1, trial.settings.members)]
    if not has_pyg():
        return found
    from pna.bench.pyg_models import Benchmarked, Molecules

    model = fitted(trial.model, graphs, tasks_of(graphs, trial.loss))
    made = partial(Benchmarked, model)
    found += _pyg(made, lambda pyg, b: pyg(b), (PYG, LOADED), trial, graphs, device)
    if case.baseline == EXAMPLE:
        (atoms,), (bonds,) = (model.arguments[f"{of}_values"] for of in ("node", "edge"))
        example = partial(Molecules, atoms, bonds, torch.tensor(model.degrees))
        found += _pyg(example, _run_example, (EXAMPLE, EXAMPLE_LOADED), trial, graphs, device)
    return found


def _ours(trial: PlannedRun, graphs: GraphSet, members: int, device: torch.device) -> Contender:
    settings = replace(trial.settings, members=members)
    trainer = trainer_of(graphs, graphs[:1], trial.model, settings, trial.loss, device)
    return our_contender(trainer, without_validation(trainer))


def _run_example(model: nn.Module, b: Any) -> Tensor:
    out: Tensor = model(b.x, b.edge_index, b.edge_attr, b.batch, b.num_graphs)
    return out[:, None]


def _pyg(
    make: Callable[[], nn.Module],
    run: Callable[[nn.Module, Any], Tensor],
    names: tuple[str, str],
    trial: PlannedRun,
    graphs: GraphSet,
    device: torch.device,
) -> Iterator[Contender]:
    """PyG with its loader; on a GPU also with batches that are already there."""
    from torch_geometric.loader import DataLoader

    size, error = trial.settings.batch_size, _LOSSES[trial.loss]
    every = -(-len(graphs) // size)
    steps = min(every, _STEPS)
    share = min(steps * size, len(graphs)) / len(graphs)
    note = None if steps == every else f"told from {steps} of {every} steps"
    loader = DataLoader(graphs[: steps * size].to_pyg(), batch_size=size, shuffle=True)

    def contender(name: str, batches: Callable[[], Iterable[Any]]) -> Contender:
        model = make().to(device)

        def loss(batch: Any) -> Tensor:
            batch = batch.to(device)
            return error(run(model, batch), batch.y)

        return pyg_contender(name, model, loss, batches, trial.settings, share=share, note=note)

    with_loader, loaded = names
    yield contender(with_loader, lambda: loader)
    if device.type == "cuda":
        batches_on_device = [batch.to(device) for batch in islice(loader, steps)]
        yield contender(loaded, lambda: batches_on_device)
