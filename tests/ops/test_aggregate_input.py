"""What `pna.aggregate` refuses, and that it says what it got, what it expected and what to do."""

import re

import pytest
import torch

import pna
from tests.ops.cases import GRAPHS, features

EDGES, NODES, WIDTH = 6, 3, 2


def call(x=None, adjacency=None, aggregators=("mean",), edge=None, combine="add"):
    """The call with all that is not given right."""
    if x is None:
        x = torch.zeros(NODES, WIDTH)
    if adjacency is None:
        adjacency = GRAPHS["repeated edges"].adjacency()
    return pna.aggregate(x, adjacency, aggregators, edge=edge, combine=combine)


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


def test_the_call_that_the_others_break():
    assert call().shape == (NODES, 1, WIDTH)
    assert call(edge=zeros(EDGES, WIDTH)).shape == (NODES, 1, WIDTH)
    assert call(edge=[zeros(4, WIDTH), zeros(EDGES, dtype=torch.int64)]).shape == (NODES, 1, WIDTH)
    assert call(edge=(zeros(EDGES, 4), zeros(4, WIDTH))).shape == (NODES, 1, WIDTH)
    assert call(edge=zeros(EDGES, 1), combine="mul").shape == (NODES, 1, WIDTH)


# What is wrong; the error; what it must say, in this order: got, expected and, where it is not
# plain from that, the remedy.
WRONG = {
    "x is a list": (
        {"x": [[1.0]]},
        TypeError,
        ["got x of type list", "expected a tensor (senders, features)"],
    ),
    "x has one axis": (
        {"x": zeros(NODES)},
        ValueError,
        ["got x of shape (3,)", "expected (senders, features)", "flatten"],
    ),
    "x has three axes": (
        {"x": zeros(NODES, 2, 2)},
        ValueError,
        ["got x of shape (3, 2, 2)", "expected (senders, features)", "flatten"],
    ),
    "x is whole": (
        {"x": zeros(NODES, WIDTH, dtype=torch.int64)},
        TypeError,
        ["got x of dtype torch.int64", "expected one of float64", "x.float()"],
    ),
    "x is complex": (
        {"x": zeros(NODES, WIDTH, dtype=torch.complex64)},
        TypeError,
        ["got x of dtype torch.complex64", "expected one of float64"],
    ),
    "x has rows too many": (
        {"x": zeros(NODES + 1, WIDTH)},
        ValueError,
        ["got x with 4 rows", "expected 3", "num_nodes=x.shape[0]"],
    ),
    "x is elsewhere": (
        {"x": zeros(NODES, WIDTH, device="meta")},
        ValueError,
        ["got x on meta and an adjacency on cpu", "expected one device", "adjacency.to(x.device)"],
    ),
    "edge_index in place of an adjacency": (
        {"adjacency": zeros(2, EDGES, dtype=torch.int64)},
        TypeError,
        ["got adjacency of type Tensor", "expected a pna.Adjacency", "from_edge_index"],
    ),
    "a bare name": (
        {"aggregators": "mean"},
        TypeError,
        ["got aggregators 'mean'", "expected a list", "['mean']"],
    ),
    "no aggregators": (
        {"aggregators": []},
        ValueError,
        ["got an empty list of aggregators", "expected at least one of mean, sum"],
    ),
    "an unknown aggregator": (
        {"aggregators": ["mean", "maximum"]},
        ValueError,
        ["unknown aggregator 'maximum'", "did you mean 'max'?", "Known: mean, sum, max"],
    ),
    "an aggregator of another kind": (
        {"aggregators": ["mean", 3]},
        TypeError,
        ["got aggregator 3", "expected a name or one of the aggregator objects"],
    ),
    "edge is a number": (
        {"edge": 1.0},
        TypeError,
        ["got edge of type float", "expected a tensor (edges, features)", "(table, index)"],
    ),
    "edge is three tensors": (
        {"edge": (zeros(1), zeros(1), zeros(1))},
        TypeError,
        ["got edge of type tuple", "(table, index) or (coefficients, basis)"],
    ),
    "edge is a pair with a list": (
        {"edge": (zeros(4, WIDTH), [0] * EDGES)},
        TypeError,
        ["got edge as a pair of Tensor and list", "expected two tensors"],
    ),
    "edge is too short": (
        {"edge": zeros(EDGES - 1, WIDTH)},
        ValueError,
        ["got edge of shape (5, 2)", "expected (6, 2)", "give one row for each edge, in the order"],
    ),
    "edge is too narrow": (
        {"x": zeros(NODES, 3), "edge": zeros(EDGES, 2)},
        ValueError,
        ["got edge of shape (6, 2)", "expected (6, 3)", "or (6, 1)", "(coefficients, basis)"],
    ),
    "weights have one axis": (
        {"edge": zeros(EDGES), "combine": "mul"},
        ValueError,
        ["got edge of shape (6,)", "expected (6, 2)", "or (6, 1)", "weight[:, None]"],
    ),
    "a weight for each node": (
        {"edge": zeros(NODES, 1), "combine": "mul"},
        ValueError,
        ["got edge of shape (3, 1)", "(6, 1), one weight for each edge", "each node with x itself"],
    ),
    "a weight for each node, of one axis": (
        {"edge": zeros(NODES), "combine": "mul"},
        ValueError,
        ["got edge of shape (3,)", "(6, 1), one weight for each edge", "each node with x itself"],
    ),
    "an unknown combination": (
        {"edge": zeros(EDGES, 1), "combine": "times"},
        ValueError,
        ["got combine='times'", "expected 'add' for messages x_j + e_ij or 'mul'"],
    ),
    "edge is whole": (
        {"edge": zeros(EDGES, WIDTH, dtype=torch.int32)},
        TypeError,
        ["got edge of dtype torch.int32", "expected one of float64", "(table, index)"],
    ),
    "edge is elsewhere": (
        {"edge": zeros(EDGES, WIDTH, device="meta")},
        ValueError,
        ["got edge on meta and x on cpu", "expected one device"],
    ),
    "the index is elsewhere": (
        {"edge": (zeros(4, WIDTH), zeros(EDGES, dtype=torch.int64, device="meta"))},
        ValueError,
        ["got edge on meta and x on cpu", "expected one device"],
    ),
    "the table is too narrow": (
        {"edge": (zeros(4, 1), zeros(EDGES, dtype=torch.int64))},
        ValueError,
        ["got an edge table or basis of shape (4, 1)", "expected two axes, the last of 2"],
    ),
    "the table has one axis": (
        {"edge": (zeros(4), zeros(EDGES, dtype=torch.int64))},
        ValueError,
        ["got an edge table or basis of shape (4,)", "expected two axes"],
    ),
    "the index is too short": (
        {"edge": (zeros(4, WIDTH), zeros(EDGES - 1, dtype=torch.int64))},
        ValueError,
        ["got an edge index of shape (5,)", "expected (6,)", "a row of the table for each edge"],
    ),
    "the index is a column": (
        {"edge": (zeros(4, WIDTH), zeros(EDGES, 1, dtype=torch.int64))},
        ValueError,
        ["got an edge index of shape (6, 1)", "expected (6,)"],
    ),
    "the index is a mask": (
        {"edge": (zeros(4, WIDTH), zeros(EDGES, dtype=torch.bool))},
        TypeError,
        ["got an edge index of dtype torch.bool", "expected whole numbers into the table"],
    ),
    "the index is not whole": (
        {"edge": (zeros(4, WIDTH), zeros(EDGES))},
        TypeError,
        ["got an edge index of dtype torch.float32", "expected whole numbers", "index.long()"],
    ),
    "coefficients too few": (
        {"edge": (zeros(EDGES - 1, 4), zeros(4, WIDTH))},
        ValueError,
        ["got coefficients of shape (5, 4)", "expected (6, 4)", "one row for each edge"],
    ),
    "coefficients for another basis": (
        {"edge": (zeros(EDGES, 3), zeros(4, WIDTH))},
        ValueError,
        ["got coefficients of shape (6, 3)", "expected (6, 4)", "each row of the basis"],
    ),
    "the basis is too narrow": (
        {"edge": (zeros(EDGES, 4), zeros(4, WIDTH + 1))},
        ValueError,
        ["got an edge table or basis of shape (4, 3)", "expected two axes, the last of 2"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case):
    arguments, error, message = WRONG[case]
    with pytest.raises(error, match=".*".join(re.escape(part) for part in message)):
        call(**arguments)


@pytest.mark.gpu
def test_x_on_the_gpu_and_the_graph_not():
    with pytest.raises(ValueError, match=r"x on cuda:0 and an adjacency on cpu.*adjacency\.to"):
        call(x=zeros(NODES, WIDTH, device="cuda"))


@pytest.mark.parametrize("row", [4, -1, 100])
@pytest.mark.parametrize("aggregator", ["mean", "softmax"])  # with a kernel, and without
@pytest.mark.parametrize("combine", ["add", "mul"])
def test_index_outside_of_the_table(cpu, row, aggregator, combine):
    index = torch.tensor([0, 3, row, 0, 0, 0])
    with pytest.raises(ValueError, match=f"got row {row} .*edge 2, expected 0 to 3 .*correct"):
        call(aggregators=[aggregator], edge=(zeros(4, WIDTH), index), combine=combine)


@pytest.mark.parametrize("row", [4, -1, 100])
def test_index_outside_of_the_table_where_values_cannot_be_read(triton, row):
    """Nobody's memory is read: the message is NaN. Edge 2 goes to node 1."""
    adjacency = GRAPHS["repeated edges"].adjacency(triton.device)
    x = features(NODES, WIDTH, torch.float32, triton.device)
    index = torch.tensor([0, 3, row, 0, 0, 0], device=triton.device)
    out = pna.aggregate(x, adjacency, ["mean", "max"], edge=(x.new_zeros(4, WIDTH), index))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
