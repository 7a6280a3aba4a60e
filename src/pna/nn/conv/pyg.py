"""Converts PyG's PNAConv and ours into each other: arguments, and the names of weights."""

from __future__ import annotations

import copy
import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pna.degree import SCALERS, DegreeStats, Linear, Power
from pna.nn.towers import TowerLinear, named_layers
from pna.ops.aggregators import Aggregator, Max, Mean, Min, Softmax, Std, Sum, Var

if TYPE_CHECKING:
    from pna.nn.conv.pna import PNAConv

_AGGREGATORS: dict[str, type[Aggregator]] = {
    "SumAggregation": Sum,
    "MeanAggregation": Mean,
    "MaxAggregation": Max,
    "MinAggregation": Min,
    "VarAggregation": Var,
    "StdAggregation": Std,
    "SoftmaxAggregation": Softmax,
}

_DEGREES = {"avg_deg_lin": "mean_degree", "avg_deg_log": "mean_log_degree"}


def need_pyg(what: str) -> Any:
    """The module `torch_geometric.nn`; `what` needs it and is named in the error without it."""
    try:
        return importlib.import_module("torch_geometric.nn")
    except ImportError as error:
        raise ImportError(
            f"got {what}, which needs PyG, expected the package torch_geometric; install it with "
            "pip install torch-geometric"
        ) from error


def arguments_of(conv: nn.Module) -> dict[str, Any]:
    """The arguments of `pna.nn.PNAConv` for the same layer as this one of PyG."""
    aggr: Any = getattr(conv, "aggr_module", None)
    if type(conv).__name__ != "PNAConv" or type(aggr).__name__ != "DegreeScalerAggregation":
        raise TypeError(
            f"got a {type(conv).__module__}.{type(conv).__name__}, expected a "
            "torch_geometric.nn.PNAConv"
        )
    source: Any = conv
    inner = aggr.aggr
    modules = list(inner.aggrs) if hasattr(inner, "aggrs") else [inner]
    deep = next((n for n in (*source.pre_nns, *source.post_nns) if len(n) > 1), None)
    if deep is not None and deep[1] is not None and any(True for _ in deep[1].parameters()):
        raise ValueError(
            f"got a layer with the activation {deep[1]}, which PyG learns once for every layer of "
            "every tower, expected one without parameters; there is nothing here to replace it"
        )
    acts = {str(n[k]) for n in (*source.pre_nns, *source.post_nns) for k in range(1, len(n), 2)}
    if len(acts) > 1:
        raise ValueError(
            f"got a layer with the activations {', '.join(sorted(acts))}, expected the same one "
            "everywhere; there is nothing here to replace it"
        )
    return dict(
        in_channels=source.in_channels,
        out_channels=source.out_channels,
        aggregators=[aggregator_of(module) for module in modules],
        scalers=aggr.scaler,
        deg=DegreeStats.from_degrees([1]),  # a placeholder: δ is loaded with the weights
        edge_dim=source.edge_dim,
        towers=source.towers,
        pre_layers=len(source.pre_nns[0]) // 2 + 1,
        post_layers=len(source.post_nns[0]) // 2 + 1,
        divide_input=source.divide_input,
        act=None if deep is None else copy.deepcopy(deep[1]),
        train_norm=isinstance(aggr.avg_deg_log, nn.Parameter),
        flow=source.flow,
    )


def aggregator_of(module: Any, shared: bool = False) -> Aggregator:
    """The aggregator that computes the same as an aggregation of PyG.

    A learned temperature is copied, or `shared` with the aggregation.
    """
    name = type(module).__name__
    kind = _AGGREGATORS.get(name)
    inner = getattr(module, "var_aggr", module)  # of a std
    if kind is None or getattr(inner, "semi_grad", False):
        raise ValueError(
            f"got a layer that aggregates by {module}, expected one of {', '.join(_AGGREGATORS)}; "
            "there is nothing here to replace it"
        )
    if kind is Std:
        return Std(clamp=True)
    if kind is Softmax:
        if not isinstance(module.t, Tensor):
            return Softmax(float(module.t))
        return Softmax(module.t if shared else nn.Parameter(module.t.detach().clone()))
    return kind()


