"""Stored results beside those of the same populations trained again."""

from __future__ import annotations

import math

import numpy as np

from pna.paper.claims import OPEN, difference
from pna.paper.headline import headline, scored_test
from pna.report.benchmark import SHOWN
from pna.report.read import ExperimentResult
from pna.report.tables import TextTable, estimate


def headline_of(result: ExperimentResult) -> tuple[str, float, int]:
    """The headline number of a result: what it is, and the factor and digits it is shown with."""
    if result.experiment.figure != "benchmark":
        tests = "" if len(result.scores.splits) == 1 else " and tests"
        return f"mean of log10 errors over tasks{tests}", 1.0, 2
    what, times, digits = SHOWN[result.scores.metric]
    return f"{scored_test(result.experiment)}: {what}", times, digits


def comparison(stored: ExperimentResult, new: ExperimentResult) -> TextTable:
    """Means over members, their difference, and whether its 95% interval contains 0."""
    what, times, digits = headline_of(stored)
    rows = []
    for name in new.names:
        if name not in stored.scores.populations:
            continue
        before, after = (headline(r.experiment, r.scores, name, times) for r in (stored, new))
        change = difference(after, before)
        within = OPEN if math.isinf(change.half) else "no" if change.sign else "yes"
        if stored.scores.digest(name) == new.scores.digest(name):
            within = "identical"
        counts = (str(len(found.values)) for found in (before, after))
        both = (estimate(found, digits) for found in (before, after))
        rows.append((new.label(name), *counts, *both, change.with_digits(digits), within))
    heads = ("model", "stored runs", "new runs", "stored", "new", "new minus stored",
             "within the spread")  # fmt: skip
    known = stored.scores.baseline, new.scores.baseline
    same = all(np.allclose(known[0][split], known[1][split], rtol=1e-6) for split in known[1])
    graphs = "the same" if same else "OTHER"
    title = f"Stored and new, tested on {graphs} graphs, {what}"
    return TextTable(title, heads, tuple(rows))
