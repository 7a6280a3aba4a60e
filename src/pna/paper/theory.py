"""Theorem 1, Proposition 1, Theorem 2 and the case for logarithmic scalers, computed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from pna.data.multitask import multitask
from pna.theory.collision import Search, find_collision
from pna.theory.countable import Elements, collisions, encode, multisets
from pna.theory.depth import growth
from pna.theory.moments import Recovered, multiset_from_moments
from pna.theory.stars import statistics

#: The first n − 1 of these confuse two multisets of n.
AGGREGATORS = ("mean", "std", "max", "min", "moment_3", "softmax", "softmin")

SIZES = range(2, 17)  # of multisets recovered from moments

SCALERS = ("identity", "amplification", "linear")
ELEMENTS, LARGEST = 3, 4  # all multisets of up to 4 of 3 elements are encoded

NODES = (20, 40, 60, 80, 100)  # of graphs through which layers amplify


@dataclass(frozen=True)
class Recovery:
    """n equally spaced values from −1 to 1, and what came back from their moments."""

    n: int
    recovered: Recovered
    error: float  # the largest of a value


@dataclass(frozen=True)
class Codes:
    """Mean times one scaler of every small multiset, and which multisets share a value."""

    scaler: str
    values: dict[Elements, Fraction]
    confused: list[list[Elements]]


@dataclass(frozen=True)
class Theory:
    """The numbers behind each statement."""

    collisions: tuple[Search, ...]  # of 2, 3, … values
    recoveries: tuple[Recovery, ...]
    codes: tuple[Codes, ...]
    growth: dict[str, list[np.ndarray]]  # log10 for each scaler, by NODES: (graphs,)


def theory() -> Theory:
    """Compute all of it, in seconds."""
    return Theory(
        collisions=tuple(
            find_collision(AGGREGATORS[: n - 1], n) for n in range(2, len(AGGREGATORS) + 2)
        ),
        recoveries=tuple(recover(n) for n in SIZES),
        codes=tuple(code(scaler) for scaler in SCALERS),
        growth=grow(),
    )


def recover(n: int) -> Recovery:
    """n values to moments and back."""
    values = np.linspace(-1, 1, n)
    orders = ["mean", "std", *(f"moment_{k}" for k in range(3, n + 1))][:n]
    moments = statistics(orders, torch.from_numpy(values)[None])[0].tolist()
    found = multiset_from_moments(moments)
    return Recovery(n, found, float(np.abs(np.array(found.values) - values).max()))


def code(scaler: str) -> Codes:
    """All small multisets to their values."""
    values = {m: encode(m, scaler, LARGEST) for m in multisets(ELEMENTS, LARGEST)}
    return Codes(scaler, values, collisions(values.__getitem__, ELEMENTS, LARGEST))


def grow() -> dict[str, list[np.ndarray]]:
    """Erdős–Rényi graphs of growing size, δ from the benchmark's training graphs."""
    one = {"train": 1, "validation": 1, "test": 1}
    training = multitask(seed=0, counts=one | {"train": 64}, tasks=["degree"]).split("train")
    graphs = multitask(
        seed=1, sizes=NODES, counts=one | {"test": 64}, tasks=["degree"],
        mixture={"erdos_renyi": 1},
    ).split("test")  # fmt: skip
    stats = training.degree_stats()
    grown = {scaler: growth(graphs, scaler, stats) for scaler in SCALERS}
    return {
        scaler: [values[graphs.sizes == nodes].numpy() for nodes in NODES]
        for scaler, values in grown.items()
    }
