"""Who sends to whom, on graphs small enough to check by eye.

The graph of most tests, its edges as they are given, and what each node hears:

    edge  0: 2 → 0     node 0: edges 0 and 2, from 2 and 1
    edge  1: 0 → 1     node 1: edges 1 and 3, from 0 twice
    edge  2: 1 → 0     node 2: nothing
    edge  3: 0 → 1     node 3: edge 4, from itself
    edge  4: 3 → 3
"""

import copy
import gc
import io
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data

import pna
from pna import adjacency as module
from pna import fast_paths, native, rows
from pna.adjacency import Adjacency, as_adjacency
from pna.rows import Rows

EDGES = [[2, 0, 1, 0, 3], [0, 1, 0, 1, 3]]

needs_kernel = pytest.mark.skipif(not native.can_build(), reason="the C kernel was not built")


def edge_index(dtype=torch.int64):
    return torch.tensor(EDGES, dtype=dtype)


def assert_is_the_graph(adj):
    assert adj.indptr.tolist() == [0, 2, 4, 4, 5]
    assert adj.senders.tolist() == [2, 1, 0, 0, 3]
    assert adj.receivers.tolist() == [0, 0, 1, 1, 3]
    assert adj.edge_ids.tolist() == [0, 2, 1, 3, 4]
    assert adj.outgoing.indptr.tolist() == [0, 2, 3, 4, 5]
    assert adj.outgoing.neighbours.tolist() == [1, 1, 0, 0, 3]
    assert adj.out_ranks.tolist() == [0, 1, 1, 0, 0]
    assert adj.out_slots.tolist() == [2, 3, 1, 0, 4]
    assert adj.degree.tolist() == [2, 2, 0, 1]
    assert adj.out_degree.tolist() == [2, 1, 1, 1]
    assert adj.by_degree.tolist() == [2, 3, 0, 1]
    assert (adj.num_senders, adj.num_receivers, adj.num_edges) == (4, 4, 5)


def assert_same(one, other):
    """Every field equal, in value, type and device."""
    leaves = list(zip(tree_leaves(one), tree_leaves(other), strict=True))
    assert len(leaves) == len(tree_leaves(Adjacency.from_edge_index(edge_index(), 4)))
    for a, b in leaves:
        assert torch.equal(a, b)
        assert (a.dtype, a.device) == (b.dtype, b.device)


def edges_of(adj):
    """The edge list as it was given, read from the rows of receivers and from those of senders."""
    incoming, outgoing = torch.empty(2, 2, adj.num_edges, dtype=torch.int32).unbind()
    incoming[:, adj.edge_ids] = torch.stack([adj.senders, adj.receivers])
    rows = torch.arange(adj.num_senders, dtype=torch.int32).repeat_interleave(adj.out_degree)
    outgoing[:, adj.edge_ids[adj.out_slots]] = torch.stack([rows, adj.outgoing.neighbours])
    return incoming.tolist(), outgoing.tolist()


# From an edge_index


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_edge_index_of_any_integer_type(dtype):
    adj = Adjacency.from_edge_index(edge_index(dtype), 4)
    assert_is_the_graph(adj)
    assert {leaf.dtype for leaf in tree_leaves(adj)} == {torch.int32}


def test_edges_already_sorted_by_receiver_keep_their_places():
    adj = Adjacency.from_edge_index(torch.tensor([[3, 1, 2, 0], [0, 0, 1, 3]]), 4)
    assert adj.edge_ids.tolist() == [0, 1, 2, 3]
    assert adj.senders.tolist() == [3, 1, 2, 0]


def test_order_given_is_kept_within_a_receiver():
    senders = torch.tensor([4, 1, 3, 1, 0, 2])
    adj = Adjacency.from_edge_index(torch.stack([senders, torch.zeros(6).long()]), 5)
    assert adj.senders.tolist() == [4, 1, 3, 1, 0, 2]
    assert adj.edge_ids.tolist() == [0, 1, 2, 3, 4, 5]
    # sender 1 meets its two edges in the order given too
    assert adj.out_slots.tolist() == [4, 1, 3, 5, 2, 0]


def test_bipartite():
    """Two senders, three receivers; sender 1 also has the number of a receiver."""
    adj = Adjacency.from_edge_index(torch.tensor([[1, 0, 1], [2, 0, 0]]), (2, 3))
    assert (adj.num_senders, adj.num_receivers) == (2, 3)
    assert adj.degree.tolist() == [2, 0, 1]
    assert adj.out_degree.tolist() == [1, 2]
    assert adj.senders.tolist() == [0, 1, 1]
    assert adj.outgoing.neighbours.tolist() == [0, 0, 2]


@pytest.mark.parametrize("num_nodes", [0, 3, (2, 0), (0, 3)], ids=str)
def test_no_edges(num_nodes):
    adj = Adjacency.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes)
    senders, receivers = num_nodes if isinstance(num_nodes, tuple) else (num_nodes,) * 2
    assert adj.indptr.tolist() == [0] * (receivers + 1)
    assert adj.out_degree.tolist() == [0] * senders
    assert adj.receivers.tolist() == adj.senders.tolist() == adj.edge_ids.tolist() == []
    assert adj.incoming.long_rows.tolist() == adj.incoming.segment_owner.tolist() == []


