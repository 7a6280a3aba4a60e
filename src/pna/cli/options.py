"""Options of the commands, which docstrings explain, and those of every command that trains."""

from __future__ import annotations

import csv
import functools
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import fields
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from pna.data.edge_labels import MESSAGES
from pna.data.molecule_features import FEATURES
from pna.names import lookup
from pna.nn.architectures import ARCHITECTURES
from pna.nn.depth import RULES
from pna.nn.initial import INITIAL
from pna.nn.registry import CONVOLUTIONS
from pna.train.defaults import (
    FEW_MOLECULES,
    MANY_MOLECULES,
    MOLECULES,
    OF_FEW_MOLECULES,
    OF_MANY_MOLECULES,
)
from pna.train.recipes import FEW, RECIPES, USUAL, ModelRecipe
from pna.train.schedules import help_of_lowest, help_of_schedules
from pna.train.settings import ALL, OPTIMISERS, PRECISIONS, SELECTIONS, Settings
from pna.train.tasks import LOSSES

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])

Device = Annotated[
    str, typer.Option(help="Device: cpu, cuda or cuda:N. Default: a GPU if there is one, else cpu.")
]
AtLeast0 = Annotated[int, typer.Option(min=0)]
AtLeast1 = Annotated[int, typer.Option(min=1)]
Workers = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]
SliceNodes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With one graph: compute each layer for this many nodes at a time. Default: all at "
        "once if they fit into memory, otherwise as many as fit.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


