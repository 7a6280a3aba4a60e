"""A table of molecules as graphs: features, numbers to predict, splits, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch

from pna import GraphSet
from pna.data.molecule_table import from_table, numeric_columns, smiles_column, standardised
from pna.data.molecules import from_smiles
from pna.data.scaffolds import SPLITS, scaffold_split
from pna.data.special_rows import RowRules
from pna.data.table import Table

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

RINGS = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CC1", "C1CCC1", "c1ccoc1", "c1ccsc1", "C1CCCC1"]
SMILES = [f"{chain}{ring}" for ring in RINGS for chain in ("C", "CC", "CCC", "N", "O")]


def table_of(columns, lines=None):
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table("my.csv", tuple(columns), rows, lines or list(range(2, len(rows) + 2)))


def numbered(**columns):
    numbers = {"logS": [str(-k / 4) for k in range(len(SMILES))]}
    return table_of({"smiles": SMILES, **numbers, **columns})


def test_graphs_are_those_of_the_smiles():
    graphs, found = from_table(numbered(), ["logS"]), from_smiles(SMILES)
    assert graphs.sizes.tolist() == found.sizes.tolist()
    assert np.array_equal(graphs.x, found.x)
    assert graphs.graph_targets == ("logS",)
    assert graphs.y_graph[:, 0].tolist() == [-k / 4 for k in range(len(SMILES))]
    assert graphs.metadata["table"] == "my.csv" and "losses" not in graphs.metadata
    assert len(graphs.metadata["node_values"]) == graphs.x.shape[1]


def test_from_a_file(tmp_path):
    path = tmp_path / "a.csv"
    numbered().save(path)
    assert torch.equal(from_table(path, ["logS"]).x, from_table(numbered(), ["logS"]).x)


def test_scaffolds_are_not_parted():
    graphs = from_table(numbered(), ["logS"])
    words = [SPLITS[word] for word in scaffold_split(SMILES)]
    assert [graphs.splits[k] for k in graphs.split_of_graph] == words
    for ring in range(len(RINGS)):
        assert len({*words[5 * ring : 5 * ring + 5]}) == 1


def test_columns_that_are_called_as_a_way_to_divide():
    columns = {"scaffold": SMILES, "random": SMILES}
    graphs = from_table(numbered(**columns), ["logS"])
    assert torch.equal(graphs.split_of_graph, from_table(numbered(), ["logS"]).split_of_graph)
    assert len(from_table(numbered(**columns), ["logS"], split="random").split("test")) == 4


def test_random_splits_are_of_the_seed():
    def drawn(seed):
        graphs = from_table(numbered(), ["logS"], split="random", seed=seed)
        return [graphs.splits[k] for k in graphs.split_of_graph]

    assert Counter(drawn(0)) == {"train": 32, "validation": 4, "test": 4}
    assert drawn(0) == drawn(0) != drawn(1)


def test_calibration_molecules_are_taken_from_those_of_training():
    def words(**how):
        graphs = from_table(numbered(), ["logS"], split="random", **how)
        assert "calibration" in graphs.splits or not how.get("calibration")
        return np.array([graphs.splits[k] for k in graphs.split_of_graph])

    before, after = words(), words(calibration=0.25)
    taken = after == "calibration"
    assert taken.sum() == 8 and (before[taken] == "train").all()
    assert (before[~taken] == after[~taken]).all()
    assert (words(calibration=0.25) == after).all()
    other = words(calibration=0.25, seed=1)
    assert ((other == "calibration") != taken).any()


@pytest.mark.parametrize("share", [1.0, 0.01, -0.1, float("nan")])
def test_shares_that_cannot_be_taken(share):
    with pytest.raises(ValueError, match=r"of 32 training molecules .*such as 0\.1"):
        from_table(numbered(), ["logS"], split="random", calibration=share)


def test_calibration_in_a_column_of_splits():
    words = [["train", "test", "Calibration", "val"][k % 4] for k in range(40)]
    graphs = from_table(numbered(fold=words), ["logS"], split="fold")
    assert graphs.splits == ("train", "validation", "test", "calibration")
    assert len(graphs.split("calibration")) == 10


def test_a_column_of_splits():
    words = ["Train", "training", "valid", "validation", "val", "dev", "test", "TESTING"] * 5
    graphs = from_table(numbered(fold=words), ["logS"], split="fold")
    found = [graphs.splits[k] for k in graphs.split_of_graph][:8]
    assert found == ["train"] * 2 + ["validation"] * 4 + ["test"] * 2
    only = from_table(numbered(fold=["test"] * 40), ["logS"], split="fold")
    assert len(only.split("test")) == 40 and only.metadata["means"] == {"logS": -39 / 8}


def test_without_targets_there_is_nothing_to_divide():
    graphs = from_table(numbered())
    assert graphs.y_graph is None and graphs.splits == ()
    assert len(from_table(numbered(), split="scaffold").split("train")) == 30


def test_yes_and_no_are_probabilities():
    column = (["0", "1", ""] * 14)[:40]
    columns = {"active": column, "dose": ["2"] + ["1"] * 39, "dead": ["0"] * 40}
    graphs = from_table(numbered(**columns), ["active", "logS", "dose", "dead"])
    assert graphs.metadata["losses"] == {"active": "bce", "dead": "bce"}
    assert graphs.y_graph[:, 0].isnan().sum() == 13
    assert graphs.graph_scale[0] == 1.0 and "active" not in graphs.metadata["means"]
    assert graphs.graph_scale[3] == 1.0 and "dead" not in graphs.metadata["means"]


def test_mean_and_deviation_are_of_what_is_trained_on():
    fold = ["train", "test"] * 20
    graphs = from_table(numbered(fold=fold), ["logS"], split="fold")
    trained = np.array([-k / 4 for k in range(0, 40, 2)])
    assert graphs.metadata["means"] == {"logS": trained.mean()}
    np.testing.assert_allclose(graphs.graph_scale, trained.std())


@pytest.mark.parametrize("unit, shift", [(1e-9, 0.0), (1.0, -1e4), (1e9, 1e12)])
def test_numbers_of_any_size_are_standardised(unit, shift):
    y = [str(shift + unit * (k % 7)) for k in range(40)]
    graphs = from_table(numbered(y=y), ["y"])
    trained = graphs.split("train").y_graph[:, 0].double()
    z = (trained - graphs.metadata["means"]["y"]) / graphs.graph_scale[0]
    assert abs(float(z.mean())) < 1e-3 and abs(float(z.std(unbiased=False)) - 1) < 1e-3


def test_numbers_that_cannot_be_kept():
    with pytest.raises(ValueError, match=r"got 1e\+39 as y in line 3 of my.csv, more than float32"):
        from_table(numbered(y=["1", "1e39", *["1"] * 38]), ["y"])
    near = [str(1e7 + k / 10) for k in range(40)]
    with pytest.raises(ValueError, match=r"as y in my.csv that differ by at most 3.9, too little"):
        from_table(numbered(y=near), ["y"])
    constant = from_table(numbered(y=["1e7"] * 40), ["y"])
    assert constant.graph_scale == (1.0,) and constant.metadata["means"] == {"y": 1e7}


def test_joined_tables_are_told_to_be_standardised_again():
    halves = [
        Table("my.csv", t.columns, t.rows[part], t.lines[part])
        for t, part in ((numbered(), slice(0, 20)), (numbered(), slice(20, 40)))
    ]
    parts = [from_table(half, ["logS"], split="random") for half in halves]
    with pytest.warns(UserWarning, match="molecule_table.standardised computes them"):
        whole = GraphSet.concat(parts)
    assert "means" not in whole.metadata
    whole = standardised(whole)
    assert whole.metadata["means"]["logS"] == float(whole.split("train").y_graph.double().mean())


def test_molecules_that_cannot_be_read():
    smiles = ["CCO", "C1CC", "C", "", *SMILES]
    table = table_of({"smiles": smiles, "y": [str(k) for k in range(len(smiles))]})
    with pytest.raises(ValueError, match=r"got 'C1CC' in line 3 of my.csv, .*\(--skip\)"):
        from_table(table, ["y"])
    with pytest.warns(UserWarning, match=r"left out 2 molecules of my.csv .* refuses: line 3, 5$"):
        graphs = from_table(table, ["y"], rows=RowRules(skip=True), split="random")
    assert graphs.y_graph[:, 0].tolist() == [0, 2, *range(4, 44)]
    many = table_of({"smiles": ["C", *["("] * 12]})
    with pytest.warns(UserWarning, match="line 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2 more"):
        assert len(from_table(many, rows=RowRules(skip=True))) == 1
    with pytest.raises(ValueError, match=r"got no molecules in my.csv"):
        from_table(table_of({"smiles": ["(", ""]}), rows=RowRules(skip=True))


def test_targets_to_be_warned_of():
    dead = {"dead": ["0"] * 39 + [""], "same": ["7"] * 40, "half": ["1", "2"] * 20}
    table = numbered(**dead, copy=dead["half"])
    with pytest.warns(UserWarning) as told:
        from_table(table, ["dead", "same", "half", "copy"], split="random")
    assert [str(one.message).partition(";")[0] for one in told] == [
        "got dead in my.csv with one class only, 0 in all 39 rows that have it: there is nothing "
        "to learn",
        "got same in my.csv with one number only, 7 in all 40 rows that have it: there is nothing "
        "to learn",
        "got the targets half and copy in my.csv with equal numbers in all rows",
    ]


def test_numeric_columns():
    columns = {
        "id": ["7", "3", "9"],
        "logS": ["-1.5", "", "2"],
        "active": ["0", "1", "0"],
        "name": ["a", "b", "1"],
        "empty": ["", "NA", ""],
        "whole": ["1", "2", ""],
        "below": ["<1", "2", "3"],
    }
    table = table_of({"smiles": ["C", "CC", "O"], **columns})
    with pytest.warns(UserWarning, match="below is not taken as a target: got '<1'") as told:
        assert numeric_columns(table) == ["logS", "active", "whole"]
    assert len(told) == 1
    assert numeric_columns(table, take_limits=True) == ["logS", "active", "whole", "below"]


@pytest.mark.parametrize(
    "columns, found",
    [
        ("id,SMILES,y", "SMILES"),
        ("id,smiles,canonical_smiles", "smiles"),
        ("id,Canonical_SMILES", "Canonical_SMILES"),
    ],
)
def test_the_column_of_smiles(columns, found):
    names = columns.split(",")
    table = table_of({name: ["C"] for name in names})
    assert smiles_column(table) == found
    assert smiles_column(table, "id") == "id"
    with pytest.raises(ValueError, match=r"unknown column of my.csv 'mol'"):
        smiles_column(table, "mol")


@pytest.mark.parametrize(
    "columns, words",
    [
        ("id,y", "with the columns id, y, expected one called smiles; .*--smiles"),
        ("smiles_a,y,smiles_b", "several columns of SMILES, smiles_a and smiles_b, .*--smiles"),
    ],
)
def test_no_column_of_smiles(columns, words):
    table = table_of({name: ["C"] for name in columns.split(",")})
    with pytest.raises(ValueError, match=words):
        smiles_column(table)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"got 'left' as fold in line 2 of my.csv, expected train"):
        from_table(numbered(fold=["left"] * 40), ["logS"], split="fold")
    with pytest.raises(ValueError, match="got the split 'fold', expected scaffold, random or a"):
        from_table(numbered(), ["logS"], split="fold")
    with pytest.raises(ValueError, match=r"got no number as y in my.csv"):
        from_table(numbered(y=[""] * 40), ["y"])
    few = table_of({"smiles": SMILES[:9], "y": ["1"] * 9})
    with pytest.raises(ValueError, match=r"9 molecules of my.csv, whose random split leaves none"):
        from_table(few, ["y"], split="random")
    one_ring = table_of({"smiles": ["C"] * 20, "y": ["1"] * 20})
    with pytest.raises(
        ValueError, match=r"scaffold split leaves none for train .*use the split rand"
    ):
        from_table(one_ring, ["y"])
