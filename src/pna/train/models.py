"""Build a model from its settings, and complete the settings from a graph set."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pna.data.edge_labels import UNDIRECTED
from pna.data.graphset import GraphSet
from pna.data.header import MOST_KINDS
from pna.data.laplacian import is_vector
from pna.degree import DegreeStats
from pna.names import lookup
from pna.nn.architectures import ARCHITECTURES
from pna.nn.conv.pna import Direction
from pna.nn.initial import initialise
from pna.nn.registry import CONVOLUTIONS
from pna.train.arguments import decode
from pna.train.settings import ModelSettings
from pna.train.tasks import LOSSES, Task, outputs_of

#: Clusters of a pooling model per node of the largest graph, as in Dwivedi and others.
CLUSTERS = 0.15


def fitted(
    model: ModelSettings,
    training: GraphSet,
    tasks: Sequence[Task],
    every: GraphSet | None = None,
) -> ModelSettings:
    """Complete the settings from the graphs: widths, δ, categories of the columns, clusters.

    δ comes from the training set. Categories are counted in all graphs, `every`, if given.
    """
    every = training if every is None else every
    if training.x is None:
        raise ValueError(
            "got graphs whose nodes have no features, expected some; give every node a 1"
        )
    kind = lookup("convolution", model.convolution, CONVOLUTIONS)
    lookup("architecture", model.architecture, ARCHITECTURES)
    arguments = dict(model.arguments)
    edge_attr = training.edge_attr if arguments.pop("edges", True) else None
    if edge_attr is not None and not kind.edges:
        able = ", ".join(name for name, other in CONVOLUTIONS.items() if other.edges)
        raise ValueError(
            f"got graphs with edge features for {model.convolution!r}, which cannot use "
            f"them; leave them out with edges=False (--no-edges), or use one of {able}"
        )
    x_graph = training.x_graph if arguments.pop("graph_features", True) else None
    if x_graph is not None and outputs_of(tasks, "graph"):
        arguments["graph_scales"] = _scales_of_graphs(model.architecture, x_graph)
    assert every.x is not None
    # the number of categories may be given: not all of them need occur
    given = every.metadata | {n: v for n, v in arguments.items() if n.endswith("_values")}
    node_values = _values("node", every.x, every.node_features, given)
    edge_values: list[int] = []
    if edge_attr is not None and every.edge_attr is not None:
        edge_values = _values("edge", every.edge_attr, every.edge_features, given)
    if "node_values" in signature(ARCHITECTURES[model.architecture]).parameters:
        arguments |= {"node_values": node_values} | _scales("node", training.x, node_values)
        signs = [i for i, name in enumerate(training.node_features) if is_vector(name)]
        if signs:
            arguments.setdefault("signs", signs)
        if edge_attr is not None:
            arguments |= {"edge_columns": edge_attr.shape[1], "edge_values": edge_values}
            arguments |= _scales("edge", edge_attr, edge_values)
        if every.metadata.get("means"):
            arguments.setdefault("graph_means", _means(tasks, every.metadata["means"]))
    elif node_values or edge_values:
        what, remedy = ("nodes", "give the graphs floating-point features")
        if not node_values:
            what, remedy = ("edges", "leave them out with edges=False (--no-edges)")
        raise ValueError(
            f"got {what} whose features are whole numbers for a {model.architecture} model, which "
            "does not embed them; use the architecture 'stacked', which learns a vector for every "
            f"category, or {remedy}"
        )
    elif edge_attr is not None:
        arguments["edge_dim"] = edge_attr.shape[1]
    if kind.pooled:
        arguments.setdefault("clusters", max(int(CLUSTERS * int(training.sizes.max())), 1))
    edge_targets = outputs_of(tasks, "edge")
    if edge_targets:
        arguments["symmetric"] = bool(every.metadata.get(UNDIRECTED, False))
    degrees = torch.bincount(training.degree.long().cpu())
    out_degrees: tuple[int, ...] = ()
    if "direction" in arguments:
        _check_direction(model.convolution, arguments["direction"])
        if arguments["direction"] == "both":
            out_degrees = tuple(torch.bincount(training.out_degree.long().cpu()).tolist())
    return replace(
        model,
        arguments=arguments,
        in_channels=training.x.shape[1],
        node_targets=outputs_of(tasks, "node"),
        graph_targets=outputs_of(tasks, "graph"),
        edge_targets=edge_targets,
        degrees=tuple(degrees.tolist()),
        out_degrees=out_degrees,
    )


def _check_direction(convolution: str, direction: str) -> None:
    """Raise unless a convolution has this direction."""
    lookup("direction", direction, dict.fromkeys(get_args(Direction)))
    able = [n for n, e in CONVOLUTIONS.items() if "direction" in signature(e.make).parameters]
    if convolution not in able:
        raise ValueError(
            f"got direction={direction!r} for {convolution!r}, which aggregates along incoming "
            f"edges only; leave it out (--direction), or use one of {', '.join(able)}"
        )


def _values(
    what: str, columns: Tensor, names: Sequence[str], given: Mapping[str, Any]
) -> list[int]:
    """Number of categories of each column, 0 for numbers; an empty list if all are numbers.

    `given` may have them under "node_values" or "edge_values". Otherwise columns of integers are
    categories, and columns of floating-point numbers are not.
    """
    declared = given.get(f"{what}_values")
    if declared is None and columns.is_floating_point():
        return []
    found = []
    for index, name in enumerate(names):
        if declared is not None and index < len(declared) and declared[index] == 0:
            found.append(0)
        else:
            found.append(_count_kinds(f"the {what} feature {name!r}", columns[:, index]))
    declared = found if declared is None else declared
    if len(declared) != len(found) or any(a < b for a, b in zip(declared, found, strict=True)):
        raise ValueError(
            f"got {what}_values={list(declared)}, expected at least {found}, as many as occur in "
            "the graphs"
        )
    return [int(count) for count in declared] if any(declared) else []


def _scales(what: str, columns: Tensor, values: Sequence[int]) -> dict[str, Any]:
    """Mean and standard deviation of every column, if some columns are categories and some are
    numbers; the standard deviation of a constant column is 1."""
    if not any(values) or all(values) or len(columns) == 0:
        return {}
    means = columns.double().mean(0)
    deviations = columns.double().std(0, unbiased=False)
    return {f"{what}_scales": _pairs(means, deviations)}


def _scales_of_graphs(architecture: str, columns: Tensor) -> list[tuple[float, float]]:
    """Mean and standard deviation of every graph feature, over its finite numbers; 0 and 1 without
    any. Raises if the architecture takes no graph features."""
    able = [n for n, a in ARCHITECTURES.items() if "graph_scales" in signature(a).parameters]
    if architecture not in able:
        raise ValueError(
            f"got graphs with graph features for a {architecture} model, which cannot use them; "
            "leave them out with graph_features=False (--no-graph-features), or use the "
            f"architecture {' or '.join(able)}"
        )
    numbers = columns.double()
    numbers = torch.where(numbers.isfinite(), numbers, torch.nan)
    means = numbers.nanmean(0).nan_to_num(0.0)
    deviations = (numbers - means).square().nanmean(0).nan_to_num(0.0).sqrt()
    return _pairs(means, deviations)


def _pairs(means: Tensor, deviations: Tensor) -> list[tuple[float, float]]:
    """Mean and standard deviation of every column; 1 if the column is constant."""
    deviations = torch.where(deviations > 1e-6 * (1 + means.abs()), deviations, 1.0)
    return list(zip(means.tolist(), deviations.tolist(), strict=True))


def _means(tasks: Sequence[Task], of_targets: Mapping[str, float]) -> list[float]:
    """Initial graph predictions: the means of targets that are numbers, divided by their scales."""
    found = []
    for task in (task for task in tasks if task.level == "graph"):
        is_number = LOSSES[task.loss].outputs == "number"
        mean = of_targets.get(task.name, 0.0) / task.scale if is_number else 0.0
        found += [mean] * task.outputs
    return found


def _count_kinds(what: str, column: Tensor) -> int:
    """Number of categories in a column (rows,): one more than the largest."""
    if len(column) == 0:
        return 1
    low, high = column.min().item(), column.max().item()
    if high >= MOST_KINDS:
        raise ValueError(f"got {high} in {what}, expected categories below {MOST_KINDS:,}")
    if low < 0 or (column.is_floating_point() and not torch.equal(column, column.floor())):
        odd = low if low < 0 else next(v for v in column.tolist() if v != int(v))
        raise ValueError(f"got {odd} in {what}, expected categories 0, 1, 2, …")
    return int(high) + 1


def build(model: ModelSettings, seed: int = 0) -> nn.Module:
    """The model with initial weights, which depend only on the `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # leave the generators of GPUs alone
        try:
            built = _made(model)
        except RuntimeError as error:
            if "allocate" not in str(error):
                raise
            raise MemoryError(
                f"there is not enough memory for a model of {model.hidden} features; use fewer "
                "(--hidden)"
            ) from error
        initialise(built, model.init)
    return built


def _made(model: ModelSettings) -> nn.Module:
    every = [model.degrees, model.out_degrees] if model.out_degrees else [model.degrees]
    with torch.device("cpu"):
        degrees = [DegreeStats.from_histogram(torch.tensor(counts)) for counts in every]
    make: Any = lookup("architecture", model.architecture, ARCHITECTURES)
    if model.edge_targets:
        make = partial(make, edge_targets=model.edge_targets)
    with warnings.catch_warnings():
        # settings of stored runs keep the names that arguments had
        warnings.simplefilter("ignore", DeprecationWarning)
        built: nn.Module = make(
            model.convolution,
            model.in_channels,
            model.hidden,
            model.node_targets,
            model.graph_targets,
            deg=degrees if model.out_degrees else degrees[0],
            **decode(model.arguments, model.own_aggregators),
        )
    return built


def outline(model: ModelSettings, most: int) -> nn.Module:
    """The model on torch's device "meta", where weights take no memory.

    Raises a ValueError if the settings are wrong, or as soon as there are more than `most`
    parameters: settings from a file may ask for any size.
    """
    count = 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += 0 if parameter is None else parameter.numel()
        if count > most:
            raise ValueError(f"it has more than the {most:,} weights in the file")

    try:
        counting = register_module_parameter_registration_hook(counted)
        try:
            with torch.device("meta"):
                return _made(model)
        finally:
            counting.remove()
    except Exception as error:  # any error of a layer about wrong arguments
        raise ValueError(f"its model cannot be built: {error}") from error


def count_parameters(model: nn.Module) -> int:
    """Number of learned parameters."""
    return sum(p.numel() for p in model.parameters())
