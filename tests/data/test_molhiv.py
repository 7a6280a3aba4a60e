"""ogbg-molhiv: a table of a few molecules, those that RDKit refuses, and the benchmark itself."""

import csv
import gzip
from collections import Counter

import pytest

from pna.data import molhiv as module
from pna.data.molhiv import from_csv, molhiv
from pna.data.scaffolds import SPLITS
from pna.data.table import text_of
from tests.data.benchmarks import folder_of

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

#: Rows whose atoms have too many bonds for newer RDKit, by their split.
REFUSED = {
    "test": [137, 987],
    "valid": [12882, 18293],
    "train": [30784, 30785, 35728],
}


def test_from_csv():
    graphs = from_csv("smiles,HIV_active,split\nCCO,0,train\nC=O,1,test\nN,0,valid\n", "few.csv")
    assert graphs.sizes.tolist() == [3, 2, 1] and graphs.edge_counts.tolist() == [4, 2, 0]
    assert graphs.y_graph[:, 0].tolist() == [0, 1, 0]
    assert graphs.splits == ("train", "validation", "test")
    assert graphs.split_of_graph.tolist() == [0, 2, 1]
    assert graphs.x.shape == (6, 9) and graphs.edge_attr.shape == (6, 3)
    assert graphs.node_features[0] == "atomic number"
    assert graphs.x[:, 0].tolist() == [5, 5, 7, 5, 7, 6]
    assert graphs.metadata["node_values"] == [119, 5, 12, 12, 10, 6, 6, 2, 2]
    assert graphs.metadata["edge_values"] == [5, 6, 2]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "got the columns nothing in line 1 of t.csv, expected smiles, HIV_active, split"),
        ("smiles,active\nC,1", "got the columns smiles, active in line 1"),
        ("smiles,HIV_active,split\nC,1,train\nC,2,train", "'C,2,train' in line 3 of t.csv"),
        ("smiles,HIV_active,split\nC,1,val", "expected .* one of train, valid, test"),
        ("smiles,HIV_active,split\nC,1", "'C,1' in line 2"),
        ("smiles,HIV_active,split\nC,1,train\nhello,0,test", "'hello' in line 3 of t.csv"),
        ("smiles,HIV_active,split\n", "no molecules"),
    ],
)
def test_wrong_tables(text, message):
    with pytest.raises(ValueError, match=message):
        from_csv(text, "t.csv")


@pytest.fixture(scope="module")
def rows():
    with gzip.open(folder_of("molhiv") / "molhiv" / "molhiv.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def test_molecules_that_rdkit_refuses(rows):
    lines = ["smiles,HIV_active,split"]
    for split, places in REFUSED.items():
        for place in places:
            assert rows[place]["split"] == split
            lines.append(",".join(rows[place].values()))
    graphs = from_csv("\n".join(lines), "refused.csv")
    assert {name: len(graphs.split(name)) for name in graphs.splits} == {
        "train": 3,
        "validation": 2,
        "test": 2,
    }
    assert float(graphs.y_graph.sum()) == 0
    assert (graphs.edge_counts > 0).all()


@pytest.mark.slow
def test_the_benchmark(rows, monkeypatch):
    """Reads the table, and of its 41,127 molecules every twentieth and twenty of the largest."""
    assert Counter(row["split"] for row in rows) == {"train": 32_901, "valid": 4_113, "test": 4_113}
    active = Counter(row["split"] for row in rows if row["HIV_active"] == "1")
    assert active == {"train": 1_232, "valid": 81, "test": 130}
    longest = sorted(rows, key=lambda row: len(row["smiles"]))[-20:]
    some = [*longest, *rows[::20]]

    def part_of(name, content):
        first, *lines = text_of(name, content).splitlines()
        assert len(lines) == len(rows)
        return "\n".join([first, *(",".join(row.values()) for row in some)])

    monkeypatch.setattr(module, "text_of", part_of)
    graphs = molhiv(folder_of("molhiv"), workers=2)
    assert graphs.y_graph[:, 0].tolist() == [int(row["HIV_active"]) for row in some]
    splits = [graphs.splits[place] for place in graphs.split_of_graph.tolist()]
    assert splits == [SPLITS[row["split"]] for row in some]
    assert int(graphs.sizes.max()) == 222
    assert float(graphs.sizes[20:].double().mean()) == pytest.approx(25.51, rel=0.02)
    assert float(graphs.edge_counts[20:].double().mean()) / 2 == pytest.approx(27.47, rel=0.02)
    node_values, edge_values = graphs.metadata["node_values"], graphs.metadata["edge_values"]
    assert (graphs.x.amax(0) < graphs.x.new_tensor(node_values)).all()
    assert (graphs.edge_attr.amax(0) < graphs.edge_attr.new_tensor(edge_values)).all()
