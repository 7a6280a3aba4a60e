"""Wide edge features in blocks of receivers, against all of them at once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pna import Adjacency, fast_paths
from pna.nn import PNAConv
from pna.nn.conv import wide_edges
from tests.nn.cases import DEG, GRAPHS, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome

WIDTH, EDGE_DIM = 6, 20


@pytest.fixture(autouse=True)
def as_on_a_large_graph():
    with fast_paths.without("small"), fast_paths.without("small_cpu"):
        yield


# Arguments of the layer, where they are not the paper's.
LAYERS = {
    "plain": {},
    "towers": dict(towers=2, divide_input=True),
    "features as they are": dict(encode_edges=False, towers=2),
    "sums and spread": dict(aggregators=["sum", "var"]),
}


def run(backend, graph, dtype=torch.float32, frozen=(), **arguments):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, edge_dim=EDGE_DIM) | arguments
    layer = PNAConv(WIDTH, WIDTH, **given).to(backend.device, dtype)
    edge_index = graph.edge_index(backend.device)
    leaves = {
        "x": numbers(graph.nodes, WIDTH, dtype=dtype, device=backend.device, seed=1),
        "edge_attr": numbers(
            edge_index.shape[1], EDGE_DIM, dtype=dtype, device=backend.device, seed=2
        ),
    }
    adjacency = Adjacency.from_edge_index(edge_index, graph.nodes)
    wanted = {n: leaf for n, leaf in leaves.items() if n not in frozen}
    call = lambda: layer(leaves["x"], adjacency, leaves["edge_attr"])  # noqa: E731
    return outcome(call, wanted | dict(layer.named_parameters())), adjacency


@pytest.mark.parametrize("arguments", LAYERS)
@pytest.mark.parametrize("name", ["random", "hub", "isolated", "repeated edges"])
@pytest.mark.covering(1, rest="gpu")
def test_as_all_at_once(fast, monkeypatch, name, arguments):
    expected, _ = run(fast, GRAPHS[name], **LAYERS[arguments])
    monkeypatch.setattr(wide_edges, "BLOCK", WIDTH * max(len(GRAPHS[name].edges) // 3, 1))
    got, adjacency = run(fast, GRAPHS[name], **LAYERS[arguments])
    assert len(wide_edges.blocks_of(adjacency, WIDTH)) > 1
    assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(cpu, monkeypatch, dtype):
    expected, _ = run(cpu, GRAPHS["random"], dtype)
    monkeypatch.setattr(wide_edges, "BLOCK", 10 * WIDTH)
    got, _ = run(cpu, GRAPHS["random"], dtype)
    assert_equal_in_norm(got, expected, 1e-2 if dtype == torch.bfloat16 else 1e-12)


def test_features_without_gradient(cpu, monkeypatch):
    expected, _ = run(cpu, GRAPHS["random"], frozen=["edge_attr"])
    monkeypatch.setattr(wide_edges, "BLOCK", 10 * WIDTH)
    got, _ = run(cpu, GRAPHS["random"], frozen=["edge_attr"])
    assert_equal_in_norm(got, expected, 1e-5)


def test_saved_tensors_may_be_moved(cpu, monkeypatch):
    expected, _ = run(cpu, GRAPHS["random"])
    monkeypatch.setattr(wide_edges, "BLOCK", 10 * WIDTH)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        got, _ = run(cpu, GRAPHS["random"])
    assert_equal_in_norm(got, expected, 1e-5)


def test_blocks_are_made_once(cpu, monkeypatch):
    monkeypatch.setattr(wide_edges, "BLOCK", 10 * WIDTH)
    _, adjacency = run(cpu, GRAPHS["random"])
    blocks = wide_edges.blocks_of(adjacency, WIDTH)
    assert wide_edges.blocks_of(adjacency, WIDTH) is blocks
    assert sum(block.adjacency.num_edges for block in blocks) == adjacency.num_edges
    assert blocks[0].rows.start == 0 and blocks[-1].rows.stop == adjacency.num_receivers


class _Shapes(TorchDispatchMode):
    """Keeps the shapes of all results."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else [results]:
            if isinstance(result, torch.Tensor):
                self.seen.add(tuple(result.shape))
        return results


@pytest.mark.parametrize("block, is_made", [(100 * WIDTH, False), (2**20, True)])
def test_products_of_all_edges_are_not_made(cpu, monkeypatch, block, is_made):
    monkeypatch.setattr(wide_edges, "BLOCK", block)
    graph = GRAPHS["hub"]
    with _Shapes() as shapes:
        run(cpu, graph)
    assert ((len(graph.edges), WIDTH) in shapes.seen) == is_made
