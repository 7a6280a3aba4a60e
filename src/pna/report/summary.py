"""The page that says in a minute whether PNA holds up: docs/results.md, made from results.

Every lead on it is in favour of a claim if it is above 0: how far PNA is ahead of its best rival,
or of a published number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pna.files import replacing
from pna.paper.claims import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Decide,
    Difference,
    Measured,
    best,
    difference,
    gaps,
    measured_as,
    on_average,
    on_task,
)
from pna.paper.models import LABELS, SINGLE
from pna.paper.published import published
from pna.paper.scores import BASELINE, LEVEL, Scores
from pna.paper.thresholds import within
from pna.report.page import render_text
from pna.report.read import ExperimentResult, find

_MODELS = tuple(LABELS)
NONE = "–"
_POINTS = " points"  # unit of areas and accuracies
_LASTING = " †"  # marks cells that hold if all comparisons share the 5%

#: Pages of details, in docs/results/.
PAGES = {
    "multitask": "six tasks at once, by every recipe; errors by type of graph",
    "extrapolation": "larger graphs, and models as deep as the diameter",
    "appendix": "moments, aggregators, parameters, architectures, single tasks",
    "training": "our recipe, one part left out at a time",
    "zinc": "molecules, mean absolute error",
    "molhiv": "molecules, area under the ROC curve",
    "superpixels": "MNIST and CIFAR10",
    "nodes": "tolokers and minesweeper, nodes of one graph",
}

#: By the folder of the results in the column "as in the paper": whether training and data are the
#: paper's.
SAME = {
    "multitask/published-plain": "yes, but for sizes of validation and test graphs",
    "multitask/paper-plain": "training yes; graphs as the paper describes, not as its code drew "
    "them",
    "extrapolation/paper-plain": "training yes; graphs as the paper describes",
    "parameters/paper-plain": "training yes; graphs as the paper describes",
    "zinc/benchmark-published": "yes, but for initial weights",
    "molhiv/benchmark-published": "PNA yes; the others are trained as PNA here",
}


@dataclass(frozen=True)
class Criterion:
    """One number that decides a claim: its verdict, and its lead, on the scores of a folder."""

    decide: Decide
    lead: Callable[[Scores], Difference]
    rival: Callable[[Scores], str] = lambda scores: ""


def ahead(name: str, others: Sequence[str], measured: Measured) -> Criterion:
    """The lead of a population over the closest of others."""

    def closest(scores: Scores) -> tuple[str, Difference]:
        return next(iter(gaps(scores, name, others, measured).items()))

    return Criterion(
        best(name, others, measured),
        lambda scores: _negative(closest(scores)[1]),
        lambda scores: closest(scores)[0],
    )


def below(name: str, limit: float, measured: Measured) -> Criterion:
    """How far a population is below a published error."""

    def lead(scores: Scores) -> Difference:
        found = measured(scores, name)
        return Difference(limit - found.mean, found.half)

    return Criterion(within(name, {"": (limit, measured)}), lead)


def _negative(gap: Difference) -> Difference:
    return Difference(-gap.mean, gap.half)


#: By the protocol of the graphs, "" for those of a benchmark, then by folder.
Tests = Mapping[str, Mapping[str, Criterion]]


@dataclass(frozen=True)
class Headline:
    """A row of the table: tests of one claim by graphs and by folder. Of the folders of the same
    graphs, the first one counts that has the models."""

    claim: str
    paper: float | None  # the lead in the paper
    plain: Tests  # trained as in the paper
    well: Tests  # trained well
    times: float = 1.0  # leads are shown multiplied by this, with these digits and a unit
    digits: int = 2
    unit: str = ""


@dataclass(frozen=True)
class Cell:
    """A headline decided by the results of one folder."""

    graphs: str  # their protocol
    folder: str
    outcome: str
    lead: Difference
    rival: str
    comparisons: int
    strict: Callable[[int], str]  # the outcome if so many comparisons share the 5%
    resampled: str  # the outcome with a bootstrap of the selection of runs

    def lasts(self, count: int) -> bool:
        """Whether it holds, and still does if so many comparisons share the 5%."""
        return self.outcome == self.strict(count) == HOLDS


def _paper_lead(experiment: str, name: str, others: Sequence[str], column: str) -> float | None:
    """Of the smallest error in the paper over that of a population; areas are negative errors."""
    table = published(experiment)
    sign = -1.0 if experiment == "molhiv" else 1.0
    known = [v for other in others if (v := table.get(other, column)) is not None and other != name]
    ours = table.get(name, column)
    return None if ours is None or not known else min(sign * v for v in known) - sign * ours


def _ratio(column: str) -> float:
    """PNA's published ratio to predicting the mean."""
    found = [published("multitask").get(row, column) for row in ("pna", BASELINE)]
    assert found[0] is not None and found[1] is not None
    return found[0] - found[1]