@pytest.mark.parametrize(
    "num_nodes",
    [np.int64(4), np.int32(4), torch.tensor(4), (4, 4), [4, np.uint8(4)], torch.Size([4, 4])],
    ids=lambda n: type(n).__name__,
)
def test_num_nodes_is_whatever_counts(num_nodes):
    assert_is_the_graph(Adjacency.from_edge_index(edge_index(), num_nodes))
    assert_is_the_graph(as_adjacency(edge_index(), num_nodes))


# From other forms of a graph


def test_edge_index_of_pyg_may_know_its_size():
    assert_is_the_graph(Adjacency.from_edge_index(EdgeIndex(EDGES, sparse_size=(4, 4))))
    assert_is_the_graph(Adjacency.from_edge_index(EdgeIndex(EDGES), 4))
    bipartite = Adjacency.from_edge_index(EdgeIndex([[0], [2]], sparse_size=(1, 5)))
    assert (bipartite.num_senders, bipartite.num_receivers) == (1, 5)


@pytest.mark.parametrize("size", [(None, None), (4, None)], ids=str)
def test_edge_index_of_pyg_may_not_know_it(size):
    with pytest.raises(ValueError, match="got no num_nodes"):
        Adjacency.from_edge_index(EdgeIndex(EDGES, sparse_size=size))


def test_sparse_csr_row_receives_from_column():
    """Row 0 holds columns 1 and 2, so node 0 hears nodes 1 and 2."""
    dense = torch.tensor([[0, 5, 6], [7, 0, 0]])
    adj = Adjacency.from_sparse(dense.to_sparse_csr())
    assert (adj.num_senders, adj.num_receivers) == (3, 2)
    assert adj.indptr.tolist() == [0, 2, 3]
    assert adj.senders.tolist() == [1, 2, 0]
    assert adj.edge_ids.tolist() == [0, 1, 2]
    assert adj.out_degree.tolist() == [1, 1, 1]


def test_sparse_coo_with_entries_repeated():
    receivers_then_senders = edge_index().flip(0)
    matrix = torch.sparse_coo_tensor(
        receivers_then_senders, torch.ones(5), (4, 4), check_invariants=True
    )
    assert_is_the_graph(Adjacency.from_sparse(matrix))
    # coalescing makes the edge 0 → 1, given twice, one
    assert Adjacency.from_sparse(matrix.coalesce()).degree.tolist() == [2, 1, 0, 1]


def test_degrees_of_a_larger_graph():
    """They are kept, and order the receivers; those without edges come first."""
    degree = torch.tensor([7, 2, 9, 3], dtype=torch.int16)
    adj = Adjacency.from_edge_index(edge_index(), 4, degree=degree)
    assert adj.degree.tolist() == [7, 2, 9, 3]
    assert adj.degree.dtype == adj.indptr.dtype
    assert adj.reached_degree.tolist() == [7, 2, 0, 3]
    assert adj.by_degree.tolist() == [2, 1, 3, 0]
    plain = Adjacency.from_edge_index(edge_index(), 4)
    assert plain.reached_degree.tolist() == plain.degree.tolist() == [2, 2, 0, 1]
    assert_same(replace(adj, degree=plain.degree, by_degree=plain.by_degree), plain)
    assert_same(plain.with_degree(degree), adj)
    degree.zero_()
    assert adj.degree.tolist() == [7, 2, 9, 3]  # a copy


def test_degrees_of_a_larger_graph_in_a_union():
    one = Adjacency.from_edge_index(edge_index(), 4, degree=torch.tensor([7, 2, 9, 3]))
    two = Adjacency.disjoint_union([one, Adjacency.from_edge_index(edge_index(), 4)])
    assert two.degree.tolist() == [7, 2, 9, 3, 2, 2, 0, 1]
    assert two.by_degree.tolist() == [2, 6, 7, 1, 4, 5, 3, 0]


@pytest.mark.parametrize(
    ("degree", "error", "message"),
    [
        ([7, 1, 9, 3], ValueError, "degree 1 of node 1, which has 2 edges here, .* at least"),
        ([7, 2, -1, 3], ValueError, "degree -1 of node 2, which has 0 edges here"),
        (
            [7, 2, 9],
            ValueError,
            r"shape \(3,\), expected \(4,\).*full_degree\[batch.n_id",
        ),
        ([[7], [2], [9], [3]], ValueError, r"degree of shape \(4, 1\), expected \(4,\)"),
        ([7.0, 2.0, 9.0, 3.0], TypeError, r"dtype torch.float32, .* degree.long\(\)"),
        ([True] * 4, TypeError, "dtype torch.bool, expected whole numbers"),
    ],
    ids=str,
)
def test_degrees_that_do_not_fit(degree, error, message):
    for run in (Adjacency.from_edge_index, pna.check):
        with pytest.raises(error, match=message):
            run(edge_index(), 4, torch.tensor(degree))


def test_degrees_of_other_kinds():
    with pytest.raises(TypeError, match=r"degree of type list, .* torch.as_tensor"):
        Adjacency.from_edge_index(edge_index(), 4, [2, 2, 0, 1])
    with pytest.raises(ValueError, match="degree on meta and edges on cpu, expected one device"):
        Adjacency.from_edge_index(edge_index(), 4, torch.zeros(4, dtype=torch.int64, device="meta"))
    pna.check(edge_index(), 4, torch.tensor([2, 2, 0, 1]))


