"""The weights of a PNA layer, rearranged so that no product is computed for every edge.

M = A x_i + B x_j + C e + b. The term A x_i + b is the same for all messages of a node. It shifts
their mean, max, min and softmax by A x_i + b, their sum by d (A x_i + b), and does not change their
variance. Only B x_j + C e is aggregated, and A x_i + b is added afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.ops.request import Request


@dataclass(frozen=True)
class Form:
    """The structure of a layer, without the values of its weights."""

    width: int  # features of a tower's messages, and of what it sees of a sender
    scalers: int
    aggregators: int
    views: tuple[tuple[int, ...], ...]  # groups of aggregators that see the same messages


@dataclass(frozen=True)
class LayerPlan:
    """How to compute a layer, without its tensors."""

    form: Form
    request: Request  # the statistics, in the order of the layer's aggregators
    times: tuple[int, ...]  # for each aggregate, how often the receivers' part is added to it
    shares: int  # number of shares into which the features of x are divided
    backend: str


class Weights(NamedTuple):
    """The parameters of a layer.

    Weights are (towers, outputs, inputs) and biases (towers, outputs), unless a comment says
    otherwise.
    """

    pre: Tensor
    pre_bias: Tensor
    post: Tensor
    post_bias: Tensor
    mixing: Tensor | None  # (outputs, outputs), to be multiplied into U
    mixing_bias: Tensor | None  # (outputs,)
    encoder: Tensor | None  # (width, edge features); None if M takes edge features unchanged
    encoder_bias: Tensor | None  # (width,)


class Parts(NamedTuple):
    """The weights of the products with node features."""

    receiver: Tensor  # A, (towers, width, features of a receiver)
    sender: Tensor  # B, (towers, width, width)
    bias: Tensor  # b, (towers, width)
    keep: Tensor  # U's part for x_i, (towers, outputs, features of a receiver)
    keep_bias: Tensor  # (towers, outputs)
    edge: Tensor | None  # C, (towers × width, …), for edge features, encoded or not
    mixes: tuple[Tensor, ...]  # for each view, (scalers, towers, aggregators × width, outputs)


def split(form: Form, weights: Weights, encoded: bool = False) -> Parts:
    """Split the weights into parts, as views if possible.

    The encoder of edge features is multiplied into C, unless the features are already `encoded`.
    """
    _, _, post, post_bias, mixing, mixing_bias, _, _ = weights
    if mixing is not None:
        assert mixing_bias is not None
        post = (mixing @ post[0])[None]
        post_bias = F.linear(post_bias, mixing, mixing_bias)
    receiver, sender, bias, edge = _split_message(form, weights, encoded)
    # split instead of two slices, whose gradients would have to be added
    results = form.scalers * form.aggregators * form.width
    keep, mix = post.split([post.shape[2] - results, results], 2)
    # one row of blocks for each scaler, one block for each aggregator: (towers, outputs, S, A, F)
    mix = mix.unflatten(2, (form.scalers, form.aggregators, form.width))
    mixes = [
        _select(mix, form, view).permute(2, 0, 3, 4, 1).flatten(2, 3)
        for view in range(len(form.views))
    ]
    return Parts(receiver, sender, bias, keep, post_bias, edge, tuple(mixes))


def _split_message(
    form: Form, weights: Weights, encoded: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the parts of M for receiver and sender, its bias, and its part for the edge."""
    own = weights.post.shape[2] - form.scalers * form.aggregators * form.width
    inputs = weights.pre.shape[2] - own - form.width  # edge features among the inputs of M
    receiver, sender, edge = weights.pre.split([own, form.width, inputs], 2)
    if inputs == 0:
        return receiver, sender, weights.pre_bias, None
    if encoded or weights.encoder is None or weights.encoder_bias is None:
        return receiver, sender, weights.pre_bias, edge.flatten(0, 1)
    bias = weights.pre_bias + edge @ weights.encoder_bias
    return receiver, sender, bias, (edge @ weights.encoder).flatten(0, 1)