_PROTOCOLS = ("paper", "published")
_FRESH = "fresh-test"
_WITHOUT = "pna-no-scalers"


def _six(
    name: str, others: Sequence[str], fresh: Sequence[str] = (), well: str = "tuned"
) -> tuple[Tests, Tests]:
    """Tests on six tasks. On fresh graphs no run is selected; rivals may be others there."""
    usual = ahead(name, others, on_average())
    new = ahead(name, fresh or others, on_average(top=None))
    return (
        {graphs: {f"multitask/{graphs}-plain": usual} for graphs in _PROTOCOLS},
        {
            graphs: {f"{_FRESH}/{graphs}-chosen": new, f"multitask/{graphs}-{well}": usual}
            for graphs in _PROTOCOLS
        },
    )


def _like_published(column: str, measured: Measured) -> tuple[Tests, Tests]:
    """Published errors are of the graphs that the authors' code drew."""
    test = below("pna", _ratio(column), measured)
    return _of("published", "multitask", test, "tuned")


def _of(
    graphs: str, experiment: str, test: Criterion, well: str = "redrawn"
) -> tuple[Tests, Tests]:
    plain, ours = ({graphs: {f"{experiment}/{graphs}-{r}": test}} for r in ("plain", well))
    return plain, ours


def _real(
    experiment: str, claim: str, name: str, others: Sequence[str], split: str, metric: str
) -> Headline:
    shares = metric == "roc_auc"
    test = ahead(name, others, measured_as(metric, split))
    lead = _paper_lead(experiment, name, others, "test")
    times, digits, unit = (100.0, 1, _POINTS) if shares else (1.0, 3, "")
    plain = {"": {f"{experiment}/benchmark-published": test}}
    return Headline(claim, lead, plain, {}, times, digits, unit)


_ZINC = ("mpnn-sum", "mpnn-max", _WITHOUT, "gated-gcn", "gin", "gcn", "gat", "monet", "sage",
         "diffpool", "mlp", "mlp-gated")  # fmt: skip
_LARGE = "test 45-49"

#: The ten rows of the table.
HEADLINES = (
    Headline("PNA has the lowest error over six tasks",
             _paper_lead("multitask", "pna", _MODELS, "average"),
             *_six("pna", _MODELS)),
    Headline("Scalers help: PNA against PNA without scalers",
             _paper_lead("multitask", "pna", (_WITHOUT,), "average"),
             *_six("pna", (_WITHOUT,), (f"{_WITHOUT} equal",), "redrawn")),
    Headline("Several aggregators help: PNA without scalers against models with one",
             _paper_lead("multitask", _WITHOUT, SINGLE, "average"),
             *_six(_WITHOUT, SINGLE)),
    Headline("PNA has its published error over six tasks", 0.0,
             *_like_published("average", on_average(ratio=True))),
    Headline("PNA has its published error in shortest paths", 0.0,
             *_like_published("sssp", on_task("sssp", ratio=True))),
    Headline("PNA has the lowest error on graphs of 45 to 49 nodes",
             _paper_lead("extrapolation", "pna", _MODELS, _LARGE),
             *_of("paper", "extrapolation", ahead("pna", _MODELS, on_average(_LARGE)))),
    Headline("PNA with 16 features is ahead of other models with 20", None,
             *_of("paper", "parameters", ahead("pna", [f"{n} 20" for n in SINGLE], on_average()))),
    _real("zinc", "PNA has the lowest error on ZINC, without edge features", "pna", _ZINC,
          "test, last epoch", "mae"),
    _real("zinc", "PNA has the lowest error on ZINC, with edge features", "pna edges",
          [f"{name} edges" for name in _ZINC[:4]], "test, last epoch", "mae"),
    _real("molhiv", "PNA has the largest area on MolHIV", "pna",
          ("gcn", "gin", "gat", "mpnn-sum", "mpnn-max", _WITHOUT), "test, best epoch", "roc_auc"),
)  # fmt: skip


