"""The weights of a layer in parts: what they are, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pna.nn.conv.split import Form, Weights, split, split_gradients
from tests.nn.cases import numbers


@dataclass(frozen=True)
class Case:
    towers: int = 1
    outputs: int = 3
    scalers: int = 2
    views: tuple[tuple[int, ...], ...] = ((0, 1, 2),)
    mixing: bool = False
    edge_dim: int | None = None
    encoded: bool = True  # whether edge features come to M through a layer of their own
    width: int = 2


CASES = {
    "plain": Case(),
    "mixing folded into U": Case(mixing=True),
    "towers": Case(towers=3),
    "edge features": Case(edge_dim=4),
    "towers with edge features": Case(towers=3, edge_dim=1),
    "edge features as they are": Case(edge_dim=4, encoded=False),
    "towers with edge features as they are": Case(towers=3, edge_dim=1, encoded=False),
    "two views": Case(views=((0, 2), (1, 3))),
    "two views, the first aggregators last": Case(views=((2, 3), (0, 1)), towers=2),
    "two views, mixing and edge features": Case(views=((1,), (0, 2)), mixing=True, edge_dim=3),
    "one of everything": Case(outputs=1, scalers=1, views=((0,),), width=1, mixing=True),
}


def made(case: Case) -> tuple[Form, list[Tensor | None]]:
    aggregators = sum(len(view) for view in case.views)
    results = (case.scalers * aggregators + 1) * case.width
    of_edge = (case.width if case.encoded else case.edge_dim) if case.edge_dim else 0
    encoder = case.edge_dim is not None and case.encoded
    shapes = [
        (case.towers, case.width, 2 * case.width + of_edge),
        (case.towers, case.width),
        (case.towers, case.outputs, results),
        (case.towers, case.outputs),
        (case.outputs, case.outputs) if case.mixing else None,
        (case.outputs,) if case.mixing else None,
        (case.width, case.edge_dim) if encoder else None,
        (case.width,) if encoder else None,
    ]
    weights = [
        None if shape is None else numbers(*shape, dtype=torch.float64, device="cpu", seed=i)
        for i, shape in enumerate(shapes)
    ]
    return Form(case.width, case.scalers, aggregators, case.views), weights


@pytest.mark.parametrize("case", CASES)
def test_parts_are_the_layer(case):
    """x_i, x_j and e through the parts are what they are through M and U, one after the other:
    U's share of x_i, and of the aggregates of one message, each scaled by a number of its own."""
    case = CASES[case]
    form, weights = made(case)
    pre, bias, post, post_bias, mixing, mixing_bias, encoder, encoder_bias = weights
    parts = split(form, Weights(*weights))
    x, y = numbers(2, case.width, dtype=torch.float64, device="cpu", seed=20)
    seen, edge = [x, y], 0
    if case.edge_dim is not None:
        e = numbers(case.edge_dim, dtype=torch.float64, device="cpu", seed=21)
        seen.append(e if encoder is None else encoder @ e + encoder_bias)
        edge = (parts.edge @ e).reshape(case.towers, case.width)
    message = pre @ torch.cat(seen) + bias
    torch.testing.assert_close(parts.receiver @ x + parts.sender @ y + edge + parts.bias, message)

    scales = torch.arange(1.0, case.scalers + 1).double()
    results = torch.arange(1.0, form.aggregators + 1).double()[:, None] * message[:, None]
    scaled = scales[:, None, None] * results[:, None]  # (towers, scalers, aggregators, width)
    h = torch.cat([x.expand(case.towers, -1), scaled.flatten(1)], 1)
    expected = (post @ h[..., None])[..., 0] + post_bias
    if mixing is not None:
        expected = expected @ mixing.t() + mixing_bias
    out = parts.keep @ x + parts.keep_bias
    for view, mix in zip(form.views, parts.mixes, strict=True):
        out = out + torch.einsum("s,tk,stko->to", scales, results[:, list(view)].flatten(1), mix)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_autograd(case):
    form, weights = made(CASES[case])
    leaves = [weight.requires_grad_() for weight in weights if weight is not None]
    *parts, mixes = split(form, Weights(*weights))
    outputs = [part for part in (*parts, *mixes) if part is not None]
    upstream = [
        numbers(*out.shape, dtype=out.dtype, device="cpu", seed=30 + i)
        for i, out in enumerate(outputs)
    ]
    expected = torch.autograd.grad(outputs, leaves, upstream)
    got = split_gradients(form, Weights(*weights), upstream)
    assert [g is None for g in got] == [weight is None for weight in weights]
    present = tuple(gradient for gradient in got if gradient is not None)
    torch.testing.assert_close(present, expected, rtol=0, atol=1e-13)
