"""The order in which graphs or nodes are trained on."""

from __future__ import annotations

import numpy as np


def order(count: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """The order of the graphs or nodes in an epoch; it depends only on seed and epoch."""
    if not shuffle:
        return np.arange(count)
    return np.random.default_rng([seed, epoch]).permutation(count)