@pytest.mark.gpu
def test_degrees_are_checked_on_a_gpu_by_check():
    with pytest.raises(ValueError, match="degree 1 of node 1"):
        pna.check(edge_index().cuda(), 4, torch.tensor([2, 1, 0, 1]).cuda())


def test_from_csr():
    adj = Adjacency.from_csr(torch.tensor([0, 2, 4, 4, 5]), torch.tensor([2, 1, 0, 0, 3]))
    same_but_sorted = [[2, 1, 0, 0, 3], [0, 0, 1, 1, 3]]
    assert_same(adj, Adjacency.from_edge_index(torch.tensor(same_but_sorted), 4))
    bipartite = Adjacency.from_csr(torch.tensor([0, 1]), torch.tensor([2]), num_senders=5)
    assert bipartite.out_degree.tolist() == [0, 0, 1, 0, 0]


@settings(max_examples=60)
@given(st.data())
def test_edge_list_can_be_read_back(data):
    senders, receivers = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    edge = st.tuples(st.integers(0, senders - 1), st.integers(0, receivers - 1))
    edges = data.draw(st.lists(edge, max_size=20))
    given_list = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    adj = Adjacency.from_edge_index(given_list, (senders, receivers))
    assert edges_of(adj) == (given_list.tolist(), given_list.tolist())
    assert adj.edge_index.tolist() == given_list.tolist()
    for begin, end in zip(adj.indptr, adj.indptr[1:], strict=False):
        ids = adj.edge_ids[begin:end].tolist()
        assert ids == sorted(ids)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_edge_index_is_the_one_given(dtype):
    """Also where edges were sorted before, or are none; in the type of indices."""
    adj = Adjacency.from_edge_index(edge_index(dtype), 4)
    assert adj.edge_index.tolist() == EDGES
    assert adj.edge_index.dtype == torch.int32
    assert_same(Adjacency.from_edge_index(adj.edge_index, 4), adj)
    rows = Adjacency.from_csr(torch.tensor([0, 1, 3]), torch.tensor([1, 1, 0]))
    assert rows.edge_index.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert Adjacency.from_edge_index(torch.empty(2, 0).long(), 3).edge_index.shape == (2, 0)


def test_a_known_transpose_spares_the_sort_of_edges():
    built = Adjacency.from_edge_index(edge_index(), 4)
    expected = Adjacency.from_csr(built.indptr, built.senders)
    transpose = (built.outgoing.indptr, built.outgoing.neighbours, built.out_ranks)
    with mock.patch("torch.sort", side_effect=torch.sort) as sort:
        given = Adjacency.from_csr(built.indptr, built.senders, transpose=transpose)
    assert {call.args[0].shape[0] for call in sort.call_args_list} == {4}  # nodes by degree
    assert_same(given, expected)


def test_edge_index_of_a_union_numbers_on():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    both = Adjacency.disjoint_union([adj, adj]).edge_index
    assert both.tolist() == torch.cat([edge_index(), edge_index() + 4], 1).tolist()


@settings(max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=12), st.booleans())
def test_receivers_by_degree(degrees, joined):
    """Sorted by degree, those of one degree in their own order; in a union all together."""
    receivers = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees).long())
    edges = torch.stack([torch.zeros_like(receivers), receivers])
    adj = Adjacency.from_edge_index(edges, (1, len(degrees)))
    if joined:
        adj, degrees = Adjacency.disjoint_union([adj, adj]), degrees + degrees
    expected = sorted(range(len(degrees)), key=degrees.__getitem__)
    assert adj.by_degree.tolist() == expected
    assert adj.by_degree.dtype == adj.indptr.dtype


# Long rows, cut in segments of 255 slots

#: Slots of each row: as long as a segment, one more, a part more, several, none, few.
LENGTHS = [255, 256, 300, 1000, 0, 3]


def rows_of(lengths):
    """As many edges from node 0 to node i as row i is long, sorted by receiver."""
    receivers = torch.arange(len(lengths)).repeat_interleave(
        torch.tensor(lengths, dtype=torch.int64)
    )
    return torch.stack([torch.zeros_like(receivers), receivers])


def long_fields(rows):
    return (
        rows.long_rows.tolist(),
        rows.long_rank.tolist(),
        rows.long_indptr.tolist(),
        rows.segment_owner.tolist(),
    )


#: Rows 1, 2, 3 are long, of 2, 2 and 4 segments.
LONG = ([1, 2, 3], [-1, 0, 1, 2, -1, -1], [0, 2, 4, 8], [0, 0, 1, 1, 2, 2, 2, 2])

#: 1814 slots could make 7 rows of 256, and 14 segments: the rest is spare.
LONG_WITH_SPARE = (
    [1, 2, 3, 6, 6, 6, 6],
    [-1, 0, 1, 2, -1, -1],
    [0, 2, 4, 8, 8, 8, 8, 8],
    [0, 0, 1, 1, 2, 2, 2, 2, 7, 7, 7, 7, 7, 7],
)


def test_long_rows_are_described_exactly():
    adj = Adjacency.from_edge_index(rows_of(LENGTHS), (1, 6))
    assert adj.degree.tolist() == LENGTHS
    assert long_fields(adj.incoming) == LONG
    assert long_fields(adj.outgoing) == ([0], [0], [0, 8], [0] * 8)  # 1814 slots of node 0


