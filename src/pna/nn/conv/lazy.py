"""A `PNAConv` made with ``in_channels=-1``: the first x, or a state dict, says how wide it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from pna.nn.towers import TowerLinear
from pna.visible import outside_inference

if TYPE_CHECKING:
    from pna.nn.conv.pna import PNAConv


def is_unknown(in_channels: Any) -> bool:
    """Whether a number of features, or one of a pair, is -1."""
    return in_channels == -1 or (isinstance(in_channels, tuple | list) and -1 in in_channels)


def defer(layer: PNAConv, arguments: dict[str, Any]) -> None:
    """Leave the weights of M and U uninitialised, until `in_channels` is known.

    `arguments` are those that the layer was made with.
    """
    for module in layer.modules():
        if isinstance(module, TowerLinear | nn.Linear) and module is not layer.lin:
            of_module: dict[str, Any] = module._parameters
            for name in of_module:
                of_module[name] = UninitializedParameter()
    layer.in_channels = arguments["in_channels"]
    handle = layer.register_forward_pre_hook(_before_the_call, with_kwargs=True)
    layer._deferred = (arguments, handle)
    layer.register_load_state_dict_pre_hook(_before_loading)


def _before_the_call(layer: PNAConv, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x = args[0] if args else kwargs["x"]
    parts = list(x) if isinstance(x, tuple | list) else [x]
    if not all(isinstance(part, Tensor) and part.dim() == 2 for part in parts):
        got = " and ".join(str(tuple(getattr(part, "shape", ()))) for part in parts)
        raise ValueError(
            f"got x of shape {got}, expected (nodes, features): the layer was made with "
            "in_channels=-1, and takes the number from the first x"
        )
    _initialise(layer, [part.shape[1] for part in (parts[0], parts[-1])])


def _before_loading(layer: PNAConv, state: dict[str, Any], prefix: str, *_: Any) -> None:
    weight = state.get(f"{prefix}pre.0.weight")
    if layer._deferred is None or weight is None or is_lazy(weight):
        return
    towers, sent, inputs = weight.shape
    of_edge = 0 if layer.edge_dim is None else layer.edge_dim
    of_edge = of_edge if layer.edge_encoder is None else sent
    shares = towers if layer.divide_input else 1
    _initialise(layer, [shares * sent, shares * (inputs - sent - of_edge)])


def _initialise(layer: PNAConv, widths: list[int]) -> None:
    """Complete the layer as if it had been made for these widths of senders and receivers."""
    from pna.nn.conv.pna import PNAConv

    assert layer._deferred is not None
    arguments, handle = layer._deferred
    given = arguments["in_channels"]
    if isinstance(given, tuple | list):
        widths = [
            width if known == -1 else known for width, known in zip(widths, given, strict=True)
        ]
    elif widths[0] == widths[1]:
        widths = widths[:1]
    in_channels = tuple(widths) if len(widths) > 1 else widths[0]
    with outside_inference(), torch.no_grad():  # the weights may be trained later
        made = PNAConv(**(arguments | {"in_channels": in_channels}))
        for name, value in made.named_parameters():
            parameter: Any = layer.get_parameter(name)
            if is_lazy(parameter):
                parameter.materialize(value.shape)
                parameter.copy_(value)
    for name, module in made.named_modules():
        if isinstance(module, nn.Linear):
            cast(nn.Linear, layer.get_submodule(name)).out_features = module.out_features
    of_module = vars(nn.Module())
    for name, value in vars(made).items():
        if name not in of_module:
            setattr(layer, name, value)
    handle.remove()
    layer._deferred = None