def rename_keys(layer: Any, state: dict[str, Any], prefix: str, *_: Any, **__: Any) -> None:
    """Convert the names and shapes of PyG's weights in a state dict that is about to be loaded."""
    found = False
    for ours, theirs in (("pre", "pre_nns"), ("post", "post_nns")):
        for k in range(len(getattr(layer, ours))):
            for kind in ("weight", "bias"):
                towers = [f"{prefix}{theirs}.{t}.{2 * k}.{kind}" for t in range(layer.towers)]
                if all(name in state for name in towers):
                    found = True
                    parts = [state.pop(name) for name in towers]
                    if all(part.shape == parts[0].shape for part in parts):
                        state[f"{prefix}{ours}.{k}.{kind}"] = torch.stack(parts)
    for theirs, ours in _DEGREES.items():
        if f"{prefix}aggr_module.{theirs}" in state:
            value = state.pop(f"{prefix}aggr_module.{theirs}")
            state[f"{prefix}neighbourhood.{ours}"] = value
    for name in list(state):
        softmax = re.fullmatch(rf"{re.escape(prefix)}aggr_module\.aggr\.aggrs\.(\d+)\.t", name)
        if softmax is not None:
            ours = f"{prefix}neighbourhood.aggregator_{softmax[1]}_temperature"
            state[ours] = state.pop(name)
    aggregators = layer.neighbourhood.aggregators
    if found and any(isinstance(a, Std) and not a.clamp for a in aggregators):
        warnings.warn(
            "got weights of PyG's PNAConv for a layer with the paper's std: results will differ "
            'from PyG\'s where neighbours are alike; make it with std="pyg" for equal ones',
            stacklevel=2,
        )


def adopt(layer: PNAConv, conv: nn.Module) -> None:
    """Give a layer the device, dtype, weights, δ and mode of PyG's, and freeze what is frozen.

    Towers, one tensor here, are frozen if all of them are.
    """
    parameter = next(conv.parameters())
    layer.to(parameter.device, parameter.dtype).load_state_dict(conv.state_dict())
    layer.neighbourhood.keep_averages()
    trained = {name: p.requires_grad for name, p in conv.named_parameters()}
    state = {name: torch.tensor(float(t)) for name, t in trained.items()}
    rename_keys(layer, state, "")
    for name, parameter in layer.named_parameters():
        if name in state:
            parameter.requires_grad_(bool(state[name].any()))
    layer.train(conv.training)


def to_pyg(layer: PNAConv) -> nn.Module:
    """A `torch_geometric.nn.PNAConv` with the weights and the results of a layer."""
    of_pyg, state = need_pyg("to_pyg"), pyg_state(layer)
    hood = layer.neighbourhood
    made = of_pyg.conv.pna_conv.PNAConv(
        in_channels=layer.in_channels,
        out_channels=layer.out_channels,
        aggregators=[_aggregation(of_pyg.aggr, aggregator) for aggregator in hood.aggregators],
        scalers=[_scaler_name(scaler) for scaler in hood._scalers],
        deg=torch.ones(1),  # a placeholder: δ is loaded with the weights
        edge_dim=layer.edge_dim,
        towers=layer.towers,
        pre_layers=len(layer.pre),
        post_layers=len(layer.post),
        divide_input=layer.divide_input,
        act=copy.deepcopy(layer.act),
        train_norm=isinstance(hood.mean_degree, nn.Parameter),
        flow=layer.flow,
    )
    made.to(hood.mean_degree.device, hood.mean_degree.dtype).load_state_dict(state)
    aggr = made.aggr_module
    aggr.init_avg_deg_lin, aggr.init_avg_deg_log = hood._averages
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(state[name].requires_grad)
    return made.train(layer.training)