def test_long_rows_in_the_other_direction():
    adj = Adjacency.from_edge_index(rows_of(LENGTHS).flip(0), (6, 1))
    assert adj.out_degree.tolist() == LENGTHS
    assert long_fields(adj.outgoing) == LONG


def test_long_rows_with_spare_entries_where_nothing_waits_for_the_device():
    senders, receivers = rows_of(LENGTHS)
    indptr = torch.tensor([0, 255, 511, 811, 1811, 1811, 1814])
    adj = Adjacency.from_csr(indptr, senders, num_senders=1)
    assert adj.receivers.tolist() == receivers.tolist()
    assert long_fields(adj.incoming) == LONG_WITH_SPARE
    compiled = torch.compile(Adjacency.from_edge_index, fullgraph=True, backend="aot_eager")
    built = compiled(rows_of(LENGTHS), (1, 6))
    assert edges_of(built) == edges_of(adj)
    assert without_spare(built.incoming) == without_spare(adj.incoming) == LONG
    assert len(built.incoming.long_rows) == 7 + 2  # so that there are never 0 or 1


@pytest.mark.parametrize(
    ("max_degree", "room"),
    [
        (255, ([], [-1, -1], [0], [])),  # no row can be long
        (256, ([2], [-1, -1], [0, 0], [1, 1])),  # one could be
        (-1, ([2], [-1, -1], [0, 0], [1, 1])),  # not known
    ],
)
def test_a_bound_on_degrees_spares_the_room_for_long_rows(max_degree, room):
    indptr, senders = torch.tensor([0, 200, 400]), torch.arange(400) % 2
    adj = Adjacency.from_csr(indptr, senders, max_degree=max_degree)
    assert long_fields(adj.incoming) == long_fields(adj.outgoing) == room


def described(lengths, segment):
    """What `long_fields` should hold, without spare entries, by the definition."""
    long = [i for i, length in enumerate(lengths) if length > segment]
    pieces = [-(-lengths[i] // segment) for i in long]
    starts = [sum(pieces[:k]) for k in range(len(long) + 1)]
    owners = [k for k, piece in enumerate(pieces) for _ in range(piece)]
    return long, [long.index(i) if i in long else -1 for i in range(len(lengths))], starts, owners


def without_spare(rows):
    live = rows.long_rows < rows.num_rows
    count = int(live.sum())
    assert live.tolist() == [True] * count + [False] * (len(live) - count)
    long_indptr, owner = rows.long_indptr.tolist(), rows.segment_owner.tolist()
    segments = long_indptr[count]
    assert set(long_indptr[count:]) == {segments}
    assert set(owner[segments:]) <= {len(live)}
    return (
        rows.long_rows[:count].tolist(),
        rows.long_rank.tolist(),
        long_indptr[: count + 1],
        owner[:segments],
    )


@contextmanager
def segments_of(slots):
    with mock.patch.object(module, "SEGMENT", slots), mock.patch.object(rows, "SEGMENT", slots):
        yield


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_long_rows_of_any_lengths(lengths, segment):
    """With shorter segments, so that many rows are long, and the bounds are tight."""
    edges, total = rows_of(lengths), sum(lengths)
    indptr = torch.tensor([0, *lengths]).cumsum(0)
    with segments_of(segment):
        exact = Adjacency.from_edge_index(edges, (1, len(lengths)))
        bounded = Adjacency.from_csr(indptr, edges[0], num_senders=1)
    assert long_fields(exact.incoming) == described(lengths, segment)
    assert long_fields(exact.outgoing) == described([total], segment)
    assert without_spare(bounded.incoming) == described(lengths, segment)
    assert without_spare(bounded.outgoing) == described([total], segment)


def test_rows_of_equal_length_are_put_side_by_side():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    assert adj.incoming.order.tolist() == [2, 3, 0, 1]  # of 0, 1, 2 and 2 slots
    assert adj.outgoing.order.tolist() == [1, 2, 3, 0]  # of 1, 1, 1 and 2


def test_rows_far_from_each_other_stay_so():
    """Every other row has a slot: in each window of 4096 rows, the empty ones come first."""
    receivers = torch.arange(0, 8192, 2)
    adj = Adjacency.from_edge_index(torch.stack([receivers, receivers]), 8192)
    order = adj.incoming.order
    assert order.sort().values.equal(torch.arange(8192, dtype=torch.int32))
    empty = torch.ones(2048, dtype=torch.int32)
    assert adj.degree[order].tolist() == torch.cat([0 * empty, empty] * 2).tolist()
    assert int(order[:4096].max()) == 4095


# Side by side


def union_and_whole(graphs):
    """The union of these (edges, num_senders, num_receivers), and the one graph they make."""
    parts, lists, senders, receivers = [], [], 0, 0
    for edges, num_senders, num_receivers in graphs:
        parts.append(Adjacency.from_edge_index(edges, (num_senders, num_receivers)))
        lists.append(edges + torch.tensor([[senders], [receivers]]))
        senders, receivers = senders + num_senders, receivers + num_receivers
    whole = Adjacency.from_edge_index(torch.cat(lists, dim=1), (senders, receivers))
    return Adjacency.disjoint_union(parts), whole


def test_union_is_the_graph_of_all_edges():
    none = torch.empty(2, 0, dtype=torch.int64)
    graphs = [
        (edge_index(), 4, 4),
        (none, 0, 0),
        (none, 2, 3),
        (rows_of(LENGTHS), 1, 6),  # long rows, in both directions
        (rows_of(LENGTHS).flip(0), 6, 1),
        (edge_index(), 5, 7),
    ]
    union, whole = union_and_whole(graphs)
    assert whole.incoming.long_rows.tolist() == [8, 9, 10, 13]
    assert_same(union, whole)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5))
