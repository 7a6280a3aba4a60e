"""The layer under `torch.compile`, for graphs of any size, and as an exported program."""

import torch

import pna
from pna.nn import PNAConv


class Layer(torch.nn.Module):
    """The module to export: it takes the graph as an edge_index."""

    def __init__(self, conv: PNAConv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(x, pna.Adjacency.from_edge_index(edge_index, x.shape[0]))


def graph(nodes: int, edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(nodes, 8), torch.randint(nodes, (2, edges))


def main(backend: str = "inductor") -> float:
    torch.manual_seed(0)
    stats = pna.DegreeStats.from_degrees(torch.tensor([1, 2, 3]))
    conv = PNAConv(8, 8, ["mean", "std", "max"], ["identity", "amplification"], deg=stats).eval()

    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend=backend)
    worst = 0.0
    for nodes, edges in ((20, 60), (31, 77)):  # compiled once, for both
        x, edge_index = graph(nodes, edges)
        # sort the edges outside of compiled code, which cannot keep the result
        adj = pna.Adjacency.from_edge_index(edge_index, nodes)
        with torch.no_grad():
            worst = max(worst, (compiled(x, adj) - conv(x, adj)).abs().max().item())

    x, edge_index = graph(20, 60)
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    shapes = {"x": {0: nodes}, "edge_index": {1: edges}}
    exported = torch.export.export(Layer(conv), (x, edge_index), dynamic_shapes=shapes).module()
    x, edge_index = graph(31, 77)
    with torch.no_grad():
        difference = (exported(x, edge_index) - conv(x, edge_index)).abs().max().item()
    print(f"largest difference: compiled {worst:.1e}, exported {difference:.1e}")
    return max(worst, difference)


if __name__ == "__main__":
    main()