class Training:
    """Options of commands that train. Fields of `Settings` have their types and defaults there.

    Table:
        targets: With a table of molecules: the columns to predict, separated by commas; one whose
            name has a comma in double quotes. Default: all columns of numbers.
        smiles: With a table: the column of the SMILES. Default: found by its name.
        split: With a table: how molecules are split. Values: scaffold, random, or a column that
            holds train, validation, test or calibration. Default: scaffold.
        split_seed: With a table: random seed of the random split and of --calibration. Default: 0.
        calibration: With a table: share of the training molecules that are not trained on, such as
            0.1, to calibrate predictions; pna predict --interval needs them. Default: 0.
        weight: With a table: a column of numbers of at least 0, the weights of the molecules in the
            loss. Default: all molecules have the same weight.
        skip: With a table: leave out rows that RDKit refuses. Default: a row that it cannot read is
            an error.
        keep: With a table and --skip: keep molecules that RDKit refuses because an atom has too
            many bonds. Default: no.
        strict: With a table: rows that RDKit refuses, and doubtful rows, are an error. Default: no.
        take_limits: With a table: take 0.01 as the number of a cell such as <0.01. Default: an
            error.
        encoding: With a table: its encoding, such as latin-1. Default: utf-8.
        features: With a table: features of the molecules, separated by commas, ogb first.
            {features} A number sets the size of all but the first two, such as morgan=1024.
            Default: ogb,descriptors.

    Model:
        model: Graph convolution. {convolutions} Default: pna.
        architecture: Model around the convolutions. {architectures} Default: recurrent for the
            multi-task benchmark, else stacked.
        hidden: Number of features per node. Default: 64 if stacked, else 16.
        towers: Number of towers of a layer: groups of features, each with weights of its own.
            Default: 1 if stacked, else 4.
        depth: Number of message-passing steps of a recurrent model. {rules} A whole number is
            allowed too. N is the number of nodes; adaptive stops when states no longer change.
            Default: N/2.
        layers: Number of convolutions of a stacked or standard model. Default: as many as numbers
            in --sample, if given; else 4 if stacked, 8 if standard.
        norm: Normalisation of a stacked model. Values: batch, layer (over the features of each
            node), none. Default: batch.
        residual: Add the input of each layer of a stacked model to its output. Default: yes.
        feed_forward: Add x + MLP(norm(x)) after each layer of a stacked model; the MLP is so many
            times as wide as the layer, such as 2. Default: 0 (none).
        dropout: Dropout probability, at least 0 and below 1. Default: 0.
        dropout_first: Apply dropout to the result of each layer of a stacked model before the
            layer's input is added, not after. Default: no.
        stochastic_depth: Probability that training leaves out the last layer of a stacked model for
            a graph, at least 0 and below 1; for the other layers it is proportionally lower.
            Default: 0.
        readout: Pooling from nodes to graphs. Values: sum, mean, max, and set2set for recurrent
            models. Default: set2set if recurrent, sum if stacked, mean if standard.
        virtual_node: Add a node that is connected to all nodes of a graph. Only for stacked models.
            Default: no.
        edge_updates: Update edge states after each layer, from both ends and the edge. Only for
            stacked models. Default: no.
        direction: Along which edges nodes receive messages. Values: in, both. both: also against
            the direction of the edges, with weights of their own. Only for pna and mpnn models.
            Default: in.
        init: Initialisation of the weights. {initial} published is the authors'; with remembering,
            GRUs keep most of their state at first. Default: default (PyTorch's).
        edges: Use edge features. Default: yes, if the graphs have them.
        graph_features: Use features of whole graphs. Only for stacked models and targets of graphs.
            Default: yes, if the graphs have them.
        graph_width: Width to which a stacked model reduces graph features. Default: --hidden.
        graph_dropout: Probability of dropping a graph feature, at least 0 and below 1. Default: 0.

    Training:
        recipe: Model and training. Options that you give replace those of the recipe.
            {recipes} usual: the defaults. best: a larger PNA with random walks as features,
            trained for long; for thousands of molecules or graphs. It was chosen on ZINC; on
            Lipophilicity one model was no better than one of the defaults. Default: usual.
        members: Number of models trained at once, each with its own seed.
        seed: Random seed of member 0; member k uses seed + k.
        data_seed: Random seed of the order of the graphs.
        epochs: Maximum number of epochs.
        patience: Early stopping: a member stops after this many epochs without a better validation
            loss; 0: no early stopping.
        select: What selects the best epoch of a member on validation: the loss, or a metric, of
            several targets its mean. {selections} Errors are in the units of the targets.
        threshold: From which probability on class 1 is predicted; for targets trained with bce.
            Values: half (0.5), f1 and balanced_accuracy (the one with the largest F1 or balanced
            accuracy on validation, chosen at the end).
        batch_size: Number of graphs per batch; with --sample, number of nodes or edges to train on.
            Default: 512 for the multi-task benchmark, 1024 with --sample, else 128.
        sample: Sample neighbours of one large graph: for each layer, how many in-neighbours of a
            node to take at most, such as 15,10,5. The first number is for the nodes whose targets
            are trained on, or the ends of such edges. Default: all neighbours, or 15,10,5 if all
            seem to need more memory than is free.
        full_batch: Take all neighbours of one large graph, even if they seem to need more memory
            than is free. Default: no.
        shuffle: Draw a new order of the graphs every epoch. Default: yes, except for the multi-task
            benchmark.
        optimiser: Optimiser. {optimisers}
        lr: Learning rate: one value, or one per member separated by commas.
        weight_decay: Weight decay: one value, or one per member separated by commas.
        schedule: {schedules}
        warmup: Number of epochs in which the learning rate rises linearly from 0.
        decay: Factor by which `plateau` multiplies the learning rate.
        plateau: Number of epochs without a better validation loss after which `plateau` lowers the
            learning rate.
        min_lr: {lowest}
        clip: Clip the norm of each member's gradient to this. Default: no clipping.
        average: Decay of an exponential moving average of the weights, such as 0.999. The average
            is validated and saved. Default: no average.
        precision: Floating-point precision. {precisions} bfloat16 is slow on a CPU.

    Targets:
        loss: Loss for all targets, or target=loss,… for some. {losses} mse, mae and huber
            divide targets by their scale; mae_in_units does not. Default: the usual loss of a
            benchmark, bce for two classes and for the 0 or 1 columns of a table, cross_entropy
            for more classes of one graph, else mse.
        weights: Weights of the losses: target=2,… Default: 1 each.
        balance: Divide each loss by the variance of its targets. Default: no.
        class_weights: Weights of the classes of a target in its loss: target=1:5,… with a weight
            for each class. Default: 1 each.
        balance_classes: Weight classes by the inverse of their frequency in the training rows, so
            that all classes count the same. Default: no.
        even: Weight each loss by the inverse of its value in the last epoch, so that small losses
            fall as fast as large ones. Default: no.
        mask_column: Which split of one graph with several given splits: its number, counted from 0,
            or all, to train a member for each split. Default: 0.
        tasks: Targets to train on, separated by commas. Default: all.
        splits: Names of the splits to train and to validate on, separated by a comma.
            Default: train,validation.
        message_edges: Which edges of one graph with edge targets send messages. {messages} all:
            every edge, its target is hidden. train: an edge to be validated or tested does not send
            before that.
    """

    targets: str
    smiles: str
    split: str
    split_seed: int
    calibration: float
    weight: str
    skip: bool
    keep: bool
    strict: bool
    take_limits: bool
    encoding: str
    features: str
    model: str
    architecture: str
    hidden: int
    towers: int
    depth: str
    layers: int
    norm: str
    residual: bool
    feed_forward: float
    dropout: float
    dropout_first: bool
    stochastic_depth: float
    readout: str
    virtual_node: bool
    edge_updates: bool
    direction: str
    init: str
    edges: bool
    graph_features: bool
    graph_width: int
    graph_dropout: float
    recipe: str
    loss: str
    weights: str
    class_weights: str
    tasks: str
    splits: str