def test_union_of_any_graphs(parts):
    """Each part is a star by the lengths of its rows, with segments of two slots."""
    with segments_of(2):
        union, whole = union_and_whole([(rows_of(p), 1, len(p)) for p in parts])
    assert_same(union, whole)


def test_union_of_parts_with_spare_entries():
    senders, _ = rows_of(LENGTHS)
    indptr = torch.tensor([0, 255, 511, 811, 1811, 1811, 1814])
    part = Adjacency.from_csr(indptr, senders, num_senders=1)
    union = Adjacency.disjoint_union([part, part])
    assert without_spare(union.incoming) == described(LENGTHS * 2, 255)
    assert without_spare(union.outgoing) == described([1814, 1814], 255)


def test_union_of_one_is_itself():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    assert Adjacency.disjoint_union([adj]) is adj


def test_numbers_that_outgrow_32_bits_are_64_bits_wide_in_every_field():
    indptr = torch.empty(3, dtype=torch.int64, device="meta")
    part = Adjacency.from_csr(indptr, torch.empty(2**30, dtype=torch.int64, device="meta"))
    union = Adjacency.disjoint_union([part, part])
    assert union.num_edges == 2**31
    assert {leaf.dtype for leaf in tree_leaves(part)} == {torch.int32}
    assert {leaf.dtype for leaf in tree_leaves(union)} == {torch.int64}


# From place to place


def test_to_another_device_and_to_its_own():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    assert adj.to("cpu") is adj
    assert adj.cpu() is adj
    moved = adj.to("meta")
    assert {leaf.device.type for leaf in tree_leaves(moved)} == {"meta"}
    assert (moved.num_senders, moved.num_receivers, moved.num_edges) == (4, 4, 5)
    assert repr(moved) == "Adjacency(4 senders, 4 receivers, 5 edges, meta)"


def test_pyg_moves_it_by_cpu_and_cuda():
    """PyG swallows the error of an attribute without these, and leaves it where it was."""
    adj = Adjacency.from_edge_index(edge_index(), 4)
    data = Data(edge_index=edge_index(), num_nodes=4, adjacency=adj)
    batch = Batch.from_data_list([data, data])
    assert {a.device.type for a in batch.cuda("meta", "adjacency").adjacency} == {"meta"}
    with pytest.raises(NotImplementedError, match="meta"):  # which has nothing to copy
        batch.adjacency[0].cpu()


@pytest.mark.gpu
def test_to_a_gpu_and_back():
    adj = Adjacency.from_edge_index(rows_of(LENGTHS), (1, 6))
    assert {leaf.is_pinned() for leaf in tree_leaves(adj.pin_memory())} == {True}
    assert adj.cuda().device.type == "cuda"
    assert_same(adj.cuda().cpu(), adj)
    on_gpu = Adjacency.from_edge_index(rows_of(LENGTHS).cuda(), (1, 6))
    assert long_fields(on_gpu.incoming) == LONG_WITH_SPARE
    with fast_paths.without("build"):
        exact = Adjacency.from_edge_index(rows_of(LENGTHS).cuda(), (1, 6))
    assert_same(exact.cpu(), adj)
    assert_same(Adjacency.disjoint_union([exact] * 3).cpu(), Adjacency.disjoint_union([adj] * 3))


@pytest.mark.parametrize(
    "through",
    [
        copy.deepcopy,
        lambda adj: tree_unflatten(*reversed(tree_flatten(adj))),
    ],
    ids=["deepcopy", "pytree"],
)
def test_round_trip(through):
    adj = Adjacency.from_edge_index(rows_of(LENGTHS), (1, 6))
    copied = through(adj)
    assert type(copied) is Adjacency
    assert type(copied.incoming) is Rows
    assert_same(copied, adj)


def test_file_that_holds_one_loads_without_trusting_it():
    adj, file = Adjacency.from_edge_index(edge_index(), 4), io.BytesIO()
    torch.save({"adjacency": adj}, file)
    file.seek(0)
    assert_is_the_graph(torch.load(file, weights_only=True)["adjacency"])


def test_file_of_a_version_without_stored_degrees():
    adj, file = Adjacency.from_edge_index(edge_index(), 4), io.BytesIO()
    old = copy.copy(adj)
    del old.__dict__["degree"]
    torch.save(old, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True), adj)


def test_is_immutable():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    with pytest.raises(AttributeError, match="cannot assign"):
        adj.edge_ids = adj.edge_ids


# Compiled, vmapped, exported


def sums(x, adj):
    """Sum over in-neighbours, by nothing but the Adjacency."""
    return x.new_zeros(adj.num_receivers, x.shape[1]).index_add(0, adj.receivers, x[adj.senders])


