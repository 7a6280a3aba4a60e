"""Define an aggregator with a learned parameter, and train a layer with it and a built-in one."""

from dataclasses import dataclass

import torch

import pna
from pna.aggregators import Aggregator, Neighbourhoods
from pna.nn import PNAConv
from pna.testing import check_aggregator


@dataclass(frozen=True)
class PowerMean(Aggregator):
    """(mean of (|m_j| + 0.001)^p)^(1/p)"""

    power: float | torch.Tensor = 2.0
    shift = "unknown"  # what adding a vector to all messages does to the result; always right

    def aggregate(self, hood: Neighbourhoods) -> torch.Tensor:
        powers = (hood.messages.abs() + 1e-3) ** self.power
        return (hood.mean(powers) + 1e-12) ** (1 / self.power)  # finite where no message arrives


def main(nodes: int = 200, steps: int = 100) -> float:
    check_aggregator(PowerMean(3.0))  # raises if the definition, the gradient or `shift` is wrong

    torch.manual_seed(0)
    edge_index = torch.randint(nodes, (2, 6 * nodes))
    adj = pna.Adjacency.from_edge_index(edge_index, nodes)
    x = torch.randn(nodes, 8)
    target = pna.aggregate(x, adj, [PowerMean(4.0)])[:, 0]

    power = torch.nn.Parameter(torch.tensor(2.0))
    conv = PNAConv(8, 8, ["mean", PowerMean(power)], ["identity"], deg=None)
    optimiser = torch.optim.Adam(conv.parameters(), lr=1e-2)  # the power is one of the parameters
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(conv(x, adj), target)
        loss.backward()
        optimiser.step()
    print(f"loss {loss.item():.4f}; the power was 2 and is now {power.item():.2f}")
    return loss.item()


if __name__ == "__main__":
    main()
