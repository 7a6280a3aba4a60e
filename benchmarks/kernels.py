"""Where the time of a training goes: the kernels of an epoch of one population, the slowest first.

    python benchmarks/kernels.py zinc "pna edges"
    python benchmarks/kernels.py moments moments-3 --members 10 --graphs 2560

Needs a GPU to say something of one; on a CPU it lists operators. Graphs are looked for, or made, in
the folder of `--runs`, as by `pna reproduce`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from pna.bench.epochs import trainer_of, without_validation
from pna.data.graphset import GraphSet
from pna.names import lookup
from pna.paper.registry import EXPERIMENTS

_WARM_UP = 3  # epochs: kernels are compiled in the first, steps recorded in the third
_SHOWN = 25


def main() -> None:
    arguments = _arguments()
    experiment = lookup("experiment", arguments.experiment, EXPERIMENTS)
    members, protocol = arguments.members or experiment.members, experiment.protocols[0]
    experiment = experiment.prepared(Path("results"), protocol)
    trial = experiment.trials(protocol, members=members, chosen=[arguments.row])[0]
    graphs = GraphSet.load(trial.graphs.made(arguments.runs)).split("train")[: arguments.graphs]
    device = torch.device(arguments.device)
    settings = replace(trial.settings, select="loss")
    trainer = trainer_of(graphs, graphs[:1], trial.model, settings, trial.loss, device)
    epoch = without_validation(trainer)
    for _ in range(_WARM_UP):
        epoch()
    took = _timed(epoch, device)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds) as profiler:
        _timed(epoch, device)
    found: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if device.type == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA:
            own = event.self_cpu_time_total if device.type == "cpu" else event.device_time
            found[event.name].append(own)
    total = sum(map(sum, found.values()))
    steps = -(-len(graphs) // settings.batch_size)
    print(f"{trial.variant.name}, {members} members: {took * 1e3:.1f} ms an epoch of {steps} steps")
    print(
        f"{sum(map(len, found.values())) / steps:.0f} kernels a step, {total / 1e3:.1f} ms in all"
    )
    print(f"{'share':>6} {'ms':>8} {'calls':>7} {'µs each':>8}  kernel")
    for name, times in sorted(found.items(), key=lambda one: -sum(one[1]))[:_SHOWN]:
        own = sum(times)
        print(
            f"{own / total:6.1%} {own / 1e3:8.2f} {len(times):7d} {own / len(times):8.1f}  {name}"
        )


def _timed(epoch, device: torch.device) -> float:
    begin = perf_counter()
    epoch()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - begin


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="such as zinc")
    parser.add_argument("row", help='one population, such as "pna edges"')
    parser.add_argument("--members", type=int, default=0, help="as many as are reproduced if 0")
    parser.add_argument("--graphs", type=int, help="the first so many alone")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
