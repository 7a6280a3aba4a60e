"""The best runs of populations, kept with the results: small enough for the repository."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pna.paper.experiment import Experiment
from pna.paper.registry import EXPERIMENTS
from pna.paper.reproduce import Options, folder_of, throttled
from pna.train.run import Run, write_json, write_member

ORIGIN = "origin.json"  # in the folder of a run: of which population it is a member


def keep_weights(
    experiment: Experiment,
    out: Path,
    runs: Path,
    options: Options,
    folder: Path,
    log: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write the member with the lowest validation loss of every chosen population as a run of its
    own, such as `folder`/zinc-pna-edges, with the weights of the epoch whose score was published.

    Populations whose runs are gone are left out; the log says so.
    """
    protocol = options.protocol or experiment.protocols[0]
    recipe = options.recipe or experiment.recipes[0]
    experiment = experiment.prepared(out.parent.parent, protocol)
    trials = experiment.trials(protocol, recipe, options.members, options.quick, options.models)
    written = []
    for trial in trials:
        run = Run((options.again or runs) / folder_of(trial))
        name = trial.variant.name
        if not run.exists or run.summary is None:
            log(f"no weights of {name}, as {run.folder} has no finished run; train it anew")
            continue
        losses = [np.inf if loss is None else loss for loss in run.summary["best"]]
        member = int(np.argmin(losses))
        at = folder / _name(experiment, protocol, recipe, name)
        data = f"runs/{trial.graphs.name}.safetensors"
        write_member(run, member, at, experiment.scored, data)
        origin = {"results": f"{experiment.name}/{protocol}-{recipe}", "population": name,
                  "member": member, "epoch": experiment.scored}  # fmt: skip
        write_json(at / ORIGIN, origin)
        log(f"wrote member {member} of {name} to {at}")
        written.append(at)
    return written


def make_graphs_of(run: Path, log: Callable[[str], None] = lambda _: None) -> None:
    """Make the graph set of a run that `keep_weights` wrote, as `pna reproduce` makes it, if its
    file is not there. Other runs are left alone."""
    if not (run / ORIGIN).is_file():
        return
    path = Path(Run(run).config.data["path"])
    if path.is_file():
        return
    for experiment in EXPERIMENTS.values():
        for protocol, recipe, quick in itertools.product(
            experiment.protocols, experiment.recipes, (False, True)
        ):
            for trial in experiment.trials(protocol, recipe, quick=quick):
                if trial.graphs.name == path.stem:
                    log(f"making the graphs {path}")
                    trial.graphs.made(path.parent, progress=throttled(log))
                    return


def _name(experiment: Experiment, protocol: str, recipe: str, population: str) -> str:
    """A folder's name, such as zinc-pna-edges or multitask-paper-plain-pna."""
    how = [] if protocol == "benchmark" else [protocol, recipe]
    return "-".join([experiment.name, *how, *population.split()])
