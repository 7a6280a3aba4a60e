"""On any graph, the kernels that build an Adjacency make what the sorts of torch make."""

from unittest import mock

import pytest
import torch

pytest.importorskip("hypothesis", reason="properties are looked for with hypothesis")
pytest.importorskip("triton")
from hypothesis import given, settings
from hypothesis import strategies as st

from pna import adjacency as module
from pna import rows
from tests.conftest import DEVICE
from tests.ops.test_adjacency import assert_same, built, definition, of_both

pytestmark = pytest.mark.usefixtures("device")

NODES = [(1, 1), (7, 7), (2, 300), (300, 2), (40, 40)]
TYPES = [torch.int64, torch.int32, torch.int16, torch.uint8]


@st.composite
def graphs(draw):
    """Sizes and edges, some with hubs, isolated nodes, or memory that is not contiguous."""
    sizes = draw(st.sampled_from([(0, 0), (0, 3), (3, 0), *NODES]))
    most = 0 if min(sizes) == 0 else draw(st.sampled_from([0, 1, 20, 255, 256, 700]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    hub = draw(st.booleans())  # of half of all edges
    ends = [torch.randint(0, n, (most,), generator=random) if n else torch.empty(0) for n in sizes]
    for end in ends if hub else []:
        end[torch.rand(most, generator=random) < 0.5] = 0
    dtype = draw(st.sampled_from(TYPES if max(sizes) < 256 else TYPES[:3]))
    edges = torch.stack(ends).to(DEVICE, dtype)
    forms = [edges, edges.t().contiguous().t(), edges.repeat_interleave(2, 1)[:, ::2]]
    return sizes, draw(st.sampled_from(forms))


@of_both
@settings(max_examples=25)
@given(graphs())
def test_kernels_make_what_the_sorts_of_torch_make(ranked, graph):
    sizes, edges = graph
    adjacency, all_exist = built(edges, sizes, ranked)
    assert all_exist
    assert_same(adjacency, definition(edges, sizes))


@settings(max_examples=10)
@given(graphs())
def test_long_rows_are_counted_if_there_are_many_edges(graph):
    sizes, edges = graph
    if min(sizes) > 0:
        adjacency, _ = built(edges, sizes, exactly=True)
        assert_same(adjacency, definition(edges, sizes, rows.cut_exactly))


@of_both
@settings(max_examples=20)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_long_rows_of_any_lengths(ranked, lengths, segment):
    """With shorter segments, so that many rows are long, and the bounds are tight."""
    receivers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    edges = torch.stack([torch.zeros_like(receivers), receivers]).to(DEVICE)
    with mock.patch.object(module, "SEGMENT", segment):
        adjacency, _ = built(edges, (1, len(lengths)), ranked)
        assert_same(adjacency, definition(edges, (1, len(lengths))))
