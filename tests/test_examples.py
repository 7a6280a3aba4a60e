"""Every script of examples/ runs with tiny settings, prints its result, and is short."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

#: Arguments that make each of them a matter of seconds, and what its result must be.
TINY: dict[str, tuple[dict[str, Any], Any]] = {
    "compile_and_export.py": ({"backend": "eager"}, lambda found: found < 1e-5),
    "graph_set.py": ({"graphs": 40}, lambda found: 0 < found < math.inf),
    "molecules_from_a_table.py": (
        {"rows": 24, "epochs": 2},
        lambda found: found.startswith("smiles,carbons,carbons predicted"),
    ),
    "node_classification.py": ({"nodes": 300, "steps": 40}, lambda found: found > 0.5),
    "own_aggregator.py": ({"nodes": 30, "steps": 20}, lambda found: 0 < found < 2),
    "population_of_seeds.py": (
        {"members": 2, "epochs": 1, "train_graphs": 32},
        lambda found: len(found) == 2 and all(map(math.isfinite, found)),
    ),
    "pyg_training_loop.py": ({"graphs": 64, "epochs": 3}, lambda found: found < 4),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] * ("compile" in path.name))
        for path in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_runs_and_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A script without an entry above fails. Compiling and exporting take ten seconds."""
    for package in ("torch_geometric", "rdkit", "ogb"):
        pytest.importorskip(package)
    arguments, is_right = TINY[name]
    assert is_right(runpy.run_path(str(EXAMPLES / name))["main"](**arguments))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", TINY)
def test_is_a_short_script(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert text.splitlines()[-2] == 'if __name__ == "__main__":'