def _elsewhere(
    label: str,
    folder: str,
    name: str,
    others: Sequence[str],
    metric: str,
    split: str,
    is_plain: bool = False,
) -> Headline:
    """A row of no table: how far a population is ahead on real data."""
    tests: Tests = {"": {folder: ahead(name, others, measured_as(metric, split))}}
    times, digits, unit = (1.0, 3, "") if metric == "mae" else (100.0, 1, _POINTS)
    plain, ours = (tests, {}) if is_plain else ({}, tests)
    return Headline(label, None, plain, ours, times, digits, unit)


_RIVALS = [f"{name} edges" for name in _ZINC[:4]]
_LAST = "test, last epoch"
_BEST = "test, best epoch"

#: Experiments that are not in the table, by the names they have in a sentence. Superpixels are
#: trained as published; nodes are not in the paper, and neither are random walks.
ELSEWHERE = (
    _elsewhere("ZINC if both have random walks", "zinc/benchmark-published",
               "pna improved edges", ["mpnn-sum improved edges"], "mae", _LAST),
    *(_elsewhere(f"{label} superpixels", f"{label.lower()}/benchmark-published", "pna edges",
                 _RIVALS, "accuracy", _LAST, is_plain=True) for label in ("MNIST", "CIFAR10")),
    *(_elsewhere(name, f"{name}/benchmark-full-batch", "pna", ("gcn", "gin", "gat", "sage"),
                 "roc_auc", _BEST) for name in ("tolokers", "minesweeper")),
)  # fmt: skip

#: PNA against PNA without scalers, on real data.
SCALERS = tuple(
    _elsewhere(label, f"{name}/benchmark-published", f"pna{edges}", [f"{_WITHOUT}{edges}"],
               metric, split)
    for label, name, edges, metric, split in (
        ("ZINC without edge features", "zinc", "", "mae", _LAST),
        ("ZINC with edge features", "zinc", " edges", "mae", _LAST),
        ("MolHIV", "molhiv", "", "roc_auc", _BEST),
        ("MNIST superpixels", "mnist", " edges", "accuracy", _LAST),
        ("CIFAR10 superpixels", "cifar10", " edges", "accuracy", _LAST),
    )
)  # fmt: skip


def cell(
    tests: Mapping[str, Criterion], results: Mapping[str, ExperimentResult], graphs: str = ""
) -> Cell | None:
    """The first folder whose scores decide; None if no folder has the models."""
    for folder, test in tests.items():
        if folder not in results:
            continue
        scores = results[folder].scores
        verdict = test.decide(scores)
        if verdict.outcome == NOT_RUN or "were run" in verdict.because:
            continue

        def strict(count: int, test: Criterion = test, scores: Scores = scores) -> str:
            return test.decide(replace(scores, level=1 - (1 - LEVEL) / count)).outcome

        resampled = test.decide(replace(scores, resampled=True)).outcome
        rival = test.rival(scores)
        label = results[folder].label(rival, with_group=False).partition(" + ")[0] if rival else ""
        return Cell(graphs, folder, verdict.outcome, test.lead(scores), label,
                    verdict.comparisons, strict, resampled)  # fmt: skip
    return None


@dataclass(frozen=True)
class DecidedRow:
    """A headline with what decides it."""

    headline: Headline
    plain: list[Cell]
    well: list[Cell]

    @property
    def cells(self) -> list[Cell]:
        return [*self.plain, *self.well]

    @property
    def paper(self) -> str:
        return NONE if self.headline.paper is None else self._number(self.headline.paper)

    @property
    def same(self) -> str:
        each = (
            f"{f'`{found.graphs}`: ' if found.graphs else ''}{SAME[found.folder]}"
            for found in self.plain
        )
        return "<br>".join(each) or "not run"

    def shown(self, cells: Sequence[Cell], comparisons: int) -> str:
        """The cells of a column, as one. Those that hold among so many comparisons are marked."""
        each = (
            f"{f'`{found.graphs}`: ' if found.graphs else ''}{self.lead(found)}, "
            f"**{found.outcome}**{_LASTING if found.lasts(comparisons) else ''}"
            for found in cells
        )
        return "<br>".join(each) or NONE

    def says(self, cells: Sequence[Cell], with_rival: bool = True) -> str:
        """The verdicts of a column in a sentence."""
        each = []
        for found in cells:
            over = f" over {found.rival}" if with_rival and found.rival else ""
            where = f" on `{found.graphs}` graphs" if found.graphs else ""
            each.append(f"**{found.outcome}**{where} ({self.lead(found)}{over})")
        return ", ".join(each) or "not run"

    def lead(self, found: Cell) -> str:
        times, digits = self.headline.times, self.headline.digits
        shown = Difference(times * found.lead.mean, times * found.lead.half).with_digits(digits)
        return shown + self.headline.unit

    def _number(self, value: float) -> str:
        times, digits = self.headline.times, self.headline.digits
        sign = "+" if value else ""
        return f"{times * value:{sign}.{digits}f}{self.headline.unit}".replace("-", "−")


