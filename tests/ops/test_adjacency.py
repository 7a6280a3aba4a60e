"""The kernels that build an Adjacency on a GPU make what the sorts of torch make."""

import subprocess
import sys
from functools import partial
from unittest import mock

import pytest
import torch
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from pna import adjacency as module
from pna import rows
from pna.adjacency import Adjacency
from pna.ops.triton import adjacency as kernels
from pna.ops.triton.launcher import Kernel
from tests.conftest import DEVICE
from tests.ops.cases import GRAPHS

pytestmark = pytest.mark.usefixtures("device")

TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

of_both = pytest.mark.parametrize("ranked", [True, False], ids=["ranked", "sorted"])


WITH_SPARE = partial(rows.cut_within_bounds, least=2)


def definition(edges, sizes, cut=WITH_SPARE):
    """Of indices clamped to existing nodes, with spare entries for long rows."""
    ends = [end.long().clamp(0, max(n - 1, 0)) for end, n in zip(edges, sizes, strict=True)]
    return module._sort(torch.stack(ends).int(), *sizes, cut)


def built(edges, sizes, ranked=True, exactly=False):
    """By large tiles, of which the interpreter needs few; and whether all indices exist."""
    numbers = kernels.Sizes(edges.shape[1], *sizes, rows.SEGMENT, rows.WINDOW_BITS)
    bounds = None if exactly else rows.segment_bounds(edges.shape[1], least=2)
    with (
        mock.patch.object(kernels, "_BLOCK", kernels._BLOCK if DEVICE.type == "cuda" else 256),
        mock.patch.object(kernels, "_WIDE", 128),
        mock.patch.object(kernels, "MOST_RANKED", kernels.MOST_RANKED if ranked else -1),
    ):
        arrays, all_exist = kernels.build(edges, numbers, bounds)
    return module._of_arrays(arrays), bool(all_exist)


def assert_same(one, other):
    for number, (a, b) in enumerate(zip(tree_leaves(one), tree_leaves(other), strict=True)):
        assert (number, a.tolist()) == (number, b.tolist())
        assert a.dtype == b.dtype == torch.int32


@of_both
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_make_what_the_sorts_of_torch_make(name, ranked):
    graph = GRAPHS[name]
    edges, nodes = graph.edge_index(DEVICE), graph.nodes
    sizes = nodes if isinstance(nodes, tuple) else (nodes, nodes)
    adjacency, all_exist = built(edges, sizes, ranked)
    assert all_exist
    assert_same(adjacency, definition(edges, sizes))
    if len(graph.edges) > 0:
        adjacency, _ = built(edges, sizes, exactly=True)
        assert_same(adjacency, definition(edges, sizes, rows.cut_exactly))


@of_both
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_edges_of_any_integer_type_and_stride(dtype, ranked):
    graph = GRAPHS["random"]
    edges = graph.edge_index(DEVICE).to(dtype)
    expected = definition(edges, (12, 12))
    for form in (edges, edges.contiguous(), edges.repeat_interleave(2, 1)[:, ::2]):
        assert_same(built(form, (12, 12), ranked)[0], expected)


@of_both
def test_rows_are_sorted_within_windows(ranked):
    """Of 64 rows here, to have many of them; a last one has one row."""
    edges = torch.stack([torch.arange(0, 600) * 7 % 513, torch.arange(0, 600)]).to(DEVICE)
    with mock.patch.object(module, "WINDOW_BITS", 6), mock.patch.object(rows, "WINDOW_BITS", 6):
        adjacency, _ = built(edges, (513, 600), ranked)
        assert_same(adjacency, definition(edges, (513, 600)))


@pytest.mark.parametrize("bad", [-1, 4, 127, -128, 2**31, -(2**40)])
@pytest.mark.parametrize("row", [0, 1])
@of_both
def test_a_bad_index_is_clamped_and_found(row, bad, ranked):
    edges = torch.tensor([[2, 0, 1, 0, 3], [0, 1, 0, 1, 3]])
    edges[row, 3] = bad
    edges = edges.to(DEVICE, torch.int8 if -128 <= bad < 128 else torch.int64)
    adjacency, all_exist = built(edges, (4, 4), ranked)
    assert not all_exist
    assert_same(adjacency, definition(edges, (4, 4)))


def test_arrays_are_aligned():
    """Kernels have a slower version for arrays that are not."""
    adjacency, _ = built(torch.zeros(2, 300, dtype=torch.int64, device=DEVICE), (3, 5))
    assert all(leaf.data_ptr() % 64 == 0 for leaf in tree_leaves(adjacency))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="CUDA does not recover from an assertion")
def test_the_error_names_the_remedy():
    """At once in the interpreter; see below for a GPU."""
    with pytest.raises(RuntimeError, match=r"call pna.check\(edge_index, num_nodes\)"):
        module._build_on_the_gpu(torch.tensor([[0, 9], [1, 1]]), 4, 4)


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
def test_a_version_is_compiled_once_for_all_sizes(monkeypatch):
    made, compile = [], Kernel._compile

    def noted(kernel, *given):
        made.append(kernel)
        return compile(kernel, *given)

    monkeypatch.setattr(Kernel, "_compile", noted)
    kernels._prepared_edges.cache_clear()
    kernels._prepared_rows.cache_clear()
    for edges, nodes in [(6500, 3000), (16, 16), (1, 1), (0, 1), (4096, 64), (77, 3)]:
        Adjacency.from_edge_index(torch.zeros(2, edges, dtype=torch.int64, device="cuda"), nodes)
    assert made == [kernels._rank_edges_kernel, kernels._rank_rows_kernel]


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
pna.aggregate(x, pna.Adjacency.from_edge_index(edges, 5), ["mean"])
torch.cuda.synchronize()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "device-side assert" in done.stderr and "pna.check" in done.stderr
    assert "illegal memory access" not in done.stderr
