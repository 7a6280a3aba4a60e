"""Classify the nodes of one graph with `pna.nn.PNA`, trained on a tenth of the labels."""

import torch
import torch.nn.functional as F

import pna


def communities(nodes: int, classes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random graph: most edges join nodes of one class, and features are noisy."""
    label = torch.randint(classes, (nodes,))
    probability = torch.where(label[:, None] == label, 20 / nodes, 2 / nodes)
    edge_index = (torch.rand(nodes, nodes) < probability).nonzero().t()
    x = F.one_hot(label, classes) + 2.0 * torch.randn(nodes, classes)
    return x, edge_index, label


def main(nodes: int = 1000, classes: int = 4, steps: int = 100) -> float:
    torch.manual_seed(0)
    x, edge_index, label = communities(nodes, classes)
    known = torch.rand(nodes) < 0.1
    adj = pna.Adjacency.from_edge_index(edge_index, nodes)  # one graph: sorted once, for all steps
    model = pna.nn.PNA(
        classes, 32, num_layers=2, out_channels=classes, dropout=0.2, norm="batch_norm",
        aggregators=["mean", "std", "max"], scalers=["identity", "amplification"],
        deg=pna.DegreeStats.from_degrees(adj.degree),
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x, adj)[known], label[known]).backward()
        optimiser.step()
    model.eval()
    right = (model(x, adj).argmax(1) == label)[~known].float().mean().item()
    print(f"{100 * right:.1f}% of the unlabelled nodes are right; chance: {100 / classes:.0f}%")
    return right


if __name__ == "__main__":
    main()