def join_towers(form: Form, weights: Weights, shares: int, mixing: Tensor, bias: Tensor) -> Parts:
    """Return the parts of an equal layer without towers, with the mixing layer multiplied into U.

    A narrow layer is limited by memory bandwidth, so multiplying by the blocks of zeros between
    towers costs less than one product per tower.
    """
    towers, outputs = weights.post.shape[:2]
    to_output = mixing.unflatten(1, (towers, outputs)).transpose(0, 1)  # (towers, all, outputs)
    folded = to_output @ weights.post  # (towers, all, inputs of U); all = outputs of all towers
    post_bias = torch.addmv(bias, mixing, weights.post_bias.flatten())[None]
    keep = folded[:, :, : form.width]
    keep = keep.transpose(0, 1).flatten(1) if shares > 1 else keep.sum(0)
    mix = folded[:, :, form.width :].unflatten(2, (form.scalers, form.aggregators, form.width))
    mixes = [
        _select(mix, form, view).permute(2, 3, 0, 4, 1).flatten(1, 3)[:, None]
        for view in range(len(form.views))
    ]
    receiver, sender, pre_bias, edge = _split_message(form, weights)
    sides = torch.stack([receiver, sender])
    if shares > 1:  # block-diagonal: each tower has its own columns
        own = torch.eye(towers, dtype=sides.dtype, device=sides.device)
        sides = (sides[:, :, :, None] * own[:, None, :, None]).flatten(3)
    receiver, sender = sides.flatten(1, 2).unbind()
    return Parts(
        receiver[None], sender[None], pre_bias.flatten()[None], keep[None], post_bias, edge,
        tuple(mixes),
    )  # fmt: skip


def _select(mix: Tensor, form: Form, view: int) -> Tensor:
    return mix if len(form.views) == 1 else mix[:, :, :, list(form.views[view])]


def split_gradients(
    form: Form, weights: Weights, grads: Sequence[Tensor], encoded: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradients of all weights.

    `grads` are those of the parts in order, without `edge` if there is none. The gradient of the
    encoder is None if edge features were already `encoded`.
    """
    pre, _, post, post_bias, mixing, _, encoder, encoder_bias = weights
    receiver, sender, bias, keep, keep_bias, *rest = grads
    towers, outputs = keep.shape[:2]
    blocks = [receiver, sender]
    grad_encoder = grad_encoder_bias = None
    if pre.shape[2] == 2 * form.width:
        pass  # edges have no features
    elif encoded or encoder is None or encoder_bias is None:
        blocks.append(rest.pop(0).unflatten(0, (towers, form.width)))
    else:
        transposed = pre[:, :, 2 * form.width :].transpose(1, 2)
        combined = rest.pop(0).unflatten(0, (towers, form.width))
        blocks.append(combined @ encoder.t() + bias[:, :, None] * encoder_bias)
        grad_encoder = (transposed @ combined).sum(0)
        grad_encoder_bias = (transposed @ bias[:, :, None])[..., 0].sum(0)
    shape = (form.scalers, towers, -1, form.width, outputs)
    views = [part.reshape(shape).permute(1, 4, 0, 2, 3) for part in rest]
    mix = views[0]
    if len(views) > 1:
        order = [i for view in form.views for i in view]
        back = sorted(range(len(order)), key=order.__getitem__)
        mix = torch.cat(views, 3)[:, :, :, back]
    grad_post = torch.cat([keep, mix.flatten(2)], 2)
    grads_of_update: tuple[Tensor | None, ...] = (grad_post, keep_bias, None, None)
    if mixing is not None:
        back_to_post, back_to_bias = mixing.t() @ grad_post[0], mixing.t() @ keep_bias[0]
        grad_mixing = torch.addr(grad_post[0] @ post[0].t(), keep_bias[0], post_bias[0])
        grads_of_update = (back_to_post[None], back_to_bias[None], grad_mixing, keep_bias[0])
    return torch.cat(blocks, 2), bias, *grads_of_update, grad_encoder, grad_encoder_bias
