"""The kernels that build an Adjacency on a GPU make what the sorts of torch make."""

import os
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from pna import adjacency as module
from pna.adjacency import Adjacency
from pna.ops.triton import adjacency as kernels
from tests.conftest import DEVICE

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


def definition(edges, sizes):
    """Of indices clamped to existing nodes, with spare entries for long rows."""
    ends = [end.long().clamp(0, max(n - 1, 0)) for end, n in zip(edges, sizes, strict=True)]
    return module._sort(torch.stack(ends).int(), *sizes, module._cut_within_bounds)


def built(edges, sizes, block=256):
    long = module._bounds(edges.shape[1])
    with mock.patch.object(kernels, "_BLOCK", block):
        arrays, all_exist = kernels.rank(edges, *sizes, long, module.SEGMENT, module._WINDOW_BITS)
    return module._of_arrays(arrays), bool(all_exist)


def assert_same(one, other):
    for name, a, b in zip(range(99), tree_leaves(one), tree_leaves(other), strict=False):
        assert (name, a.tolist()) == (name, b.tolist())
        assert a.dtype == b.dtype == torch.int32


@settings(deadline=None, max_examples=25)
@given(graphs())
def test_ranking_makes_what_sorts_make(graph):
    sizes, edges = graph
    adjacency, all_exist = built(edges, sizes)
    assert all_exist
    assert_same(adjacency, definition(edges, sizes))


def test_several_windows_and_the_tiles_of_a_gpu():
    """Rows are ordered within windows of 4096."""
    edges = torch.stack([torch.arange(0, 4200, 7), torch.arange(0, 600)]).to(DEVICE)
    with mock.patch.object(module, "_WINDOW_BITS", 6):
        adjacency, _ = built(edges, (4200, 600), kernels._BLOCK if DEVICE.type == "cuda" else 128)
        assert_same(adjacency, definition(edges, (4200, 600)))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_long_rows_of_any_lengths(lengths, segment):
    """With shorter segments, so that many rows are long, and the bounds are tight."""
    receivers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    edges = torch.stack([torch.zeros_like(receivers), receivers]).to(DEVICE)
    with mock.patch.object(module, "SEGMENT", segment):
        adjacency, _ = built(edges, (1, len(lengths)))
        assert_same(adjacency, definition(edges, (1, len(lengths))))


@pytest.mark.parametrize("bad", [-1, 4, 127, -128, 2**31, -(2**40)])
@pytest.mark.parametrize("row", [0, 1])
def test_a_bad_index_is_clamped_and_found(row, bad):
    edges = torch.tensor([[2, 0, 1, 0, 3], [0, 1, 0, 1, 3]])
    edges[row, 3] = bad
    edges = edges.to(DEVICE, torch.int8 if -128 <= bad < 128 else torch.int64)
    adjacency, all_exist = built(edges, (4, 4))
    assert not all_exist
    assert_same(adjacency, definition(edges, (4, 4)))
    ends, all_exist = kernels.read(edges, 4, 4)
    assert not all_exist
    assert ends.tolist() == edges.long().clamp(0, 3).tolist()


@settings(deadline=None, max_examples=10)
@given(graphs())
def test_edges_are_read_as_they_are(graph):
    sizes, edges = graph
    with mock.patch.object(kernels, "_READ_AT_ONCE", 128):
        ends, all_exist = kernels.read(edges, *sizes)
    assert bool(all_exist) and ends.tolist() == edges.tolist() and ends.dtype == torch.int32


def test_arrays_are_aligned():
    """Kernels have a slower version for arrays that are not."""
    adjacency, _ = built(torch.zeros(2, 300, dtype=torch.int64, device=DEVICE), (3, 5))
    assert all(leaf.data_ptr() % 64 == 0 for leaf in tree_leaves(adjacency))


def test_kernels_raise_the_message_that_names_the_remedy():
    """At once on a CPU, where the interpreter runs; see below for a GPU."""
    edges = torch.tensor([[0, 9], [1, 1]])
    with pytest.raises(RuntimeError, match=r"call pna.check\(edge_index, num_nodes\)"):
        module._build_on_the_gpu(edges, 4, 4)
    with (
        mock.patch.object(kernels, "MOST_RANKED", 1),
        pytest.raises(RuntimeError, match=r"call pna.check\(edge_index, num_nodes\)"),
    ):
        module._build_on_the_gpu(edges, 4, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("edges", [0, 200, 6500, 2**14, 2**14 + 1, 2**17])
def test_nothing_waits_for_the_gpu(edges):
    ends = torch.randint(0, 3000, (2, edges), device="cuda")
    Adjacency.from_edge_index(ends, 3000)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        adjacency = Adjacency.from_edge_index(ends, 3000)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(adjacency, definition(ends, (3000, 3000)))


@pytest.mark.gpu
def test_a_version_is_compiled_once_for_all_sizes():
    for edges, nodes in [(6500, 3000), (16, 16), (1, 1), (0, 1), (4096, 64), (77, 3)]:
        Adjacency.from_edge_index(torch.zeros(2, edges, dtype=torch.int64, device="cuda"), nodes)
    assert len(kernels._rank_edges_kernel._compiled) <= 2  # this test alone, or others before it
    assert len(kernels._rank_rows_kernel._compiled) <= 4


@pytest.mark.gpu
@pytest.mark.parametrize("edges", [10, 20_000])
@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_a_bad_index_raises_at_the_next_synchronisation(edges, bad):
    """In a process of its own, which takes seconds to start: CUDA does not recover from this."""
    program = f"""
import torch, pna
edges = torch.zeros(2, {edges}, dtype=torch.int64, device="cuda")
edges[1, 7] = {bad}
x = torch.ones(5, 4, device="cuda")
torch.cuda.synchronize()
print("built", pna.aggregate(x, pna.Adjacency.from_edge_index(edges, 5), ["mean"]).shape)
torch.cuda.synchronize()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "built" in done.stdout or edges > 2**18
    assert "illegal memory access" not in done.stderr
    assert re.search("pna.check", done.stderr) or "device-side assert" in done.stderr
