"""From a table of SMILES and a measured number to predictions. Needs `pip install 'pna[chem]'`.

Without a table of your own it writes one of alcohols, whose number is that of their carbon atoms.
"""

import sys
import tempfile
from pathlib import Path

from pna.data.molecule_table import from_table
from pna.train import ModelSettings, Settings, evaluate, predict_table, train


def write_table(path: Path, rows: int) -> None:
    chains = [f"{'C' * (1 + i % 12)}({'C' * (1 + i // 12)})O" for i in range(rows)]
    lines = [f"{smiles},{smiles.count('C')}" for smiles in chains]
    path.write_text("\n".join(["smiles,carbons", *lines]) + "\n", encoding="utf-8")


def main(table: str = "", target: str = "carbons", rows: int = 96, epochs: int = 30) -> str:
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(table) if table else Path(folder) / "measured.csv"
        if not table:
            write_table(measured, rows)
        graphs = from_table(measured, [target], split="random")  # "scaffold" for real molecules
        run = train(
            graphs,
            Path(folder) / "run",
            ModelSettings("pna", "stacked", hidden=20, arguments={"layers": 2, "towers": 5}),
            Settings(epochs=epochs, batch_size=16),
        )
        found = evaluate(run, graphs, split="test")
        print(f"mean absolute error on test molecules: {found.tasks[0].metrics['mae'][0]:.3f}")
        predicted = predict_table(run, measured)  # the table with a column more
        predicted.save(Path(folder) / "predicted.csv")
        text = (Path(folder) / "predicted.csv").read_text(encoding="utf-8")
    print(*text.splitlines()[:5], sep="\n")
    return text


if __name__ == "__main__":
    main(*sys.argv[1:3])
