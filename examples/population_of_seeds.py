"""Train several seeds as one population, and report mean and spread instead of one lucky run."""

import statistics
import tempfile
from pathlib import Path

import pna
import pna.train
from pna.data.multitask import multitask


def main(members: int = 4, epochs: int = 30, train_graphs: int = 512) -> list[float]:
    counts = {"train": train_graphs, "validation": 64, "test": 128}
    graphs = multitask(seed=0, sizes=[10], counts=counts)
    settings = pna.train.Settings(members=members, seed=0, epochs=epochs, batch_size=64, lr=(3e-3,))
    with tempfile.TemporaryDirectory() as folder:
        run = pna.train.train(
            graphs,
            Path(folder) / "seeds",
            "pna",
            settings,
            report=lambda r: print(f"epoch {r.epoch}: validation {min(r.validation):.4f} at best"),
        )
        found = pna.train.evaluate(run, graphs, split="test")
    losses = found.loss
    print("test loss of each member:", ", ".join(f"{loss:.4f}" for loss in losses))
    print(f"mean {statistics.mean(losses):.4f}, deviation {statistics.stdev(losses):.4f}")
    return losses


if __name__ == "__main__":
    main()
