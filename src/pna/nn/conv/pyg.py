"""Converts PyG's PNAConv: its arguments, and the names of its weights."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from pna.degree import DegreeStats
from pna.ops.aggregators import Aggregator, Max, Mean, Min, Softmax, Std, Sum, Var

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


def arguments_of(conv: nn.Module) -> dict[str, Any]:
    """The arguments of `pna.nn.PNAConv` for the same layer as this one of PyG."""
    aggr: Any = getattr(conv, "aggr_module", None)
    if type(conv).__name__ != "PNAConv" or type(aggr).__name__ != "DegreeScalerAggregation":
        raise TypeError(
            f"got a {type(conv).__module__}.{type(conv).__name__}, expected a "
            "torch_geometric.nn.PNAConv"
        )
    source: Any = conv
    if source.flow != "source_to_target":
        raise ValueError(
            f"got a layer with flow={source.flow!r}, expected 'source_to_target'; make it without "
            "`flow` and pass edge_index.flip(0)"
        )
    inner = aggr.aggr
    modules = list(inner.aggrs) if hasattr(inner, "aggrs") else [inner]
    deep = next((n for n in (*source.pre_nns, *source.post_nns) if len(n) > 1), None)
    if deep is not None and deep[1] is not None and any(True for _ in deep[1].parameters()):
        raise ValueError(
            f"got a layer with the activation {deep[1]}, which PyG learns once for every layer of "
            "every tower, expected one without parameters; there is nothing here to replace it"
        )
    return dict(
        in_channels=source.in_channels,
        out_channels=source.out_channels,
        aggregators=[_aggregator_of(module) for module in modules],
        scalers=aggr.scaler,
        deg=DegreeStats.from_degrees([1]),  # a placeholder: δ is loaded with the weights
        edge_dim=source.edge_dim,
        towers=source.towers,
        pre_layers=len(source.pre_nns[0]) // 2 + 1,
        post_layers=len(source.post_nns[0]) // 2 + 1,
        divide_input=source.divide_input,
        act=None if deep is None else copy.deepcopy(deep[1]),
        train_norm=isinstance(aggr.avg_deg_log, nn.Parameter),
    )


def _aggregator_of(module: Any) -> Aggregator:
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
        learned = isinstance(module.t, Tensor)
        return Softmax(nn.Parameter(module.t.detach().clone()) if learned else float(module.t))
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


def freeze_alike(layer: nn.Module, conv: nn.Module) -> None:
    """Freeze what is frozen in PyG's layer. Towers, one tensor here, freeze if all of them are."""
    trained = {name: p.requires_grad for name, p in conv.named_parameters()}
    state = {name: torch.tensor(float(t)) for name, t in trained.items()}
    rename_keys(layer, state, "")
    for name, parameter in layer.named_parameters():
        if name in state:
            parameter.requires_grad_(bool(state[name].any()))