if Training.__doc__ is None:
    raise ImportError(
        "the docstrings of commands are their help, and python -OO removes them; use -O"
    )


def _values(names: Iterable[str]) -> str:
    return f"Values: {', '.join(names)}."


def _explained(of: Any) -> dict[str, dict[str, str]]:
    """The sections of a docstring, such as "Args:", each with an explanation by name."""
    found: dict[str, dict[str, str]] = {}
    for title, section in re.findall(r"^(\w+):\n((?: {4}.*\n?)+)", getdoc(of) or "", re.M):
        entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.M)
        found[title] = {name: " ".join(words.split()) for name, words in entries}
    return found


_WORDS = {
    "convolutions": _values(CONVOLUTIONS),
    "architectures": _values(ARCHITECTURES),
    "rules": _values(RULES),
    "initial": _values(INITIAL),
    "optimisers": _values(OPTIMISERS),
    "selections": _values(SELECTIONS),
    "schedules": help_of_schedules(),
    "lowest": help_of_lowest(),
    "precisions": _values(PRECISIONS),
    "losses": _values(LOSSES),
    "messages": _values(MESSAGES),
    "features": _values(FEATURES),
    "recipes": _values(RECIPES),
}
#: Help of the options of `Training`, by panel and name.
OPTIONS = {
    panel: {name: words.format(**_WORDS) for name, words in options.items()}
    for panel, options in _explained(Training).items()
}


def explained(command: Command) -> Command:
    """Decorator: the section "Args:" of a command's docstring is the help of its parameters.

    Keyword-only parameters are options. One that is False by default is a switch.
    """
    original = signature(command, eval_str=True)
    words = _explained(command)["Args"]
    parameters = [_with_help(p, words.pop(p.name, None)) for p in original.parameters.values()]
    if words:
        raise TypeError(f"{command.__name__} has no {', '.join(words)}, which it explains")
    described = (getdoc(command) or "").partition("\n\nArgs:\n")[0]
    command.__doc__ = re.sub(r"(?<=\S)\n(?=\w)", " ", described)  # Typer keeps line breaks
    return _with_parameters(command, parameters)


def _with_help(parameter: Parameter, words: str | None) -> Parameter:
    if words is None:  # its type has the help, or it is hidden
        return parameter
    kind = parameter.annotation
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)
        info = copy(info)
    elif parameter.kind is not Parameter.KEYWORD_ONLY:
        info = typer.Argument()
    elif parameter.default is False:
        info = typer.Option(f"--{parameter.name.replace('_', '-')}")
    else:
        info = typer.Option()
    info.help = words
    return parameter.replace(annotation=Annotated[kind, info])


