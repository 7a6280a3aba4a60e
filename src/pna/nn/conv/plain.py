"""The PNA layer as the paper writes it: all messages are stored, all parts called as modules.

It runs if parts of a layer have hooks or were replaced. It is slower than the kernels, and needs
memory for several tensors (edges, towers × features).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.message_passing import explained
from pna.ops.aggregate import aggregate

if TYPE_CHECKING:
    from pna.nn.conv.pna import Outgoing, PNAConv


def plain_layer(
    conv: PNAConv,
    x: Tensor | tuple[Tensor, Tensor],
    adjacency: Adjacency,
    edge_attr: EdgeFeatures = None,
) -> Tensor:
    """x_i' = U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji)): (nodes, in_channels) to (nodes, out_channels)."""
    x = (x, x) if isinstance(x, Tensor) else x
    sent, own = (
        part.unflatten(1, (conv.towers, -1))
        if conv.divide_input
        else part[:, None].expand(-1, conv.towers, -1)
        for part in x
    )
    inputs = [own]
    for side in conv._sides:
        if side is not conv:
            adjacency = adjacency.reversed()
        inputs.append(_scaled_aggregates(conv, side, sent, own, adjacency, edge_attr))
    out = _through("post", conv.post, conv.act, torch.cat(inputs, 2), conv.F_out).flatten(1)
    return out if conv.lin is None else call("lin", conv.lin, out)


def _scaled_aggregates(
    conv: PNAConv,
    side: PNAConv | Outgoing,
    sent: Tensor,
    own: Tensor,
    adjacency: Adjacency,
    edge_attr: EdgeFeatures,
) -> Tensor:
    """All scalers times all aggregates along one direction of edges, as U expects them.

    `sent` and `own` are the features of senders and of receivers, (nodes, towers, features); so is
    the result.
    """
    width, every = conv.F_in, side.neighbourhood.aggregators
    senders, receivers = adjacency.edge_index
    edge = [] if edge_attr is None else [_edge_inputs(side, edge_attr, conv.towers, width)]
    found: dict[int, Tensor] = {}
    for swapped, which in zip(conv._swapped, conv._form.views, strict=True):
        first, second = ((sent, senders), (own, receivers))[:: 1 if swapped else -1]
        messages = torch.cat([first[0][first[1]], second[0][second[1]], *edge], 2)
        messages = _through("pre", side.pre, conv.act, messages, width)
        if conv.explain:
            ends = {"x_i": own[receivers], "x_j": sent[senders], "dim_size": len(own)}
            messages = explained(conv, messages, **ends)
        messages = messages.flatten(1)
        nothing = messages.new_zeros((sent.shape[0], messages.shape[1]))
        results = aggregate(nothing, adjacency, [every[i] for i in which], messages)
        found |= dict(zip(which, results.unbind(1), strict=True))
    aggregates = torch.stack([found[i] for i in range(len(every))], 1)
    factors = side.neighbourhood.factors(adjacency, own.dtype)
    scaled = (factors[:, :, None, None] * aggregates[:, None]).to(aggregates.dtype)
    return scaled.unflatten(3, (conv.towers, width)).permute(0, 3, 1, 2, 4).flatten(2)


def _edge_inputs(
    side: PNAConv | Outgoing, edge_attr: Tensor | tuple[Tensor, Tensor], towers: int, width: int
) -> Tensor:
    """The part of M's input that comes from the edge, (edges, towers, features)."""
    if isinstance(edge_attr, tuple | list):
        first, second = edge_attr
        edge_attr = second @ first if second.is_floating_point() else first[second.long()]
    if side.edge_encoder is not None:
        edge_attr = call("edge_encoder", side.edge_encoder, edge_attr, width)
    return edge_attr[:, None].expand(-1, towers, -1)


def _through(name: str, layers: nn.ModuleList, act: Any, h: Tensor, width: int) -> Tensor:
    """h through all layers of M ("pre") or U ("post"), with activations between them."""
    for k, layer in enumerate(layers):
        h = call(f"{name}[{k}]", layer, h if k == 0 else act(h), width)
    return h


def call(name: str, module: nn.Module, h: Tensor, width: int | None = None) -> Tensor:
    """``module(h)``, (…, inputs) to (…, width), or to any width if None.

    A module that does not fit is an error that names it.
    """
    try:
        out = module(h)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # such as out of memory, or an error of a hook
            raise
        raise _misfit(name, module, f"fails: {error}", h, width) from error
    if not isinstance(out, Tensor):
        raise _misfit(name, module, f"gives a {type(out).__name__}", h, width)
    if out.shape[:-1] != h.shape[:-1] or width not in (None, out.shape[-1]):
        raise _misfit(name, module, f"gives {tuple(out.shape)}", h, width)
    return out


def _misfit(name: str, module: nn.Module, problem: str, h: Tensor, width: int | None) -> ValueError:
    *rows, inputs = h.shape
    shape = ", ".join(map(str, rows))
    in_one_line = " ".join(str(module).split())
    return ValueError(
        f"got {name} = {in_one_line}, which {problem}; expected a module that takes "
        f"({shape}, {inputs}) to ({shape}, {'…' if width is None else width})"
    )