def random_graph(nodes, edges):
    random = torch.Generator().manual_seed(nodes + edges)
    return torch.rand(nodes, 2), torch.randint(nodes, (2, edges), generator=random)


@pytest.mark.slow
def test_compiled_with_the_adjacency_built_inside():
    """One program does for every size."""
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def layer(x, edges):
        adj = as_adjacency(edges, x.shape[0])
        return sums(x, adj), adj

    for nodes, edges in [(4, 9), (30, 255), (3, 700), (9, 300), (2, 2000), (90, 500)]:
        x, given_edges = random_graph(nodes, edges)
        out, built = layer(x, given_edges)
        adj = Adjacency.from_edge_index(given_edges, nodes)
        assert torch.allclose(out, sums(x, adj))
        assert edges_of(built) == edges_of(adj)
        assert without_spare(built.incoming) == long_fields(adj.incoming)
        assert {leaf.dtype for leaf in tree_leaves(built)} == {torch.int32}
    assert counter.frame_count == 1


def test_compiled_with_degrees_of_a_larger_graph():
    build = torch.compile(Adjacency.from_edge_index, fullgraph=True, backend="eager")
    degree = torch.tensor([7, 2, 9, 3])
    built = build(edge_index(), 4, degree)
    assert built.degree.tolist() == [7, 2, 9, 3]
    assert built.by_degree.tolist() == [2, 1, 3, 0]


def test_compiled_with_the_adjacency_as_an_input():
    counter = CompileCounterWithBackend("aot_eager")
    layer = torch.compile(sums, fullgraph=True, dynamic=True, backend=counter)
    for nodes, edges in [(4, 9), (5, 12), (30, 200)]:
        x, given_edges = random_graph(nodes, edges)
        adj = Adjacency.from_edge_index(given_edges, nodes)
        assert torch.allclose(layer(x, adj), sums(x, adj))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_compiled_joining_of_a_list():
    join = torch.compile(as_adjacency, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in [(4, 3), (6, 5)]:
        parts = [Adjacency.from_edge_index(random_graph(n, 3 * n)[1], n) for n in sizes]
        assert_same(join(parts, sum(sizes)), Adjacency.disjoint_union(parts))


def test_vmap_over_features_of_one_graph():
    x, edges = random_graph(4, 9)
    adj = Adjacency.from_edge_index(edges, 4)
    xs = torch.stack([x, 2 * x, x + 1])
    out = torch.vmap(sums, in_dims=(0, None))(xs, adj)
    assert torch.allclose(out, torch.stack([sums(one, adj) for one in xs]))


class Sums(torch.nn.Module):
    def forward(self, x, adj):
        return sums(x, adj)


class SumsOfEdgeIndex(torch.nn.Module):
    def forward(self, x, edges):
        return sums(x, as_adjacency(edges, x.shape[0]))


def test_edges_without_values():
    edges = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]]])
    with pytest.raises(ValueError, match=r"that torch\.vmap maps over, expected the same edges"):
        torch.vmap(lambda edge_index: as_adjacency(edge_index, 2).degree)(edges)
    with pytest.raises(ValueError, match="on the meta device, expected one with values"):
        Adjacency.from_edge_index(edges[0].to("meta"), 2)


def test_exported_saved_and_loaded():
    x, edges = random_graph(4, 9)
    adj, file = Adjacency.from_edge_index(edges, 4), io.BytesIO()
    torch.export.save(torch.export.export(Sums(), (x, adj)), file)
    file.seek(0)
    assert torch.allclose(torch.export.load(file).module()(x, adj), sums(x, adj))


def test_exported_for_graphs_of_other_sizes():
    x, edges = random_graph(4, 9)
    nodes, count = torch.export.Dim("nodes", max=1000), torch.export.Dim("edges", max=200)
    program = torch.export.export(
        SumsOfEdgeIndex(), (x, edges), dynamic_shapes=({0: nodes}, {1: count})
    )
    x, edges = random_graph(7, 30)
    assert torch.allclose(program.module()(x, edges), sums(x, Adjacency.from_edge_index(edges, 7)))


# Whatever a layer is given


def test_adjacency_passes_through():
    adj = Adjacency.from_edge_index(edge_index(), 4)
    assert as_adjacency(adj, 4) is adj


@pytest.mark.parametrize("kind", [list, tuple])
def test_list_is_joined(kind):
    adj = Adjacency.from_edge_index(edge_index(), 4)
    assert_same(as_adjacency(kind([adj, adj]), 8), Adjacency.disjoint_union([adj, adj]))


def test_sparse_matrix():
    matrix = torch.sparse_coo_tensor(
        edge_index().flip(0), torch.ones(5), (4, 4), check_invariants=True
    )
    assert_is_the_graph(as_adjacency(matrix, 4))
    assert as_adjacency(matrix, 4) is as_adjacency(matrix, 4)


@pytest.mark.parametrize(
    "make", [edge_index, lambda: EdgeIndex(EDGES)], ids=["tensor", "EdgeIndex"]
)
def test_built_once_for_a_tensor(make):
    edges = make()
    adj = as_adjacency(edges, 4)
    assert_is_the_graph(adj)
    assert as_adjacency(edges, 4) is adj
    assert as_adjacency(edges, (4, 4)) is adj
    assert as_adjacency(make(), 4) is not adj


