"""Assemble graphs of a set into a batch of fixed shape, on the device.

The first kernel computes where every graph begins. The second works on nodes, the third on edges:
each looks up the graph of an element and copies what the set stores of it. The last kernel sorts
nodes by degree. It counts for each node how many come before it, which is cheaper than a sort for
some thousands of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device

#: The most graphs in a batch, whose sizes one program sums, and the most nodes that are ranked.
MOST_GRAPHS, MOST_RANKED = 4096, 16384

_BLOCK, _RANKED_AT_ONCE, _RANKED_BESIDE = 128, 8, 512
#: Rows are sorted within windows of at most this many, as in `Adjacency`.
WINDOW = 4096


@dataclass(frozen=True)
class Layout:
    """The source of every node and edge of a batch. The last graph is padding.

    If the spare edges belong to no node, `indptr` ends before them."""

    ids: Tensor  # (graphs + 1,) int64, 0 for padding
    real: Tensor  # (graphs + 1,) bool
    sizes: Tensor  # (graphs + 1,) int64
    starts: Tensor  # (graphs + 2,) int64, first node of every graph, and the end of the last one
    graph_of_node: Tensor  # (nodes,) int64
    from_node: Tensor  # (nodes,) int64, index in the set, 0 for padding
    from_edge: Tensor  # (edges,) int64, the same for edges
    indptr: Tensor  # (nodes + 1,) int32, as all below
    senders: Tensor  # (edges,)
    out_indptr: Tensor  # (nodes + 1,)
    receivers: Tensor  # (edges,) by sender
    out_ranks: Tensor  # (edges,)


@Kernel
def _graphs_kernel(
    ids, node_offsets, edge_offsets, given, real, sizes, starts, edge_starts, firsts, edge_firsts,
    graphs, nodes, edges, BLOCK: tl.constexpr,
):  # fmt: skip
    """Size and first node and edge, in the batch and in the set, of every graph and the padding."""
    place = tl.arange(0, BLOCK)
    live = place < graphs
    own = tl.load(ids + place, mask=live, other=-1)
    there = own >= 0
    first = tl.load(node_offsets + own, mask=there, other=0)
    edge_first = tl.load(edge_offsets + own, mask=there, other=0)
    size = tl.load(node_offsets + own + 1, mask=there, other=0) - first
    size = tl.where(there, size, -1 - own)
    count = tl.load(edge_offsets + own + 1, mask=there, other=0) - edge_first
    size = tl.where(place == graphs, nodes - tl.sum(size, 0), size)
    count = tl.where(place == graphs, edges - tl.sum(count, 0), count)
    every = place <= graphs
    tl.store(given + place, tl.where(there, own, 0), mask=every)
    tl.store(real + place, there.to(tl.uint8), mask=every)
    tl.store(sizes + place, size, mask=every)
    tl.store(starts + place, tl.cumsum(size, 0) - size, mask=every)
    tl.store(starts + graphs + 1, nodes)
    tl.store(edge_starts + place, tl.cumsum(count, 0) - count, mask=every)
    tl.store(firsts + place, first, mask=every)
    tl.store(edge_firsts + place, edge_first, mask=every)


@triton.jit
def _graph_of(starts, place, graphs, HALVINGS: tl.constexpr):
    """The graph that contains each position: the last one that begins at or before it."""
    low = tl.zeros_like(place)
    high = low + graphs + 1
    for _ in tl.static_range(HALVINGS):
        middle = (low + high) // 2
        begun = tl.load(starts + middle) <= place
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle)
    return low


@Kernel
def _nodes_kernel(
    starts, edge_starts, firsts, edge_firsts, real_graphs, set_indptr, set_out_indptr,
    graph_of_node, from_node, indptr, out_indptr, graphs, nodes, edges,
    LOOSE: tl.constexpr, HALVINGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Graph, index in the set, and first incoming and outgoing edge of every node."""
    node = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = node < nodes
    graph = _graph_of(starts, tl.minimum(node, nodes - 1), graphs, HALVINGS)
    real = live & (tl.load(real_graphs + graph) != 0)
    place = node - tl.load(starts + graph)
    source = tl.where(real, tl.load(firsts + graph) + place, 0)
    before = tl.load(edge_starts + graph)
    # e spare edges are spread over n padding nodes: node k begins at edge k·e/n
    spare_nodes = nodes - tl.load(starts + graphs)
    if LOOSE:
        edges = tl.load(edge_starts + graphs)
    spare_edges = edges - tl.load(edge_starts + graphs)
    spread = place * spare_edges // tl.maximum(spare_nodes, 1)
    spread = tl.where(graph == graphs, spread, 0)
    shift = before - tl.load(edge_firsts + graph)
    first = tl.load(set_indptr + source, mask=real, other=0).to(tl.int64) + shift
    out_first = tl.load(set_out_indptr + source, mask=real, other=0).to(tl.int64) + shift
    tl.store(graph_of_node + node, graph, mask=live)
    tl.store(from_node + node, source, mask=live)
    tl.store(indptr + node, tl.where(real, first, before + spread), mask=live)
    tl.store(out_indptr + node, tl.where(real, out_first, before + spread), mask=live)
    if tl.program_id(0) == 0:
        tl.store(indptr + nodes, edges)
        tl.store(out_indptr + nodes, edges)


