"""An Adjacency travels with PyG's graphs through its loaders."""

import resource
from dataclasses import fields

import pytest
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.transforms import Compose, ToUndirected

from pna.adjacency import Adjacency
from pna.data.pyg import AttachAdjacency


def graph(nodes, edges, seed):
    random = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes, (2, edges), generator=random)
    return Data(edge_index=edge_index, num_nodes=nodes)


def graphs():
    """Small graphs, an isolated node, and one with rows so long that they are cut in segments."""
    plain = [graph(5, 12, 0), graph(1, 0, 1), graph(3, 2000, 2), graph(7, 9, 3)]
    return [AttachAdjacency()(g) for g in plain]


def assert_same(a, b):
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
        return
    assert type(a) is type(b)
    for field in fields(a):
        assert_same(getattr(a, field.name), getattr(b, field.name))


def test_attaches_to_a_copy():
    plain = Data(edge_index=torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=4)
    attached = AttachAdjacency()(plain)
    assert attached.adjacency.degree.tolist() == [1, 0, 2, 0]
    assert attached.validate()
    assert "adjacency" not in plain


@pytest.mark.parametrize("workers", [0, 2])
def test_joined_list_equals_adjacency_of_the_batch(workers):
    loader = DataLoader(graphs(), batch_size=3, num_workers=workers, timeout=60 if workers else 0)
    batches = list(loader)
    assert [len(batch.adjacency) for batch in batches] == [3, 1]
    for batch in batches:
        joined = Adjacency.disjoint_union(batch.adjacency)
        assert_same(joined, Adjacency.from_edge_index(batch.edge_index, batch.num_nodes))
        assert_same(joined, AttachAdjacency()(batch).adjacency)


def test_workers_do_not_run_out_of_files():
    many = [AttachAdjacency()(graph(5, 12, seed)) for seed in range(128)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        loader = DataLoader(many, batch_size=64, num_workers=2, timeout=60)
        assert [len(batch.adjacency) for batch in loader] == [64, 64]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_moves_with_the_batch():
    batch = Batch.from_data_list(graphs())
    assert {a.device.type for a in batch.to("cpu").adjacency} == {"cpu"}
    # PyG swallows the error of an attribute that cannot move, so see that these did.
    assert {a.device.type for a in batch.to("meta").adjacency} == {"meta"}


def test_batch_gives_back_its_graphs():
    given = graphs()
    for one, other in zip(Batch.from_data_list(given).to_data_list(), given, strict=True):
        assert_same(one.adjacency, other.adjacency)


def test_last_of_several_transforms():
    transform = Compose([ToUndirected(), AttachAdjacency()])
    undirected = transform(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
    assert undirected.adjacency.degree.tolist() == [1, 1]


def test_replaces_the_adjacency_of_a_larger_graph():
    whole = AttachAdjacency()(Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4))
    part = AttachAdjacency()(whole.subgraph(torch.tensor([1, 2])))
    assert part.adjacency.degree.tolist() == [0, 1]


@pytest.mark.skipif(
    not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE),
    reason="PyG's NeighborLoader needs pyg-lib or torch-sparse",
)
def test_neighbour_loader():
    loader = NeighborLoader(
        graph(50, 300, 0), [4, 4], batch_size=8, transform=AttachAdjacency(), shuffle=False
    )
    for batch in loader:
        assert_same(batch.adjacency, Adjacency.from_edge_index(batch.edge_index, batch.num_nodes))


@pytest.mark.parametrize("data", [Data(x=torch.ones(2, 1)), HeteroData()], ids=["x only", "hetero"])
def test_refuses_what_has_no_edge_index(data):
    with pytest.raises(ValueError, match="expected a graph with an edge_index"):
        AttachAdjacency()(data)
