import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pna import GraphSet
from pna.theory import advise
from pna.theory.advice import CANDIDATES, FOUR, NONE, PAPER
from pna.theory.neighbourhoods import DistinctNeighbourhoods, count


def stars_of(neighbourhoods: list[list[float]], **more: object) -> GraphSet:
    """A graph for each: leaves that send to a centre, which is its last node."""
    sizes = [len(leaves) + 1 for leaves in neighbourhoods]
    edges = [(i, n - 1) for n in sizes for i in range(n - 1)]
    x = np.array([value for leaves in neighbourhoods for value in (*leaves, 0)])
    edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return GraphSet.from_arrays(sizes, edge_index, [n - 1 for n in sizes], x=x, **more)  # type: ignore[arg-type]


def merged(graphs: GraphSet, aggregators: tuple[str, ...], scalers: tuple[str, ...]) -> int:
    found = advise(graphs, grid=0.01)
    return next(
        m.merged for m in found.sets if (m.aggregators, m.scalers) == (aggregators, scalers)
    )


def test_merged_neighbourhoods_by_hand() -> None:
    graphs = stars_of([[0.0, 0, 4], [0.0, 4, 4], [0.0, 2, 2, 4], [0.0, 0, 4, 4], [0.0, 0, 4]])
    found = advise(graphs, grid=0.01)
    assert (found.graphs, found.neighbourhoods, found.distinct) == (5, 5, 4)
    assert merged(graphs, ("mean",), NONE) == 1  # 4/3, 8/3, 2, 2
    assert merged(graphs, ("max",), NONE) == 3
    assert merged(graphs, ("sum",), NONE) == 2  # 4, 8, 8, 8
    assert merged(graphs, FOUR, NONE) == 0


def test_scalers_see_the_degree_where_a_statistic_is_not_zero() -> None:
    graphs = stars_of([[1.0, 2], [1.0, 1, 2, 2], [0.0], [0.0, 0]])
    assert merged(graphs, FOUR, NONE) == 2
    assert merged(graphs, FOUR, PAPER) == 1  # {0} and {0, 0}: all is 0