@Kernel
def _edges_kernel(
    starts, edge_starts, edge_firsts, set_senders, set_receivers, set_ranks,
    from_edge, senders, receivers, ranks, graphs, nodes, edges,
    LOOSE: tl.constexpr, HALVINGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Index in the set, sender, receiver and rank of every edge. Padding edges are self-loops; if
    LOOSE, they belong to no node and their ends are 0."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = edge < edges
    graph = _graph_of(edge_starts, tl.minimum(edge, edges - 1), graphs, HALVINGS)
    real = live & (graph < graphs)
    place = edge - tl.load(edge_starts + graph)
    source = tl.where(real, tl.load(edge_firsts + graph) + place, 0)
    before = tl.load(starts + graph)
    spare_nodes = nodes - tl.load(starts + graphs)
    spare_edges = tl.maximum(edges - tl.load(edge_starts + graphs), 1)
    # the last padding node k whose first edge, k·e/n rounded down, is at or before this one
    owner = ((place + 1) * spare_nodes - 1) // spare_edges
    rank = place - owner * spare_edges // tl.maximum(spare_nodes, 1)
    if LOOSE:
        before, owner, rank = tl.where(real, before, 0), tl.zeros_like(owner), tl.zeros_like(rank)
    sender = tl.load(set_senders + source, mask=real, other=0).to(tl.int64)
    receiver = tl.load(set_receivers + source, mask=real, other=0).to(tl.int64)
    own = tl.load(set_ranks + source, mask=real, other=0).to(tl.int64)
    tl.store(from_edge + edge, source, mask=live)
    tl.store(senders + edge, before + tl.where(real, sender, owner), mask=live)
    tl.store(receivers + edge, before + tl.where(real, receiver, owner), mask=live)
    tl.store(ranks + edge, tl.where(real, own, rank), mask=live)


@Kernel
def _rank_kernel(
    indptr, out_indptr, windows, order, out_order, every, lengths, rows,
    BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Stable sort of rows by length, into `order` and `out_order` within each window, and into
    `every` over all rows; and the lengths by `indptr`. `windows` (2, programs) has the bounds of
    each program's window. Rows must be short: the key, length × rows + row, is an int32."""
    begin, end = tl.load(windows + tl.program_id(0)), rows
    if tl.program_id(1) < 2:
        end = tl.load(windows + tl.num_programs(0) + tl.program_id(0))
    if tl.program_id(1) == 1:
        indptr, order = out_indptr, out_order
    if tl.program_id(1) == 2:
        begin, order = begin * 0, every
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    length = tl.load(indptr + row + 1, mask=live, other=0)
    length -= tl.load(indptr + row, mask=live, other=0)
    if tl.program_id(1) == 0:
        tl.store(lengths + row, length, mask=live)
    key = length * rows + row
    before = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    for first in range(begin, end, BLOCK_S):
        other = first + tl.arange(0, BLOCK_S)
        mask = other < end
        long = tl.load(indptr + other + 1, mask=mask, other=0)
        long -= tl.load(indptr + other, mask=mask, other=0)
        other_key = long * rows + other
        before += (mask[None, :] & (other_key[None, :] < key[:, None])).to(tl.int32)
    tl.store(order + begin + tl.sum(before, 1), row, mask=live)


def lay_out(
    ids: Tensor,
    nodes: int,
    edges: int,
    offsets: tuple[Tensor, Tensor],
    indptrs: tuple[Tensor, Tensor],
    ends: tuple[Tensor, Tensor, Tensor],
    loose: bool = False,
) -> Layout:
    """The graphs with these ids, padded to the given numbers of nodes and edges.

    An id of −1 − n stands for n padding nodes without edges. If `loose`, the spare edges belong to
    no node. The other arguments describe the whole set: `offsets` has the first node and the first
    edge of every graph; `indptrs` the first edge of every node, by receiver and by sender; `ends`
    the senders, receivers and ranks of edges.
    """
    graphs = ids.shape[0]

    def allocate(length: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(length, dtype=dtype, device=ids.device)

    every = [graphs + 1] * 5
    parts = allocate(sum(every) + graphs + 2).split([*every, graphs + 2])
    given, sizes, edge_starts, firsts, edge_firsts, starts = parts
    real = allocate(graphs + 1, torch.bool)
    of_node, from_node, from_edge = allocate(nodes), allocate(nodes), allocate(edges)
    indptr, out_indptr = allocate(nodes + 1, torch.int32), allocate(nodes + 1, torch.int32)
    senders, receivers, ranks = (allocate(edges, torch.int32) for _ in range(3))
    sums = (starts, edge_starts)
    shape = (graphs, nodes, edges)
    with on_device(ids):
        _graphs_kernel[(1,)](
            ids, *offsets, given, real.view(torch.uint8), sizes, *sums, firsts, edge_firsts,
            *shape, BLOCK=next_power_of_2(graphs + 1), num_warps=4,
        )  # fmt: skip
        tile = dict(
            LOOSE=loose, HALVINGS=(graphs + 1).bit_length(), BLOCK=_BLOCK, num_warps=4
        )  # fmt: skip
        _nodes_kernel[(max(cdiv(nodes, _BLOCK), 1),)](
            *sums, firsts, edge_firsts, real.view(torch.uint8), *indptrs, of_node, from_node,
            indptr, out_indptr, *shape, **tile,
        )  # fmt: skip
        if edges > 0:
            _edges_kernel[(cdiv(edges, _BLOCK),)](
                *sums, edge_firsts, *ends, from_edge, senders, receivers, ranks, *shape, **tile
            )
    return Layout(
        given, real, sizes, starts, of_node, from_node, from_edge, indptr, senders, out_indptr,
        receivers, ranks,
    )  # fmt: skip


def windows(rows: int, cuts: Sequence[int], device: torch.device) -> Tensor:
    """Bounds of the windows that `by_length` sorts, (2, programs). All rows are cut at `cuts`, and
    again into windows of at most WINDOW rows."""
    if any(cut % _RANKED_AT_ONCE for cut in cuts):
        raise ValueError(f"got cuts {list(cuts)}, expected multiples of {_RANKED_AT_ONCE}")
    bounds = [0]
    for end in (*cuts, rows):
        bounds += [*range(bounds[-1] + WINDOW, end, WINDOW), end]
    of_tiles = [
        (low, high) for low, high in pairwise(bounds) for _ in range(low, high, _RANKED_AT_ONCE)
    ]
    return torch.tensor(of_tiles, dtype=torch.int32, device=device).t().contiguous()


def by_length(
    indptr: Tensor, out_indptr: Tensor, windows: Tensor, several: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of `indptr` and of `out_indptr`, sorted by length within `windows` (stable); rows of
    `indptr` sorted without windows, which differs if there are `several` windows; and their
    lengths."""
    rows = indptr.shape[0] - 1
    order, out_order, lengths = (torch.empty_like(indptr[1:]) for _ in range(3))
    every = torch.empty_like(order) if several else order
    with on_device(indptr):
        _rank_kernel[(windows.shape[1], 3 if several else 2)](
            indptr, out_indptr, windows, order, out_order, every, lengths, rows,
            BLOCK=_RANKED_AT_ONCE, BLOCK_S=_RANKED_BESIDE, num_warps=4,
        )  # fmt: skip
    return order, out_order, every, lengths
