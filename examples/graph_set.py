"""Write graphs of your own as a graph set, read it back, and take batches from it."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import pna


def main(graphs: int = 100) -> float:
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 15, graphs)  # nodes of each graph
    edge_counts = 3 * sizes
    # edges of all graphs end to end; nodes are numbered from 0 within each graph
    edge_index = np.concatenate([rng.integers(n, size=(2, 3 * n)) for n in sizes], axis=1)
    x = rng.normal(size=(sizes.sum(), 4)).astype(np.float32)
    first = np.concatenate([[0], sizes.cumsum()[:-1]])
    made = pna.GraphSet.from_arrays(
        sizes,
        edge_index,
        edge_counts,
        x=x,
        y_graph=np.add.reduceat(x[:, :1], first) / sizes[:, None],
        node_features=["a", "b", "c", "d"],
        graph_targets=["mean_a"],
        split=[{0: "test", 1: "validation"}.get(i % 10, "train") for i in range(graphs)],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.safetensors"
        made.save(path)  # one file, with a checksum; `pna train mine.safetensors` trains on it
        read = pna.GraphSet.load(path)

    train = read.split("train")
    print(f"{len(read)} graphs, {len(train)} to train on, δ = {train.degree_stats().mean_log:.3f}")
    batch = train.batch(torch.randperm(len(train))[:32])  # 32 graphs as one
    mean = pna.aggregate(batch.x, batch.adjacency, ["mean"])[:, 0]  # (nodes, 4)
    print(f"a batch of {batch.num_graphs} graphs: {batch.num_nodes} nodes, {batch.num_edges} edges")
    small = read.select(size=range(5, 8))
    print(f"{len(small)} graphs have 5 to 7 nodes")  # small.to_pyg() makes PyG's Data of them
    return mean.abs().mean().item()


if __name__ == "__main__":
    main()
