"""Complete models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency, as_adjacency
from pna.names import check_keywords, lookup
from pna.nn.activation import activation
from pna.nn.conv.inputs import EdgeFeatures, check_sizes
from pna.nn.conv.pna import PNAConv

Norm = Literal["batch_norm"]
Jump = Literal["last", "cat", "max"]

_NORMS: dict[Norm, Callable[..., nn.Module]] = {"batch_norm": nn.BatchNorm1d}
_JUMPS = {name: name for name in get_args(Jump)}


class PNA(nn.Module):
    """Several `PNAConv` layers with normalisation, activation and dropout between them.

    The arguments and results are those of `torch_geometric.nn.models.PNA`. `load_state_dict` also
    takes the weights of PyG's model; with ``std="pyg"`` the results are the same.

    Args:
        in_channels: features of a node.
        hidden_channels: features of a node between layers.
        num_layers: number of layers.
        out_channels: features of a node in the output. Default: `hidden_channels`.
        dropout: probability of dropping a feature after a layer.
        act: activation after a layer: a name, a module, a function, or None.
        act_first: apply the activation before the normalisation, not after.
        act_kwargs: arguments of the activation.
        norm: "batch_norm", a module that is copied for every layer, such as
            ``torch.nn.LayerNorm(hidden_channels)``, or None.
        norm_kwargs: arguments of the normalisation.
        jk: how the outputs of all layers are combined before a final linear layer: "last", "cat"
            or "max". Default: the output of the last convolution is returned.
        **kwargs: arguments of `PNAConv`: aggregators, scalers, deg, edge_dim, towers, std, …

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair as in `PNAConv`; optional
        - **output**: (nodes, out_channels)
    """

    @check_keywords(PNAConv)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        act_first: bool = False,
        act_kwargs: dict[str, Any] | None = None,
        norm: Norm | nn.Module | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: Jump | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        check_sizes(
            in_channels=in_channels,
            hidden_channels=hidden_channels,
            num_layers=num_layers,
            out_channels=out_channels,
        )
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.num_layers = num_layers
        self.out_channels = hidden_channels if out_channels is None else out_channels
        self.act, self.act_first = activation(act, act_kwargs), act_first
        self.dropout = nn.Dropout(dropout)
        self.jk = None if jk is None else lookup("jk", jk, _JUMPS)
        widths = [in_channels, *[hidden_channels] * num_layers]
        if jk is None:
            widths[-1] = self.out_channels
        self.convs = nn.ModuleList(
            PNAConv(widths[i], widths[i + 1], **kwargs) for i in range(num_layers)
        )
        joints = num_layers - 1 if jk is None else num_layers
        self.norms = nn.ModuleList(_norm(norm, hidden_channels, norm_kwargs) for _ in range(joints))
        self.lin = None
        if jk is not None:
            joined = hidden_channels * (num_layers if jk == "cat" else 1)
            self.lin = nn.Linear(joined, self.out_channels)
        self.register_load_state_dict_pre_hook(_rename_norms)

    def reset_parameters(self) -> None:
        for module in (*self.convs, *self.norms, self.lin):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency | Sequence[Adjacency],
        edge_weight: None = None,
        edge_attr: EdgeFeatures = None,
    ) -> Tensor:
        """`edge_weight` is where PyG's models have it, and must be None: PNA does not use it."""
        if edge_weight is not None:
            raise ValueError(
                "got edge_weight, expected none: PNA has edge features, not weights; pass "
                "edge_attr=edge_weight[:, None] with edge_dim=1"
            )
        adjacency = as_adjacency(edge_index, x.shape[0])
        results = []
        for i, conv in enumerate(self.convs):
            x = conv(x, adjacency, edge_attr)
            if i < len(self.norms):
                norm = self.norms[i]
                x = norm(self.act(x)) if self.act_first else self.act(norm(x))
                x = self.dropout(x)
            results.append(x)
        if self.lin is None:
            return x
        if self.jk == "cat":
            x = torch.cat(results, 1)
        elif self.jk == "max":
            x = torch.stack(results).amax(0)
        return self.lin(x)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"num_layers={self.num_layers})"
        )


def _norm(norm: str | nn.Module | None, width: int, arguments: dict[str, Any] | None) -> nn.Module:
    if norm is None:
        return nn.Identity()
    if norm == "layer_norm":
        raise ValueError(
            'got norm="layer_norm", which in PyG normalises over a whole graph, expected '
            "'batch_norm' or a module; to normalise each node separately pass "
            f"torch.nn.LayerNorm({width})"
        )
    if isinstance(norm, str):
        return lookup("norm", norm, _NORMS)(width, **(arguments or {}))
    if not isinstance(norm, nn.Module):
        raise TypeError(
            f"got norm of type {type(norm).__name__}, expected one of {', '.join(_NORMS)} or a "
            "module to copy for every layer"
        )
    return copy.deepcopy(norm)


def _rename_norms(model: PNA, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Remove the name of PyG's wrapper from the normalisations of a state dict."""
    for i in range(len(model.norms)):
        begin = f"{prefix}norms.{i}.module."
        for name in [name for name in state if name.startswith(begin)]:
            state[f"{prefix}norms.{i}.{name.removeprefix(begin)}"] = state.pop(name)