@pytest.mark.parametrize("integer", [False, True])
@settings(max_examples=40)
@given(data=st.data())
def test_distinct_neighbourhoods_are_counted(integer: bool, data: st.DataObject) -> None:
    """Against multisets counted by Python, with features of nodes and of edges."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes, edges = int(rng.integers(1, 12)), int(rng.integers(1, 30))
    x = rng.integers(0, 3, (nodes, 2))
    e = rng.integers(0, 2, (edges, 1))
    edge_index = rng.integers(0, nodes, (2, edges))
    if not integer:
        x, e = x.astype(np.float32), e.astype(np.float32)
    graphs = GraphSet.from_arrays([nodes], edge_index, [edges], x=x, edge_attr=e)
    messages: dict[int, list[tuple[float, ...]]] = {}
    for (s, r), attribute in zip(edge_index.T, e, strict=True):
        messages.setdefault(int(r), []).append((*x[s], *attribute))
    hoods = DistinctNeighbourhoods.of(graphs, 0.01)
    assert hoods.total == len(messages)
    whole = {frozenset(Counter(m).items()) for m in messages.values()}
    assert hoods.distinct == len(whole)
    columns = {
        tuple(frozenset(Counter(column).items()) for column in zip(*m, strict=True))
        for m in messages.values()
    }
    assert count(hoods.separately()) == len(columns)
    alone, scaled = hoods.statistics(CANDIDATES)
    for parts in (alone, scaled):
        told = [count(parts[:k].sum(axis=0, dtype=np.uint64)) for k in range(1, len(parts) + 1)]
        assert all(a <= b for a, b in pairwise(told))  # more aggregators tell no less apart
        assert told[-1] <= len(columns)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=12))
def test_statistics_are_those_of_pna(neighbourhoods: list[list[int]]) -> None:
    """With a fine grid what differs is told apart, and nothing else."""
    import pna
    from pna.theory.stars import stars

    graphs = stars_of([[float(v) for v in leaves] for leaves in neighbourhoods])
    hoods = DistinctNeighbourhoods.of(graphs, 1e-6)
    values, adj = stars(neighbourhoods)
    for name in ("mean", "std", "max", "min", "sum", "moment_3"):
        expected = pna.aggregate(values, adj, [name]).flatten().round(decimals=4) + 0.0
        alone, _ = hoods.statistics([name])
        assert count(alone[0]) == len(set(expected.tolist()))


def test_nothing_depends_on_the_size_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    graphs = stars_of([rng.normal(size=rng.integers(1, 6)).tolist() for _ in range(50)])
    whole = advise(graphs)
    monkeypatch.setattr("pna.theory.neighbourhoods._CHUNK", 7)
    assert advise(graphs) == whole


def test_a_constant_degree_needs_no_scalers() -> None:
    rng = np.random.default_rng(0)
    found = advise(stars_of(rng.normal(size=(300, 3)).tolist()))
    assert found.constant_degree
    assert found.recommended.scalers == NONE
    assert "every neighbourhood has 3 neighbours" in " ".join(found.reasons)
    by_scalers = {m.scalers: m.merged for m in found.sets if m.aggregators == FOUR}
    assert by_scalers[NONE] == by_scalers[PAPER]


@pytest.mark.parametrize(("degree", "words"), [
    (1, "of the moments the mean is enough; none has 2, and later moments follow from these"),
    (2, "none has 3, and later moments follow"),
    (3, "none has 4, and later moments follow"),
])  # fmt: skip
def test_no_moment_beyond_the_neighbours(degree: int, words: str) -> None:
    """On a grid a higher one still tells some apart, but only as more decimals would."""
    rng = np.random.default_rng(0)
    found = advise(stars_of(rng.normal(size=(300, degree)).tolist()))
    orders = [int(a[-1]) for a in found.recommended.aggregators if a.startswith("moment_")]
    assert max(orders, default=0) <= degree
    assert words in " ".join(found.reasons)
    assert f"every neighbourhood has {degree} neighbour{'s' if degree > 1 else ''}:" in " ".join(
        found.reasons
    )


def test_categories_need_the_mean_and_a_scaler() -> None:
    """Theorem 2: proportions and size are all there is to know."""
    rng = np.random.default_rng(0)
    leaves = [rng.integers(0, 3, rng.integers(1, 6)).tolist() for _ in range(400)]
    graphs = stars_of(leaves)
    assert graphs.x is not None and not graphs.x.is_floating_point()
    found = advise(graphs, grid=0.01)
    assert found.recommended.aggregators == ("mean",)
    assert found.recommended.scalers == ("identity", "amplification")
    assert found.recommended.merged == 0
    assert "without scalers it would be" in found.reasons[1]


def test_continuous_values_need_several_aggregators() -> None:
    rng = np.random.default_rng(0)
    found = advise(stars_of([rng.normal(size=rng.integers(1, 6)).tolist() for _ in range(2000)]))
    assert len(found.recommended.aggregators) >= 2
    assert found.recommended.merged <= 0.03 * found.distinct
    mean = next(m for m in found.sets if m.aggregators == ("mean",) and m.scalers == NONE)
    assert mean.merged > 0.9 * found.distinct
    merged = [use.merged for use in found.moments]
    assert merged == sorted(merged, reverse=True)
    shares = [use.share for use in found.moments]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True)


def test_how_features_go_together_is_unavoidable() -> None:
    edge_index = torch.tensor([[0, 1, 2, 3], [4, 4, 5, 5]])
    x = torch.tensor([[0, 0], [1, 1], [0, 1], [1, 0], [0, 0], [0, 0]])
    found = advise(GraphSet.from_arrays([6], edge_index, [4], x=x.float()))
    assert (found.distinct, found.unavoidable) == (2, 1)
    assert "how features go together" in found.reasons[-1]


def test_without_features_neighbours_are_counted() -> None:
    edge_index = torch.tensor([[0, 1, 2], [3, 3, 4]])
    found = advise(GraphSet.from_arrays([5], edge_index, [3]))
    assert (found.distinct, found.features) == (2, ())
    assert found.recommended.scalers == ("identity", "amplification")
    assert found.recommended.merged == 0


def test_the_training_split_is_looked_at() -> None:
    graphs = stars_of([[1.0], [2.0], [3.0]], split=["train", "train", "test"])
    assert advise(graphs).graphs == 2
    assert advise(graphs, split="test").graphs == 1


def test_json_holds_it_all() -> None:
    found = advise(stars_of([[1.0], [2.0, 3.0]]))
    held = json.loads(json.dumps(found.as_dict()))
    assert held["recommended"]["merged"] == 0
    assert held["degrees"] == [0, 2]


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="without an edge"):
        advise(stars_of([[]]))
    with pytest.raises(ValueError, match="expected a number above 0"):
        advise(stars_of([[1.0]]), grid=0)
    with pytest.raises(ValueError, match="not finite"):
        advise(stars_of([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="too fine"):
        advise(stars_of([[1.0, 2.0]]), grid=1e-300)