def by_verdict(rows: Sequence[tuple[str, DecidedRow]], with_rival: bool = True) -> str:
    """Rows by their names, those with the same verdict together."""
    found: dict[str, list[str]] = {}
    for name, row in rows:
        for each in row.cells:
            over = f" over {each.rival}" if with_rival else ""
            found.setdefault(each.outcome, []).append(f"{name} ({row.lead(each)}{over})")
    order = (o for o in (HOLDS, FAILS, OPEN) if o in found)
    parts = (f"**{outcome}** on {', '.join(found[outcome])}" for outcome in order)
    return ";\n   ".join(parts) or "not run"


def read(folder: Path) -> dict[str, ExperimentResult]:
    """Complete results in a folder, by their paths in it."""
    found = {path: ExperimentResult.read(path) for path in find(folder)}
    return {
        path.relative_to(folder).as_posix(): result
        for path, result in found.items()
        if not result.is_quick
    }


def rows(results: Mapping[str, ExperimentResult]) -> list[DecidedRow]:
    return [_decided(headline, results) for headline in HEADLINES]


def _decided(headline: Headline, results: Mapping[str, ExperimentResult]) -> DecidedRow:
    columns = (
        [found for graphs, by in tests.items() if (found := cell(by, results, graphs)) is not None]
        for tests in (headline.plain, headline.well)
    )
    return DecidedRow(headline, *columns)


def _claims(made: Sequence[DecidedRow], counts: Callable[[Cell], bool]) -> list[str]:
    """The claims of rows with a cell that counts."""
    return [row.headline.claim for row in made if any(map(counts, row.cells))]


def _gaining(results: Mapping[str, ExperimentResult]) -> list[str]:
    """Labels of the models that clearly gain from 20 features, of all runs."""
    result = results.get("parameters/paper-redrawn")
    if result is None:
        return []
    measured, scores = on_average(top=None), result.scores
    return [
        LABELS[name]
        for name in SINGLE
        if {name, f"{name} 20"} <= scores.populations.keys()
        and difference(measured(scores, f"{name} 20"), measured(scores, name)).sign < 0
    ]


def summary(results: Mapping[str, ExperimentResult]) -> str:
    """The page as Markdown."""
    made = rows(results)
    elsewhere, scalers = (
        [(headline.claim, _decided(headline, results)) for headline in headlines]
        for headlines in (ELSEWHERE, SCALERS)
    )
    others = [row for _, row in (*elsewhere, *scalers)]
    cells = [found for row in (*made, *others) for found in row.cells]
    on_six = [found for row in made[:3] for found in row.well]
    count = sum(found.comparisons for found in cells)
    *_, edges, molhiv = made
    real = [("ZINC with edge features", edges), ("MolHIV", molhiv), *elsewhere]
    every = [
        claim.decide(result.scores)
        for result in results.values()
        for claim in result.experiment.claims
    ]
    return render_text(
        "results.md", rows=made, count=count, cells=len(cells), real=by_verdict(real),
        with_scalers=by_verdict(scalers, with_rival=False),
        holding=sum(found.outcome == HOLDS for row in made for found in row.cells),
        lasting=sum(found.lasts(count) for row in made for found in row.cells),
        resampled=_claims((*made, *others), lambda found: found.outcome != found.resampled),
        origins=published("multitask").counted(),
        is_fresh=any(found.folder.startswith(_FRESH) for found in on_six),
        is_seen=not all(found.folder.startswith(_FRESH) for found in on_six),
        fresh=sorted({found.graphs for found in on_six if found.folder.startswith(_FRESH)}),
        pages=PAGES.items(),
        claims=sum(v.outcome != NOT_RUN for v in every),
        comparisons=sum(v.comparisons for v in every if v.outcome != NOT_RUN),
        gaining=_gaining(results),
    )  # fmt: skip


