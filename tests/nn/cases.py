"""What tests of layers share: graphs, numbers, and how results and gradients are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pna
from pna.nn import PNAConv
from tests.ops.cases import Graph, features, random_edges

PAPER = ["mean", "std", "max", "min"]
SCALERS = ["identity", "amplification", "attenuation"]
#: Degrees of the training set, from which δ comes.
DEG = torch.tensor([1, 4, 6, 3, 0, 1])

GRAPHS = {
    # degrees of 0 to about 8, some nodes alone in theirs
    "random": Graph(random_edges(50, 14, 14), 14),
    "isolated": Graph([(0, 1), (2, 1), (3, 2)], 5),
    "self-loops": Graph([(1, 1), (0, 1), (2, 2), (1, 0), (0, 0)], 3),
    "repeated edges": Graph([(0, 1), (2, 1), (0, 1), (1, 2), (0, 1), (1, 2)], 3),
    "degree 1": Graph([(2, 0), (0, 1), (1, 2)], 3),
    "no edges": Graph([], 3),
    "no nodes": Graph([], 0),
    # long enough to be cut in segments
    "hub": Graph(random_edges(300, 20, 1) + random_edges(30, 20, 20), 20),
}


def numbers(*shape: int, dtype: torch.dtype, device: Any, seed: int = 0) -> Tensor:
    return features(1, torch.Size(shape).numel(), dtype, device, seed).reshape(shape)


def outcome(
    run: Callable[[], Tensor], leaves: Mapping[str, Tensor], seed: int = 7
) -> dict[str, Tensor]:
    """The output, then the gradients of what is named, 0 where there is none."""
    for leaf in leaves.values():
        leaf.requires_grad_()
    out = run()
    upstream = numbers(*out.shape, dtype=out.dtype, device=out.device, seed=seed)
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream, materialize_grads=True)
    return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def assert_equal_in_norm(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """Each within `tolerance` of its norm. Where numbers cancel to almost nothing (as the gradient
    of a bias does that only std sees), of a tenth."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape, name
        distance = float((got[name].double() - value.double()).norm())
        scale = max(float(value.double().norm()), 0.1)
        assert distance <= tolerance * scale, f"{name}: {distance:.2e} of {scale:.2e}"


def by_definition(
    layer: PNAConv,
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    aggregators: Sequence[Any],
    scalers: Sequence[Any],
    stats: pna.DegreeStats | None,
) -> Tensor:
    """The layer as the paper writes it, with every message and every scaled aggregate made."""
    towers, width = layer.towers, layer.F_in
    shares = (
        x.reshape(-1, towers, width) if layer.divide_input else x[:, None].expand(-1, towers, -1)
    )
    senders, receivers = edge_index

    def through(layers: nn.ModuleList, h: Tensor) -> Tensor:
        for k, linear in enumerate(layers):
            h = h if k == 0 else layer.act(h)
            each = zip(h.unbind(1), linear.weight, linear.bias, strict=True)
            h = torch.stack([F.linear(*tower) for tower in each], 1)
        return h

    def messages(first: Tensor, second: Tensor) -> Tensor:
        parts = [shares[first], shares[second]]
        if edge_attr is not None:
            encoder, given = layer.edge_encoder, edge_attr
            if encoder is not None:
                given = F.linear(given, encoder.weight, encoder.bias)
            parts.append(given[:, None].expand(-1, towers, -1))
        return through(layer.pre, torch.cat(parts, 2)).flatten(1)

    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    nothing = x.new_zeros(x.shape[0], towers * width)
    with pna.backend("reference"):
        plain = pna.aggregate(nothing, adjacency, aggregators, messages(receivers, senders))
        swapped = pna.aggregate(nothing, adjacency, aggregators, messages(senders, receivers))
    extrema = [layer.swap_extrema and name in ("max", "min") for name in aggregators]
    results = torch.where(torch.tensor(extrema, device=x.device)[:, None], swapped, plain)
    scaled = pna.scale(results, adjacency.degree, scalers, stats)
    scaled = scaled.reshape(x.shape[0], len(scalers) * len(aggregators), towers, width)
    h = torch.cat([shares, scaled.transpose(1, 2).flatten(2)], 2)
    h = through(layer.post, h).flatten(1)
    return h if layer.lin is None else F.linear(h, layer.lin.weight, layer.lin.bias)
