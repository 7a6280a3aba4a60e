"""PNAConv in a PyG training loop: only the import of the layer differs from PyG's own example.

Predicts the mean degree of random graphs. Needs `pip install 'pna[pyg]'`.
"""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

import pna
from pna.nn import PNAConv  # was: from torch_geometric.nn import PNAConv


def random_graph(nodes: int = 12) -> Data:
    edges = torch.randint(nodes, (2, int(torch.randint(nodes, 4 * nodes, ()))))
    return Data(x=torch.ones(nodes, 1), edge_index=edges, y=torch.tensor([edges.shape[1] / nodes]))


class Net(torch.nn.Module):
    def __init__(self, deg: pna.DegreeStats, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(1, hidden)
        self.convs = torch.nn.ModuleList(
            PNAConv(
                hidden, hidden, ["mean", "std", "max", "min"],
                ["identity", "amplification", "attenuation"], deg=deg, towers=4,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.head = torch.nn.Linear(hidden, 1)

    def forward(self, data: Data) -> torch.Tensor:
        x = self.encode(data.x)
        # sort the edges once per batch, for all layers
        adj = pna.Adjacency.from_edge_index(data.edge_index, data.num_nodes)
        for conv in self.convs:
            x = x + conv(x, adj).relu()
        return self.head(global_mean_pool(x, data.batch)).squeeze(1)


def main(graphs: int = 512, epochs: int = 20) -> float:
    torch.manual_seed(0)
    loader = DataLoader([random_graph() for _ in range(graphs)], batch_size=64, shuffle=True)
    model = Net(pna.DegreeStats.from_graphs(loader))  # δ of the training set
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in loader:
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), batch.y)
            loss.backward()
            optimiser.step()
            total += loss.item() * batch.num_graphs
        print(f"epoch {epoch}: mean squared error {total / graphs:.4f}")
    return total / graphs


if __name__ == "__main__":
    main()