@dataclass(frozen=True)
class Lead:
    """A row of the figure: the lead of PNA over its best rival in an experiment."""

    label: str
    lead: Difference
    paper: float | None
    is_plain: bool  # trained as in the paper


#: Rows of the figure beside those of the table: label, folder, test, what leads are multiplied by.
_MORE = (
    *((f"six tasks, {recipe}, {graphs} graphs", f"multitask/{graphs}-{recipe}",
       ahead("pna", _MODELS, on_average()))
      for recipe in ("redrawn", "steady") for graphs in _PROTOCOLS),
    ("recurrent, eight models", "architectures/paper-redrawn",
     ahead("pna", (*_MODELS, "mpnn-mean-max-min"), on_average())),
    ("standard, eight models", "architectures/paper-redrawn",
     ahead("pna standard", [f"{n} standard" for n in (*_MODELS, "mpnn-mean-max-min")],
           on_average())),
    ("20 to 24 nodes", "extrapolation/paper-redrawn",
     ahead("pna", _MODELS, on_average("test 20-24"))),
    ("45 to 49 nodes, as deep as the diameter", "diameter/paper-redrawn",
     ahead("pna", _MODELS, on_average(_LARGE))),
)  # fmt: skip


def panels(results: Mapping[str, ExperimentResult]) -> dict[str, list[Lead]]:
    """Leads of PNA over its best rival, by what they are measured in."""
    lowest, _, _, _, _, large, wide, zinc, zinc_edges, molhiv = rows(results)
    others = [_decided(headline, results) for headline in ELSEWHERE]
    synthetic = [
        *_leads("six tasks", lowest), *_leads("45 to 49 nodes", large),
        *_leads("other models with 20 features", wide), *_others(_MORE, results),
    ]  # fmt: skip
    errors, areas = (
        [lead for row in others if row.headline.unit == unit
         for lead in _leads(row.headline.claim.removeprefix("ZINC "), row)]
        for unit in ("", _POINTS)
    )  # fmt: skip
    return {
        "Synthetic graphs: log10 of the error": synthetic,
        "ZINC: mean absolute error": [
            *_leads("without edge features", zinc), *_leads("with edge features", zinc_edges),
            *errors,
        ],
        "Areas and accuracies, percentage points": [*_leads("MolHIV, area", molhiv), *areas],
    }  # fmt: skip


_PLAIN, _OURS = "plain", "ours"


def _leads(label: str, row: DecidedRow) -> list[Lead]:
    times = row.headline.times
    paper = None if row.headline.paper is None else times * row.headline.paper
    both, several = row.plain and row.well, len({found.graphs for found in row.cells}) > 1
    return [
        Lead(label + (f", {how}" if both else "")
             + (f", {found.graphs} graphs" if several else ""),
             Difference(times * found.lead.mean, times * found.lead.half), paper, how == _PLAIN)
        for how, cells in ((_PLAIN, row.plain), (_OURS, row.well))
        for found in cells
    ]  # fmt: skip


def _others(
    tests: Sequence[tuple[str, str, Criterion]], results: Mapping[str, ExperimentResult]
) -> Iterator[Lead]:
    for label, folder, test in tests:
        found = cell({folder: test}, results)
        if found is not None:
            yield Lead(label, found.lead, None, False)


def write_summary(path: Path, results: Path) -> list[Path]:
    """Write the page, and beside it its figure and the page of PNA at its best; returns them."""
    from pna.report.best import best_page
    from pna.report.figures import save_svg
    from pna.report.leads import draw_leads

    found = read(results)
    best = path.with_name("best.md")
    for page, text in ((path, summary(found)), (best, best_page(found))):
        with replacing(page) as file:
            file.write(text)
    drawn = path.parent / "figures" / "leads.svg"
    drawn.parent.mkdir(exist_ok=True)
    save_svg(draw_leads(panels(found)), drawn)
    return [path, best, drawn]
