import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pna.degree import Linear, Power
from pna.theory import collisions, decode, encode, multisets
from pna.theory.countable import offset, scaler_value, smallest_ratio

INJECTIVE = ("amplification", "attenuation", "linear", "inverse_linear")


@pytest.mark.parametrize("scaler", INJECTIVE)
def test_every_small_multiset_comes_back(scaler: str) -> None:
    everything = list(multisets(3, 5))
    assert len(everything) == math.comb(3 + 5, 5)
    assert [decode(encode(m, scaler, 5), scaler, 5) for m in everything] == everything
    assert collisions(lambda m: encode(m, scaler, 5), 3, 5) == []


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.sampled_from(["amplification", "inverse_linear", Power(0.5, 1.3), Linear(1.0, 2.5)]),
)
def test_larger_ones_too_in_any_order(multiset: list[int], scaler: str | Power | Linear) -> None:
    value = encode(multiset, scaler, 12)
    assert isinstance(value, Fraction)
    assert decode(value, scaler, 12) == tuple(sorted(multiset))
    assert encode(multiset[::-1], scaler, 12) == value


def test_a_value_by_hand() -> None:
    # N = 3; γ = 2, so K = 1/3; S(2) = 2; f = 1/3 + 1/3 and 1/3 + 1/9.
    assert encode([0, 1], "linear", 2) == 2 * (Fraction(2, 3) + Fraction(4, 9)) / 2
    assert encode([], "linear", 2) == 0
    assert decode(Fraction(0), "linear", 2) == ()


@pytest.mark.parametrize("scaler", INJECTIVE)
def test_ranges_of_sizes_do_not_meet_and_are_no_further_apart_than_need_be(scaler: str) -> None:
    """All that is asked of Z is that N^(−Z) lies in (0, 1/N]."""
    K, N = offset(scaler), 9
    ends = sorted(
        (scaler_value(scaler, size) * K, scaler_value(scaler, size) * (K + Fraction(1, N)))
        for size in range(1, N)
    )
    gaps = [low - high for (_, high), (low, _) in itertools.pairwise(ends)]
    assert min(gaps) == 0  # a range lacks its lower end, so that they may touch


def test_the_smallest_ratio_is_above_one() -> None:
    assert smallest_ratio("linear", 4) == Fraction(4, 3)
    assert smallest_ratio("inverse_linear", 4) == Fraction(4, 3)
    assert smallest_ratio("identity", 4) is None


def test_a_logarithm_is_its_float64() -> None:
    logarithm = torch.log1p(torch.tensor([2.0], dtype=torch.float64)).item()
    assert scaler_value("amplification", 2) == Fraction(logarithm)
    assert float(scaler_value("amplification", 2)) == pytest.approx(math.log(3), rel=1e-15)
    assert scaler_value("inverse_linear", 3) == Fraction(1, 3)


def test_the_mean_alone_confuses() -> None:
    def mean(multiset: tuple[int, ...]) -> Fraction | None:
        return Fraction(sum(multiset), len(multiset)) if multiset else None

    assert [(0, 2), (1, 1)] in [
        [m for m in group if len(m) == 2] for group in collisions(mean, 3, 2)
    ]


def test_the_identity_scaler_confuses_all_multiples() -> None:
    """Whatever f is, the mean sees proportions at best, and the identity leaves it at that."""
    groups = collisions(lambda m: encode(m, "identity", 4), 3, 4)
    assert [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)] in groups
    assert [(0, 1), (0, 0, 1, 1)] in groups
    group_of = {multiset: k for k, group in enumerate(groups) for multiset in group}
    for multiset in multisets(3, 2):
        if multiset:
            assert group_of[multiset] == group_of[tuple(sorted(multiset * 2))]
    with pytest.raises(ValueError, match=r"\{0\} and \{0, 0\} among them"):
        decode(encode([0], "identity"), "identity")


def test_a_scaler_of_ones_own() -> None:
    assert decode(encode([1, 2, 2], lambda d: d * d), lambda d: d * d) == (1, 2, 2)
    with pytest.raises(ValueError, match="positive values"):
        encode([1], lambda d: 2 - d)
    with pytest.raises(ValueError, match="that is nan at 1"):
        encode([1], lambda d: math.nan)


def test_numbers_of_numpy_and_torch_will_do() -> None:
    def logarithm(d: int) -> torch.Tensor:
        return torch.log1p(torch.tensor(d, dtype=torch.float64))

    multiset = np.array([2, 0])
    assert encode(multiset, logarithm) == encode([0, 2], "amplification")  # type: ignore[arg-type]
    learned = Power(torch.nn.Parameter(torch.tensor(1.0)), 1.0)
    assert encode(multiset, learned) == encode([0, 2], "amplification")  # type: ignore[arg-type]


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers from 0"):
        encode([-1], "linear")
    with pytest.raises(ValueError, match="raise max_size"):
        encode([0] * 9, "linear")
    with pytest.raises(ValueError, match="no multiset of at most 8"):
        decode(Fraction(1, 7), "linear")
    with pytest.raises(ValueError, match="got about 1e-300, which no multiset"):
        decode(Fraction(1, 10**300), "linear")
    with pytest.raises(ValueError, match="unknown scaler"):
        encode([0], "liner")
