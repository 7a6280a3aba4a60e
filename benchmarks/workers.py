"""How many trainings should share a GPU: epochs per second of 1, 2, 4, … processes in all.

    nvidia-cuda-mps-control -d
    python benchmarks/workers.py multitask pna --recipe plain --workers 1,4,8,16

Every process trains the same population of `pna reproduce`. Counting begins when all of them have
recorded their steps, and ends after `--seconds`. Graphs are looked for, or made, in `--runs`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from pna.names import lookup
from pna.paper.experiment import PlannedRun
from pna.paper.registry import EXPERIMENTS
from pna.paper.workers import OnEpoch, run_jobs
from pna.train.loop import train

_WARM_UP = 4  # epochs: kernels are compiled in the first, steps recorded in the third
_ENDLESS = 10**6  # epochs


def main() -> None:
    arguments = _arguments()
    experiment = lookup("experiment", arguments.experiment, EXPERIMENTS)
    experiment = experiment.prepared(Path("results"), experiment.protocols[0])
    (trial, *_) = experiment.trials(
        recipe=arguments.recipe, members=arguments.members, chosen=[arguments.row]
    )
    data = trial.graphs.made(arguments.runs)
    alone = 0.0
    print(f"{trial.variant.name}, {trial.settings.members} members")
    print(f"{'processes':>9} {'epochs/s, all':>14} {'epochs/s, each':>15} {'times one':>10}")
    for workers in map(int, arguments.workers.split(",")):
        rate = measured(trial, data, workers, arguments.seconds)
        alone = alone or rate / workers
        print(f"{workers:9d} {rate:14.2f} {rate / workers:15.2f} {rate / alone:10.2f}", flush=True)


def measured(trial: PlannedRun, data: Path, workers: int, seconds: float) -> float:
    """Epochs per second of all processes together."""
    done: dict[str, int] = {}
    begun: tuple[float, int] | None = None
    rate = 0.0

    def on_epoch(name: str, epoch: int) -> None:
        nonlocal begun, rate
        done[name] = epoch
        if len(done) < workers or min(done.values()) < _WARM_UP:
            return
        now, epochs = perf_counter(), sum(done.values())
        if begun is None:
            begun = now, epochs
        elif now - begun[0] >= seconds:
            rate = (epochs - begun[1]) / (now - begun[0])
            raise TimeoutError  # ends all trainings

    with TemporaryDirectory() as folder:
        jobs = [(str(k), trial, data, Path(folder, str(k))) for k in range(workers)]
        try:
            run_jobs(_train, jobs, workers, on_epoch, threads=1)
        except TimeoutError:
            return rate
    raise ValueError(
        f"all {_ENDLESS:,} epochs ended before {seconds} s; choose a larger population"
    )


def _train(name: str, trial: PlannedRun, data: Path, folder: Path, on_epoch: OnEpoch) -> None:
    settings = replace(
        trial.settings, epochs=_ENDLESS, patience=None, schedule="constant", warmup=0
    )
    train(
        data, folder, trial.model, settings, loss=trial.loss, log_every=1,
        report=lambda now: on_epoch(name, now.epoch),
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="such as multitask")
    parser.add_argument("row", help='one population, such as pna or "pna edges"')
    parser.add_argument("--recipe", help="the experiment's first if not given")
    parser.add_argument("--members", type=int, help="as many as are reproduced if not given")
    parser.add_argument("--workers", default="1,2,4,8", help="numbers of processes")
    parser.add_argument("--seconds", type=float, default=10, help="of counting, for each number")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