def test_built_again_for_another_number_of_nodes():
    edges = edge_index()
    adj = as_adjacency(edges, 4)
    assert as_adjacency(edges, 5).degree.tolist() == [2, 2, 0, 1, 0]
    assert as_adjacency(edges, 4) is not adj


@pytest.mark.parametrize(
    ("make", "write"),
    [
        (edge_index, lambda edges: edges[1].fill_(2)),
        (lambda: EdgeIndex(EDGES), lambda edges: edges[1].fill_(2)),
        (lambda: EdgeIndex(EDGES), lambda edges: edges.as_tensor()[1].fill_(2)),
    ],
    ids=["through a view", "through a view of an EdgeIndex", "beneath an EdgeIndex"],
)
def test_built_again_after_a_write(make, write):
    edges = make()
    assert as_adjacency(edges, 4).degree.tolist() == [2, 2, 0, 1]
    write(edges)
    assert as_adjacency(edges, 4).degree.tolist() == [0, 0, 5, 0]


def test_forgotten_with_the_tensor():
    edges = edge_index()
    built = weakref.ref(as_adjacency(edges, 4))
    gc.collect()
    assert built() is not None
    del edges
    gc.collect()
    assert built() is None


def test_built_in_inference_mode_and_used_in_training():
    """Lightning, say, validates before it trains."""
    edges, x = edge_index(), torch.ones(4, 1, requires_grad=True)
    with torch.inference_mode():
        adj = as_adjacency(edges, 4)
    assert as_adjacency(edges, 4) is adj
    (x[adj.senders] * x[adj.receivers]).sum().backward()
    assert x.grad.flatten().tolist() == [4, 3, 1, 2]  # edges that touch each node, its loop twice


def test_inference_tensors_cannot_tell_of_writes_and_are_not_remembered():
    with torch.inference_mode():
        edges = edge_index()
        assert as_adjacency(edges, 4).degree.tolist() == [2, 2, 0, 1]
        edges[1] = 2
        assert as_adjacency(edges, 4).degree.tolist() == [0, 0, 5, 0]


def test_built_inside_a_function_transform_and_used_outside():
    edges = edge_index()
    torch.func.grad(lambda x: sums(x, as_adjacency(edges, 4)).sum())(torch.ones(4, 1))
    assert_is_the_graph(copy.deepcopy(as_adjacency(edges, 4)))


# Bad input


@pytest.mark.parametrize(
    ("edges", "num_nodes", "error", "message"),
    [
        (torch.ones(2, 3), 4, TypeError, r"dtype torch.float32, .* edge_index.long\(\)"),
        (torch.ones(2, 3, dtype=torch.bool), 4, TypeError, "dtype torch.bool, expected int64"),
        (torch.zeros(3, 2, dtype=torch.int64), 4, ValueError, r"\(3, 2\), expected \(2, edges\)"),
        (torch.zeros(2, dtype=torch.int64), 4, ValueError, r"\(2,\), expected \(2, edges\)"),
        (torch.zeros(2, 1, 2).long(), 4, ValueError, r"\(2, 1, 2\), expected \(2, edges\)"),
        ([[0], [1]], 4, TypeError, "type list, expected an integer tensor .* torch.as_tensor"),
        (np.zeros((2, 3), int), 4, TypeError, "type ndarray, expected an integer tensor"),
        (edge_index(), None, ValueError, r"got no num_nodes, .* pass num_nodes=x.shape\[0\]"),
        (edge_index(), -1, ValueError, "num_nodes=-1, expected a count of at least 0"),
        (edge_index(), (4, -1), ValueError, r"num_nodes=\(4, -1\), expected a count"),
        (edge_index(), 4.0, TypeError, "num_nodes=4.0, expected a whole number or a pair"),
        (edge_index(), "4", TypeError, "num_nodes='4', expected a whole number"),
        (edge_index(), (4, 4, 4), TypeError, r"num_nodes=\(4, 4, 4\), .* \(senders, receivers\)"),
        (edge_index(), torch.tensor([4, 4]), TypeError, r"num_nodes=tensor\(\[4, 4\]\)"),
    ],
)
def test_bad_input(edges, num_nodes, error, message):
    for refuse in (Adjacency.from_edge_index, pna.check):
        with pytest.raises(error, match=message):
            refuse(edges, num_nodes)


@pytest.mark.parametrize(
    ("edges", "num_nodes", "message"),
    [
        ([[0, 1, 4], [0, 0, 0]], 4, r"sender 4 in edge 2, .* \(num_nodes is 4\)"),
        ([[0, 0, 0], [1, 9, 7]], 4, r"receiver 9 in edge 1, .* \(num_nodes is 4\)"),
        ([[0, -1], [0, 0]], 4, r"sender -1 in edge 1, .* \(num_nodes is 4\)"),
        ([[0, 0], [-5, 0]], 4, r"receiver -5 in edge 0, .* \(num_nodes is 4\)"),
        ([[3], [3]], (4, 2), r"receiver 3 in edge 0, .* \(num_nodes is 2\)"),
        ([[0], [0]], 0, r"sender 0 in edge 0, .* \(num_nodes is 0\)"),
    ],
)
def test_index_that_is_no_node(edges, num_nodes, message):
    for refuse in (Adjacency.from_edge_index, pna.check):
        with pytest.raises(ValueError, match=message):
            refuse(torch.tensor(edges), num_nodes)


