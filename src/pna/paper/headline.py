"""The number that a row of an experiment is known by."""

from __future__ import annotations

import numpy as np

from pna.paper.experiment import Experiment
from pna.paper.scores import Estimate, Scores


def headline(experiment: Experiment, scores: Scores, name: str, times: float = 1.0) -> Estimate:
    """The mean over all members of a population, which the least validation loss is first of.

    On a benchmark it is the test metric at the epoch whose score was published, multiplied by
    `times`. Else it is the mean of log10 errors over the tasks and the tests.
    """
    if experiment.figure == "benchmark":
        return scores.mean(name, scored_test(experiment), times)
    each = [scores.average(name, split, None).values for split in scores.splits]
    return Estimate.of(np.mean(each, axis=0))


def scored_test(experiment: Experiment) -> str:
    """The test of a benchmark whose score was published, such as "test, last epoch"."""
    return f"test, {experiment.scored} epoch"
