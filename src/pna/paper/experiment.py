"""An experiment of the paper as data: which graphs, which populations, which tests of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pna.data.multitask import multitask
from pna.data.multitask.generate import COUNTS
from pna.data.multitask.labels import SIX
from pna.names import lookup
from pna.paper.claims import Claim
from pna.paper.models import MODELS
from pna.paper.recipes import RECIPES
from pna.train.settings import ModelSettings, Settings

Progress = Callable[[int, int], None]

#: Graphs with which others measure whether distances are learned: 5,120 to train, 640 to validate
#: and 1,280 to test.
PROPERTIES: dict[str, Any] = {
    "sizes": range(25, 35),
    "counts": {"validation": 64, "test": 128},
    "tasks": ("sssp", "eccentricity", "diameter"),
}

#: Graphs of each size in quick runs: an eighth of all.
QUICK_COUNTS = {"train": 64, "validation": 16, "test": 32}


class Source(Protocol):
    """Graphs that an experiment is run on."""

    @property
    def name(self) -> str:
        """Name of their file."""

    def made(self, folder: Path, workers: int = 1, progress: Progress | None = None) -> Path:
        """Their file in a folder, made if it is not there."""


@dataclass(frozen=True)
class Graphs:
    """A graph set of the multi-task benchmark, given by its settings."""

    protocol: str
    extrapolation: bool = False
    types: bool = False
    quick: bool = False
    draws: int = 1  # of sources and features for each training graph
    seed: int = 0  # of all graphs and inputs
    properties: bool = False  # whether sizes, counts and tasks are `PROPERTIES`

    @property
    def tasks(self) -> tuple[str, ...]:
        return PROPERTIES["tasks"] if self.properties else SIX

    @property
    def name(self) -> str:
        parts = {
            f"seed-{self.seed}": self.seed > 0,
            "properties": self.properties,
            "extrapolation": self.extrapolation,
            "types": self.types,
            "quick": self.quick,
            f"{self.draws}-draws": self.draws > 1,
        }
        return "-".join([self.protocol, *(name for name, is_so in parts.items() if is_so)])

    def made(self, folder: Path, workers: int = 1, progress: Progress | None = None) -> Path:
        """The file of these graphs in a folder, made if it is not there."""
        path = folder / f"{self.name}.safetensors"
        if not path.is_file():
            graphs = multitask(
                self.seed,
                self.protocol,
                extrapolation=self.extrapolation,
                types=self.types,
                draws=self.draws,
                workers=workers,
                progress=progress,
                **(PROPERTIES if self.properties else {})
                | ({"counts": QUICK_COUNTS} if self.quick else {}),
            )
            folder.mkdir(parents=True, exist_ok=True)
            graphs.save(path)
        return path


@dataclass(frozen=True)
class Variant:
    """A row of a table or a curve of a figure: one model, trained in one way.

    Variants of one `row` in several `group`s are compared with each other.
    """

    row: str
    label: str
    convolution: str
    group: str = ""
    architecture: str = "recurrent"
    hidden: int = 16
    arguments: dict[str, Any] = field(default_factory=dict)  # of the architecture
    changes: dict[str, Any] = field(default_factory=dict)  # to the recipe
    alone: int = 0  # if not 0: at most so many members for each task, which learn it alone
    walks: tuple[int, int] = (0, 0)  # steps of random walks as features of nodes and edges
    laplacian: tuple[int, int] = (0, 0)  # eigenvectors and times of `pna.data.laplacian`, likewise
    recipe: str = ""  # the name of its recipe, if not that of the experiment
    trained_as: str = ""  # the model whose settings of a recipe it gets, if not its own
    members: int = 0  # if not 0: instead of the experiment's number

    @property
    def name(self) -> str:
        return f"{self.row} {self.group}" if self.group else self.row


def variants(*names: str, **given: Any) -> tuple[Variant, ...]:
    """A row for each of these models of the synthetic experiments, by default for all of them."""
    return tuple(Variant(name, MODELS[name].label, name, **given) for name in names or MODELS)


@dataclass(frozen=True)
class PlannedRun:
    """A population to be trained: a variant with all settings."""

    variant: Variant
    graphs: Source
    model: ModelSettings
    settings: Settings
    loss: str = "mse"


@dataclass(frozen=True)
class Experiment:
    """A named figure or table of the paper."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    splits: tuple[str, ...] = ("test",)
    extrapolation: bool = False  # whether it trains and validates as for larger graphs
    types: bool = False  # whether it tests on every type of graph
    properties: bool = False  # whether its graphs are those of `PROPERTIES`
    protocols: tuple[str, ...] = ("paper",)
    recipes: tuple[str, ...] = tuple(RECIPES)  # the usual one first
    epochs: tuple[str, ...] = ("best",)  # which weights are tested, of those a run keeps
    scored: str = "best"  # the one of these whose score was published
    members: int = 10  # of a population, unless its variant says otherwise
    seed: int = 0  # of the weights of member 0
    graph_seed: int = 0  # of the graphs of the multi-task benchmark
    metric: str = "mse"  # of the tests, a key of `pna.train.metrics.METRICS`
    loss: str = "mse"
    claims: tuple[Claim, ...] = ()
    figure: str = "strips"  # of `pna.report.drawings.FIGURES`
    groups: Mapping[str, str] = field(default_factory=dict)  # how groups of variants are shown
    ordered: bool = False  # whether rows are shown in this order; else the best is first

    @property
    def measured(self) -> dict[str, tuple[str, str]]:
        """Split and epoch of every test, by the name it has among the splits of `Scores`."""
        if self.epochs == ("best",):
            return {split: (split, "best") for split in self.splits}
        return {f"{s}, {e} epoch": (s, e) for s in self.splits for e in self.epochs}

    def chosen(self, names: Sequence[str | Variant]) -> list[Variant]:
        """Variants with these rows or names, or these variants; all if none are given.

        The name of a row selects all of its groups.
        """
        known = dict.fromkeys(
            name for variant in self.variants for name in (variant.row, variant.name)
        )
        wanted = {name for name in names if isinstance(name, str)}
        these = [name for name in names if isinstance(name, Variant)]
        for name in wanted:
            lookup("model", name, known)
        return [v for v in self.variants if not names or wanted & {v.row, v.name} or v in these]

    def prepared(self, results: Path, protocol: str) -> Experiment:
        """This experiment, with what it takes from other experiments in a folder of results."""
        return self

    def tests(self, protocol: str, quick: bool = False) -> Source:
        """The graphs it is tested on, in `splits`."""
        return self._tests(protocol, quick)

    def tests_of(self, trial: PlannedRun, protocol: str, quick: bool = False) -> Source:
        """The graphs that one population is tested on, with the features it was trained with."""
        return self.tests(protocol, quick)

    def trials(
        self,
        protocol: str | None = None,
        recipe: str | None = None,
        members: int | None = None,
        quick: bool = False,
        chosen: Sequence[str | Variant] = (),
    ) -> list[PlannedRun]:
        """Populations of the rows chosen, by default of all. By default protocol and recipe are
        the experiment's first, and there are as many members as variant or experiment say."""
        protocol, recipe = protocol or self.protocols[0], recipe or self.recipes[0]
        lookup("protocol", protocol, dict.fromkeys(self.protocols))
        lookup("recipe", recipe, dict.fromkeys(self.recipes))
        return [
            self._trial(
                variant, protocol, recipe, members or variant.members or self.members, quick
            )
            for variant in self.chosen(chosen)
        ]

    def _tests(self, protocol: str, quick: bool) -> Graphs:
        return Graphs(
            protocol, self.extrapolation, self.types, quick, 1, self.graph_seed, self.properties
        )

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        arguments = dict(variant.arguments)
        if variant.convolution.startswith(("pna", "mpnn")):
            arguments.setdefault("towers", 4)
        how = RECIPES[variant.recipe or recipe].of(
            variant.trained_as or variant.convolution, variant.changes
        )
        draws = 1 if quick else how.draws
        graphs = replace(self._tests(protocol, quick), types=False, draws=draws)
        weights: tuple[tuple[float, ...], ...] = ()
        if variant.alone:
            tasks = len(graphs.tasks)
            members = tasks * min(members, variant.alone)
            weights = tuple(
                tuple(float(task == k % tasks) for task in range(tasks)) for k in range(members)
            )
        of_a_size = (QUICK_COUNTS if quick else COUNTS)["train"]
        settings = how.settings(
            members, quick, seed=self.seed, batch_size=of_a_size, task_weights=weights
        )
        model = ModelSettings(
            variant.convolution, variant.architecture, variant.hidden, how.init, arguments
        )
        return PlannedRun(variant, graphs, model, settings)
