"""The graph set of a table of molecules: made once, and kept beside it."""

from pathlib import Path

import pytest

from pna import GraphSet
from pna.data.kept_graphs import TableOptions, kept_graphs
from pna.data.molecule_table import from_table
from pna.data.special_rows import RowRules

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

RANDOM = TableOptions(split="random")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    rows = [f"m{k},{'C' * (k + 1)}O,{k / 2},{k % 2}" for k in range(12)]
    path.write_text("\n".join(["name,smiles,logS,toxic", *rows]) + "\n")
    return path


def test_made_once(table):
    path, made = kept_graphs(table, RANDOM, RowRules())
    assert path.parent == table.parent and path.name.startswith("measured.csv-")
    assert made.graph_targets == ("logS", "toxic")  # all columns of numbers
    same = from_table(table, made.graph_targets, split="random")
    assert same.graph_features == made.graph_features != ()
    before = path.stat().st_mtime_ns
    assert kept_graphs(table, RANDOM, RowRules()) == (path, None)
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        (TableOptions(["logS"], split="random"), RowRules()),
        (TableOptions(split="random", split_seed=1), RowRules()),
        (TableOptions(split="random", calibration=0.2), RowRules()),
        (RANDOM, RowRules(skip=True)),
    ],
)
def test_a_file_for_other_options(table, options, rules):
    first, _ = kept_graphs(table, RANDOM, RowRules())
    path, made = kept_graphs(table, options, rules)
    assert made is not None and path != first
    assert GraphSet.load(path).graph_targets == made.graph_targets
    assert kept_graphs(table, options, rules) == (path, None)
    assert kept_graphs(table, RANDOM, RowRules()) == (first, None)


def test_a_file_for_other_content(table):
    first, made = kept_graphs(table, RANDOM, RowRules())
    table.write_text(table.read_text() + "m12,CCN,1.5,1\n")
    assert len(kept_graphs(table, RANDOM, RowRules())[1]) == 13
    assert len(GraphSet.load(first)) == len(made) == 12


def test_a_table_without_numbers(table):
    table.write_text("name,smiles\na,CCO\n")
    with pytest.raises(ValueError, match=r"without a column of numbers.*--targets"):
        kept_graphs(table, RANDOM, RowRules())
    assert [*table.parent.iterdir()] == [table]
