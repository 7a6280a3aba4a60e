"""Wide edge features in blocks of columns, against all of them at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    usual = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, edge_dim=EDGE_DIM)
    layer = PNAConv(WIDTH, WIDTH, **usual | arguments).to(backend.device, dtype)
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
    return outcome(call, wanted | dict(layer.named_parameters()))


def in_blocks(monkeypatch, columns=2):
    """Make blocks of graphs of any size."""
    monkeypatch.setattr(wide_edges, "BLOCK", 1)
    monkeypatch.setattr(wide_edges, "COLUMNS", columns)
    monkeypatch.setattr(wide_edges, "MOST", {"cpu": 2, "cuda": 2})


@pytest.mark.parametrize("arguments", LAYERS)
@pytest.mark.parametrize("name", ["random", "hub", "isolated", "repeated edges"])
@pytest.mark.covering(1, rest="gpu")
def test_as_all_at_once(fast, monkeypatch, name, arguments):
    expected = run(fast, GRAPHS[name], **LAYERS[arguments])
    in_blocks(monkeypatch)
    got = run(fast, GRAPHS[name], **LAYERS[arguments])
    assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(cpu, monkeypatch, dtype):
    expected = run(cpu, GRAPHS["random"], dtype)
    in_blocks(monkeypatch)
    got = run(cpu, GRAPHS["random"], dtype)
    assert_equal_in_norm(got, expected, 1e-2 if dtype == torch.bfloat16 else 1e-12)


def test_features_without_gradient(cpu, monkeypatch):
    expected = run(cpu, GRAPHS["random"], frozen=["edge_attr"])
    in_blocks(monkeypatch)
    got = run(cpu, GRAPHS["random"], frozen=["edge_attr"])
    assert_equal_in_norm(got, expected, 1e-5)


def test_saved_tensors_may_be_moved(cpu, monkeypatch):
    expected = run(cpu, GRAPHS["random"])
    in_blocks(monkeypatch)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        got = run(cpu, GRAPHS["random"])
    assert_equal_in_norm(got, expected, 1e-5)


@given(st.integers(0, 2**22), st.integers(1, 300), st.sampled_from(["cpu", "cuda"]))
def test_blocks_have_every_column_once(edges, columns, device):
    blocks = wide_edges.blocks_of(edges, columns, device)
    assert len(blocks) != 1 and len(blocks) <= wide_edges.MOST[device]
    if blocks:
        assert [c for block in blocks for c in range(columns)[block]] == list(range(columns))
        assert all(block.start % wide_edges.COLUMNS == 0 for block in blocks)


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


@pytest.mark.parametrize("columns, is_made", [(2, False), (4, True)])
def test_products_of_all_edges_are_not_made(cpu, monkeypatch, columns, is_made):
    in_blocks(monkeypatch, columns)
    graph = GRAPHS["hub"]
    with _Shapes() as shapes:
        run(cpu, graph)
    assert ((len(graph.edges), WIDTH) in shapes.seen) == is_made