@pytest.mark.parametrize("make", [edge_index, lambda: EdgeIndex(EDGES)], ids=["tensor", "PyG"])
def test_a_check_of_good_edges_says_nothing(make):
    pna.check(make(), 4)
    pna.check(make(), (4, 4))
    pna.check(torch.empty(2, 0, dtype=torch.int64), 0)


@pytest.mark.gpu
def test_a_check_on_the_gpu_names_the_index():
    with pytest.raises(ValueError, match="receiver 3 in edge 4"):
        pna.check(edge_index().cuda(), (4, 3))


def test_index_that_is_no_node_where_the_count_does_not_fit_its_type():
    edges = torch.tensor([[3, -1], [0, 0]], dtype=torch.int8)
    with pytest.raises(ValueError, match=r"sender -1 in edge 1, .* \(num_nodes is 200\)"):
        Adjacency.from_edge_index(edges, 200)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.eye(3), r"layout torch.strided and shape \(3, 3\), .* matrix.to_sparse_csr\(\)"),
        (torch.eye(3).to_sparse_csc(), "layout torch.sparse_csc"),
        (torch.ones(2, 3, 3).to_sparse_csr(), r"layout torch.sparse_csr and shape \(2, 3, 3\)"),
        (torch.ones(2, 3, 3).to_sparse(), r"layout torch.sparse_coo and shape \(2, 3, 3\)"),
        (np.eye(3), r"got a ndarray of layout None and shape \(3, 3\)"),
        ([[1]], "got a list of layout None"),
    ],
    ids=["dense", "CSC", "batch of CSR", "COO of three axes", "array", "list"],
)
def test_matrix_of_another_kind(matrix, message):
    with pytest.raises(TypeError, match=message):
        Adjacency.from_sparse(matrix)


def test_nothing_to_join():
    for join in (Adjacency.disjoint_union, lambda parts: as_adjacency(parts, 4)):
        with pytest.raises(ValueError, match="empty list, expected at least one Adjacency"):
            join([])


@pytest.mark.parametrize("edges", [None, [[0], [1]], "edges", np.zeros((2, 1), int)], ids=repr)
def test_neither_edges_nor_adjacency(edges):
    expected = f"edges of type {type(edges).__name__}, expected an edge_index tensor"
    with pytest.raises(TypeError, match=expected):
        as_adjacency(edges, 4)


def test_bad_edge_index_given_to_a_layer_is_not_remembered():
    edges = edge_index()
    for _ in range(2):
        with pytest.raises(ValueError, match="receiver 3 in edge 4"):
            as_adjacency(edges, (4, 3))
    assert_is_the_graph(as_adjacency(edges, 4))


@st.composite
def edges_between(draw):
    """Senders, receivers and edges; some graphs have rows that are cut, or several windows."""
    senders, receivers = draw(st.sampled_from([(0, 0), (1, 1), (7, 7), (3, 9000), (9000, 3)]))
    most = 0 if min(senders, receivers) == 0 else draw(st.sampled_from([0, 1, 20, 2000]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ends = [torch.randint(0, max(n, 1), (most,), generator=random) for n in (senders, receivers)]
    dtype = draw(st.sampled_from([torch.int64, torch.int32]))
    together = torch.stack(ends).to(dtype)
    return (senders, receivers), draw(st.sampled_from([together, together.t().contiguous().t()]))


@needs_kernel
@settings(max_examples=40)
@given(edges_between())
def test_counting_sorts_make_what_the_sorts_of_torch_make(graph):
    sizes, edges = graph
    with fast_paths.queried() as asked:
        built = Adjacency.from_edge_index(edges, sizes)
    assert "build" in asked
    with fast_paths.without("build"):
        assert_same(built, Adjacency.from_edge_index(edges, sizes))


@needs_kernel
@pytest.mark.parametrize("bad", [-1, 4, 2**31, -(2**40)])
@pytest.mark.parametrize("row", [0, 1])
def test_counting_sorts_refuse_an_index_that_is_no_node(row, bad):
    edges = edge_index()
    edges[row, 3] = bad
    with pytest.raises(ValueError, match=f"{bad} in edge 3"):
        Adjacency.from_edge_index(edges, 4)


def test_a_library_of_another_version_is_not_called(monkeypatch):
    monkeypatch.setattr(native, "size_of", lambda library, name: 0)
    assert native._load() is None
    monkeypatch.setattr(native, "_library", None)
    assert_is_the_graph(Adjacency.from_edge_index(edge_index(), 4))


@pytest.mark.parametrize("build", [True, False], ids=["C", "torch"])
def test_it_stays_on_the_device_of_the_edges(build):
    """Also if torch makes new tensors on another one by default."""
    edges = edge_index()
    with torch.device("meta"), nullcontext() if build else fast_paths.without("build"):
        made = Adjacency.from_edge_index(edges, 4)
    assert_is_the_graph(made)


def test_fake_edges_are_not_read():
    """They have no memory: torch says that their values are not known."""
    with FakeTensorMode():
        fake = torch.zeros(2, 3, dtype=torch.int64)
        with pytest.raises(DataDependentOutputException):
            Adjacency.from_edge_index(fake, 2)