@torch.enable_grad()
def pyg_state(layer: PNAConv) -> dict[str, Tensor]:
    """The weights of a layer under PyG's names. They require a gradient if the layer's do."""
    lacking = _unknown_to_pyg(layer)
    if lacking is not None:
        raise ValueError(
            f"got a layer with {lacking}, which PyG's PNAConv does not have, expected one that "
            'uses PyG\'s options only, and std="pyg"; make and train it like that'
        )
    hood, state = layer.neighbourhood, {}  # in PyG's order
    for theirs, ours in _DEGREES.items():
        state[f"aggr_module.{theirs}"] = getattr(hood, ours)
    for i, aggregator in enumerate(hood.aggregators):
        if isinstance(aggregator, Softmax) and isinstance(aggregator.temperature, nn.Parameter):
            state[f"aggr_module.aggr.aggrs.{i}.t"] = aggregator.temperature.reshape(1)
    for kind in ("weight", "bias"):
        if layer.edge_encoder is not None:
            state[f"edge_encoder.{kind}"] = getattr(layer.edge_encoder, kind)
    for ours, theirs in (("pre", "pre_nns"), ("post", "post_nns")):
        for t in range(layer.towers):
            for k, of_towers in enumerate(getattr(layer, ours)):
                for kind in ("weight", "bias"):
                    state[f"{theirs}.{t}.{2 * k}.{kind}"] = getattr(of_towers, kind)[t]
    for kind in ("weight", "bias"):
        state[f"lin.{kind}"] = getattr(layer.lin, kind)
    return state


def _unknown_to_pyg(layer: PNAConv) -> str | None:
    """What the layer has and PyG's does not; None if there is nothing."""
    deep = len(layer.pre) + len(layer.post) > 2
    for option, is_used in (
        (f"in_channels={layer.in_channels}", not isinstance(layer.in_channels, int)),
        ('direction="both"', layer.outgoing is not None),
        ("swap_extrema=True", layer.swap_extrema),
        ("mixing=False", layer.lin is None),
        ("encode_edges=False", layer.edge_dim is not None and layer.edge_encoder is None),
        (f"act={layer.act}, not a module", deep and not isinstance(layer.act, nn.Module)),
    ):
        if is_used:
            return option
    for aggregator in layer.neighbourhood.aggregators:
        if isinstance(aggregator, Std) and not (aggregator.clamp and aggregator.epsilon == 1e-5):
            return 'the std of the paper (std="paper")'
        if not _is_known(aggregator):
            return f"the aggregator {aggregator}"
    for scaler in layer.neighbourhood._scalers:
        if _scaler_name(scaler) is None:
            return f"the scaler {scaler}"
    for name, part in named_layers("pre", layer.pre) + named_layers("post", layer.post):
        if type(part).forward is not TowerLinear.forward:
            return f"{name} = {part}"
    return None


def _is_known(aggregator: Aggregator) -> bool:
    if isinstance(aggregator, Softmax) and type(aggregator) is Softmax:
        numbers = torch.as_tensor(aggregator.temperature).numel()
        return aggregator.weight is None and numbers == 1
    return type(aggregator) in _AGGREGATORS.values()


def _aggregation(of_pyg: Any, aggregator: Aggregator) -> Any:
    """The aggregation of PyG that computes the same as an aggregator."""
    name = next(name for name, kind in _AGGREGATORS.items() if kind is type(aggregator))
    if isinstance(aggregator, Softmax):
        temperature = torch.as_tensor(aggregator.temperature)
        learned = isinstance(aggregator.temperature, nn.Parameter)
        return of_pyg.SoftmaxAggregation(temperature.item(), learned)
    return getattr(of_pyg, name)()


def _scaler_name(scaler: Power | Linear) -> str | None:
    """The name of a scaler in PyG; None if it has none."""
    if scaler.is_identity:
        return "identity"
    if scaler.delta is not None or isinstance(scaler.alpha, Tensor):
        return None
    of_kind = ((name, s) for name, s in SCALERS.items() if type(s) is type(scaler))
    return next((name for name, s in of_kind if s.alpha == scaler.alpha), None)
