"""What tests of layers share: graphs, numbers, and how results and gradients are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.ops.cases import Graph, features, random_edges

PAPER = ["mean", "std", "max", "min"]
SCALERS = ["identity", "amplification", "attenuation"]
#: Histogram of the degrees of the training set, from which δ comes, and those degrees.
DEG = torch.tensor([1, 4, 6, 3, 0, 1])
DEGREES = [d for d, count in enumerate(DEG.tolist()) for _ in range(count)]

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