def _with_parameters(command: Command, parameters: Collection[Parameter]) -> Command:
    """The command with another signature, as Typer reads it."""
    command.__signature__ = Signature([*parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def training_options(without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Decorator: the command takes all `OPTIONS` but some; ``**given`` has those that were set."""

    def decorate(command: Command) -> Command:
        own = [
            parameter
            for parameter in signature(explained(command)).parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        of_settings = get_type_hints(Settings).items()
        kinds = {name: str if get_origin(kind) is tuple else kind for name, kind in of_settings}
        kinds |= get_type_hints(Training)
        more = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    kinds[name] | None,
                    typer.Option(help=_with_default(name, words), rich_help_panel=panel),
                ],
            )
            for panel, options in OPTIONS.items()
            for name, words in options.items()
            if name not in without
        ]
        optional = {parameter.name for parameter in more}

        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            command(**{n: v for n, v in arguments.items() if n not in optional or v is not None})

        return _with_parameters(called, [*own, *more])  # type: ignore[return-value]

    return decorate


def _with_default(name: str, words: str) -> str:
    if "Default:" not in words:
        words += f" Default: {_shown(getattr(Settings, name))}."
    if name not in MOLECULES:
        return words
    words += f" For tables of molecules: {_shown(MOLECULES[name])}"
    if name in OF_FEW_MOLECULES:
        words += f", below {FEW_MOLECULES:,} molecules {_shown(OF_FEW_MOLECULES[name])}"
    if name in OF_MANY_MOLECULES:
        words += f", from {MANY_MOLECULES:,} molecules on {_shown(OF_MANY_MOLECULES[name])}"
    return f"{words}."


def _shown(default: Any) -> Any:
    """A default as it is given on the command line."""
    if isinstance(default, tuple):
        return default[0]
    return 0 if default is None else default


def training_arguments(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Model, settings and targets, as `pna.train.train` takes them, from the options given."""
    from pna.data.node_graph import SPLITS_OF_TARGETS
    from pna.train.defaults import loss_for, model_for, settings_for
    from pna.train.mask_columns import graphs_of

    mask_column = given.get("mask_column", "0")
    Settings(mask_column=mask_column)  # raises unless it is a split
    graphs = graphs_of(path, mask_column)
    if mask_column == ALL:  # by default as many members as there are splits
        given = {"members": max(graphs.metadata[SPLITS_OF_TARGETS].values()), **given}
    loss = loss_for(graphs, parse_loss(given["loss"]) if "loss" in given else None)
    of_model = {name: given[name] for name in OPTIONS["Model"] if name in given}
    convolution = of_model.pop("model", "pna")
    chosen = {f.name: given[f.name] for f in fields(Settings) if f.name in given}
    for name in ("lr", "weight_decay"):
        if name in chosen:
            chosen[name] = parse_numbers(name, chosen[name])
    if "class_weights" in chosen:
        named = parse_named("class weights", chosen["class_weights"], _weights_of_classes)
        chosen["class_weights"] = named
    if chosen.get("patience") == 0:
        chosen["patience"] = None
    if "sample" in chosen:
        chosen["sample"] = parse_fan_out(chosen["sample"])
    splits = parse_names(given.get("splits", "train,validation"))
    if len(splits) != 2:
        raise ValueError(f"got splits {given['splits']!r}, expected two such as train,validation")
    recipe = recipe_of(given)
    if recipe is not RECIPES[USUAL] and len(graphs) < FEW:
        warnings.warn(
            f"got {len(graphs):,} graphs with the recipe {given['recipe']}, which is for sets of "
            "thousands; the defaults train in a fraction of the time, and may predict better",
            stacklevel=2,
        )
    settings = settings_for(graphs, chosen, recipe)
    return {
        "model": model_for(graphs, convolution, of_model, loss, settings.sample, recipe),
        "settings": settings,
        "loss": loss,
        "weights": parse_named("weights", given.get("weights", ""), float),
        "tasks": parse_names(given.get("tasks", "")) or None,
        "splits": (splits[0], splits[1]),
    }


def recipe_of(given: Mapping[str, Any]) -> ModelRecipe:
    """The recipe that is given, or the usual one."""
    return lookup("recipe", given.get("recipe", USUAL), RECIPES)


def parse_names(text: str) -> list[str]:
    """The names in "a, b". One with a comma is in double quotes, as in a line of CSV."""
    try:
        names = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise ValueError(
            f"got {text!r}, which is no list of names ({error}), expected names separated by "
            'commas; put double quotes around a name with a comma, such as "a, b"'
        ) from None
    return [name.strip() for name in names if name.strip()]


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """The numbers in "1e-3,3e-4"."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"got {name} {text!r}, expected a number, or numbers separated by commas: 1e-3,3e-4"
        ) from None


def parse_fan_out(text: str) -> tuple[int, ...]:
    """The whole numbers in "15,10,5"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"got sample {text!r}, expected whole numbers separated by commas, one for each layer: "
            "15,10,5"
        ) from None


def parse_named(what: str, text: str, kind: Callable[[str], T]) -> dict[str, T]:
    """The dictionary written as "a=1,b=2"."""
    found: dict[str, T] = {}
    for part in parse_names(text):
        name, _, value = (word.strip() for word in part.rpartition("="))
        try:
            if not (name and value):
                raise ValueError
            found[name] = kind(value)
        except ValueError:
            raise ValueError(
                f"got {part!r} in {what}, expected target=value, separated by commas; put double "
                "quotes around target=value if the name of the target has a comma"
            ) from None
    return found


def _weights_of_classes(text: str) -> tuple[float, ...]:
    """The numbers in "1:5"."""
    return tuple(float(part) for part in text.split(":"))


def parse_loss(text: str) -> str | dict[str, str]:
    """One name, or "target=name,…"."""
    return parse_named("loss", text, str) if "=" in text else text.strip()
