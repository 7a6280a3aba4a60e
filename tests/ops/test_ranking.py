"""The operator that orders edges in compiled code."""

import torch

import pna
from pna.ops.ranking import rank_edges


def test_it_orders_as_an_adjacency_does(triton):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(7, (2, 40), generator=generator).to(triton.device)
    graph = pna.Adjacency.from_edge_index(edge_index, 7)
    ranked = rank_edges(edge_index, 7, 7)
    expected = (
        graph.indptr, graph.senders, graph.outgoing.indptr, graph.outgoing.neighbours,
        graph.edge_ids, graph.out_ranks,
    )  # fmt: skip
    for got, array in zip(ranked, expected, strict=True):
        assert torch.equal(got, array)


def test_a_bad_index_is_clamped(triton):
    edge_index = torch.tensor([[0, -5, 9], [1, 1, 7]], device=triton.device)
    indptr, senders, *_ = rank_edges(edge_index, 3, 3)
    assert indptr.tolist() == [0, 0, 2, 3] and senders.tolist() == [0, 0, 2]


def test_opcheck(triton):
    edge_index = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]], device=triton.device)
    torch.library.opcheck(torch.ops.pna.rank_edges.default, (edge_index, 3, 3))


def test_compiled_layers_use_it(triton, monkeypatch):
    edge_index = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]], device=triton.device)
    x = torch.randn(3, 2, device=triton.device)
    called = []

    def keep(module, inputs):
        called.extend(str(node.target) for node in module.graph.nodes)
        return module

    run = torch.compile(lambda x, e: pna.nn.PNAConv.forward(layer, x, e), backend=keep)
    layer = pna.nn.PNAConv(2, 2, ["mean", "max"], ["identity"], None).to(triton.device)
    torch.testing.assert_close(run(x, edge_index), layer(x, edge_index))
    assert "pna.rank_edges.default" in called
