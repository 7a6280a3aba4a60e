"""The figure of a graph set has a panel for everything, whatever the numbers and names."""

import pytest
import torch

from pna import GraphSet
from pna.report.describe import draw_description

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")


def test_every_target_has_a_panel(tmp_path):
    """Of one name at both levels, of a type that NumPy does not have, or with infinite values."""
    graphs = GraphSet.from_arrays(
        [1, 1], [[], []], [0, 0],
        y_node=torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        y_graph=torch.tensor([[1.0, torch.inf], [torch.nan, -torch.inf]]),
        node_targets=["a_b", "c"], graph_targets=["a b", "nodes of a graph"],
        type=["a_b", "a b"],
    )  # fmt: skip
    figure = draw_description(graphs, "set")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    expected = ["nodes of a graph", "degree of a node", "a b", "c", "a b", "nodes of a graph"]
    assert titles[:7] == [*expected, "type of graph"]
    figure.savefig(tmp_path / "figure.svg")
    labels = [label.get_text() for label in figure.axes[6].get_yticklabels()]
    assert labels == ["a b", "a b"]
    assert len(figure.axes[6].patches) == 2
