"""Default settings that suit a graph set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from pna.data.graphset import GraphSet
from pna.data.molecule_features import RECORD
from pna.names import lookup
from pna.nn.architectures import ARCHITECTURES, DEFAULTS
from pna.nn.registry import CONVOLUTIONS
from pna.train.recipes import RECIPES, USUAL, ModelRecipe
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import LOSSES

_OTHERS: dict[str, Any] = {"architecture": "stacked", "loss": "mse"}
#: Settings, loss and architecture of benchmarks, by the name in the metadata of their graphs.
BENCHMARKS: dict[str, dict[str, Any]] = {
    # not shuffled, so that graphs of the same size are in the same batch
    "multitask": _OTHERS | {"architecture": "recurrent", "shuffle": False, "batch_size": 512},
    "zinc": _OTHERS | {"loss": "mae"},
    "molhiv": _OTHERS | {"loss": "bce"},
    "mnist": _OTHERS | {"loss": "cross_entropy"},
    "cifar10": _OTHERS | {"loss": "cross_entropy"},
}
#: Settings and arguments of stacked models for tables of molecules, chosen by validation losses on
#: tables of 100 to 8,000. The command-line help names them.
MOLECULES: dict[str, Any] = {
    "members": 5, "epochs": 50, "patience": None, "batch_size": 64, "schedule": "cosine",
    "warmup": 2, "lr": (1e-3,), "hidden": 64, "layers": 3,
    "graph_dropout": 0.3,  # if molecules have features of their own
}  # fmt: skip
#: Those that differ for fewer molecules than this, if these have features of their own.
FEW_MOLECULES = 3000
OF_FEW_MOLECULES: dict[str, Any] = {"lr": (2e-3,), "layers": 1}
#: Those that differ from this many molecules on.
MANY_MOLECULES = 6000
OF_MANY_MOLECULES: dict[str, Any] = {"epochs": 30, "batch_size": 128}


#: Nodes per batch, if neighbours are sampled.
SEEDS = 1024
NONE = RECIPES[USUAL]


def settings_for(
    graphs: GraphSet, given: Mapping[str, Any], recipe: ModelRecipe = NONE
) -> Settings:
    """`Settings` as given, else of the recipe, with defaults that suit these graphs."""
    names = {f.name for f in fields(Settings)}
    usual = {name: value for name, value in _usual(graphs).items() if name in names}
    usual |= recipe.settings
    if given.get("sample"):
        usual["batch_size"] = SEEDS
    return Settings(**{**usual, **given})


def loss_for(
    graphs: GraphSet, given: str | Mapping[str, str] | None = None
) -> str | dict[str, str]:
    """The loss as given, for all targets or for some by name.

    The defaults are those in the metadata of the graphs, then the usual loss of a benchmark, then
    "mse".
    """
    named: dict[str, str] = graphs.metadata.get("losses", {})
    if isinstance(given, str):
        return given
    if given:
        return named | dict(given)
    usual: str = _usual(graphs)["loss"]
    return named or usual


def model_for(
    graphs: GraphSet,
    convolution: str,
    given: Mapping[str, Any],
    loss: str | Mapping[str, str] | None = None,
    sample: Sequence[int] = (),
    recipe: ModelRecipe = NONE,
) -> ModelSettings:
    """`ModelSettings` and arguments of the architecture as given, else of the recipe, with defaults
    that suit these graphs. `sample` is that of the `Settings`: a fan-out for each layer."""
    loss = loss_for(graphs, loss)
    own = arguments_of(recipe, convolution, given)
    usual = "stacked" if own else _usual(graphs)["architecture"]
    architecture = given.get("architecture", usual)
    make = lookup("architecture", architecture, ARCHITECTURES)
    arguments = {**DEFAULTS[architecture], **_usual_arguments(graphs, architecture), **own, **given}
    if sample and "layers" in signature(make).parameters:
        arguments.setdefault("layers", len(sample))
    arguments.pop("architecture", None)
    hidden, init = arguments.pop("hidden"), arguments.pop("init", "default")
    if arguments.get("edges") is not False or graphs.edge_attr is None:
        arguments.pop("edges", None)
    if arguments.get("graph_features") is not False or graphs.x_graph is None:
        arguments.pop("graph_features", None)
    if arguments.get("direction") == "in":
        del arguments["direction"]  # the default, which all convolutions have
    takes = {*signature(make).parameters, "edges", "graph_features", "towers", "direction"}
    for name in arguments.keys() - own.keys():
        if name not in takes:
            able = lookup("argument of a model", name, _architectures_with())
            raise ValueError(
                f"got {name}={arguments[name]} for a {architecture} model, which does not have it; "
                f"leave it out, or use the architecture {' or '.join(able)}"
            )
    losses = {loss} if isinstance(loss, str) else set(loss.values())
    if any(not lookup("loss", name, LOSSES).scaled for name in losses):
        arguments["final"] = "none"  # logits may have any sign
    return ModelSettings(convolution, architecture, hidden, init, arguments)


def arguments_of(recipe: ModelRecipe, convolution: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a recipe; raises if it does not fit the model that is given."""
    own = dict(recipe.arguments)
    if not own:
        return own
    if given.get("architecture", "stacked") != "stacked":
        raise ValueError(
            f"got architecture={given['architecture']} with a recipe, expected stacked; leave one "
            "of them out"
        )
    able = [n for n, e in CONVOLUTIONS.items() if e.towers and e.edges and not e.carries]
    if convolution not in able:
        raise ValueError(
            f"got the model {convolution!r} with a recipe, expected one with towers and edge "
            f"features: {', '.join(able)}; leave one of them out"
        )
    hidden, towers = (given.get(name, own[name]) for name in ("hidden", "towers"))
    if towers > 0 and (hidden % towers or hidden == towers):
        near = max(hidden // towers, 2) * towers
        raise ValueError(
            f"got hidden={hidden} with a recipe of {towers} towers, expected a multiple of "
            f"{towers} above it; set hidden to {near} or {near + towers}"
        )
    own["out_channels"] = hidden - towers  # the last layer is narrower, as in the recipe
    return own


def _architectures_with() -> dict[str, list[str]]:
    """The architectures that take an argument, by the name of the argument."""
    having: dict[str, list[str]] = {}
    for architecture, make in ARCHITECTURES.items():
        for name in signature(make).parameters:
            having.setdefault(name, []).append(architecture)
    return having


def _usual(graphs: GraphSet) -> dict[str, Any]:
    others = _OTHERS
    if RECORD in graphs.metadata:
        others = _OTHERS | MOLECULES
        if len(graphs) >= MANY_MOLECULES:
            others |= OF_MANY_MOLECULES
        elif len(graphs) < FEW_MOLECULES and graphs.x_graph is not None:
            others |= OF_FEW_MOLECULES
    return BENCHMARKS.get(graphs.metadata.get("benchmark", ""), others)


def _usual_arguments(graphs: GraphSet, architecture: str) -> dict[str, Any]:
    """Arguments of the usual architecture that suit these graphs."""
    usual = _usual(graphs)
    if architecture != usual["architecture"]:
        return {}
    names = ["hidden", "layers", *([] if graphs.x_graph is None else ["graph_dropout"])]
    return {name: usual[name] for name in names if name in usual}
