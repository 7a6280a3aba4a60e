"""Graph sets with folds: each gives a set with splits, scaled by its training graphs."""

from dataclasses import replace

import numpy as np
import pytest

from pna import GraphSet
from pna.data.division import FoldOptions
from pna.data.folds import fold_of, labels, with_folds
from pna.data.kept_graphs import kept_folds
from pna.data.molecule_table import from_table
from pna.data.table import Table
from tests.train.small_runs import molecules

CHAINS = [f"{chain}C" for chain in ("", "O", "N", "CC", "S")]
RINGS = ["C1CC1", "c1ccccc1", "c1ccncc1", "C1CCC1", "c1ccsc1", "C1CCCC1", "C1CCOC1"]


@pytest.fixture
def graphs() -> GraphSet:
    return replace(molecules(), split_of_graph=None, splits=())


def measured() -> Table:
    """Molecules of eight scaffolds, one of which has half of them."""
    smiles = [chain + ring for ring in RINGS for chain in CHAINS[:3]] + CHAINS * 4
    rows = [[text, str(k**1.5)] for k, text in enumerate(smiles)]
    return Table("my.csv", ("smiles", "y"), rows, [*range(2, len(rows) + 2)])


def test_a_fold_is_a_set_with_splits(graphs):
    folded = with_folds(graphs, FoldOptions(3, 2))
    assert labels(folded) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for number, text in enumerate(folded.metadata["folds"]["parts"]):
        fold = fold_of(folded, number)
        assert fold.splits == ("train", "validation", "test") and "folds" not in fold.metadata
        assert "".join(map(str, fold.split_of_graph.tolist())) == text
        trained = graphs.y_graph.numpy()[[part == "0" for part in text]]
        np.testing.assert_allclose(fold.graph_scale, np.nanmax(trained, 0), rtol=1e-6)
    with pytest.raises(ValueError, match="got fold 6, expected one of 0 to 5"):
        fold_of(folded, 6)
    assert labels(graphs) == []


def test_own_splits_are_not_overruled():
    with pytest.raises(ValueError, match=r"splits of their own \(train, validation, test\)"):
        with_folds(molecules(), FoldOptions(3))


@pytest.mark.parametrize(
    "entry",
    [
        {"repeats": 1},
        {"repeats": 0, "parts": ["0" * 24]},
        {"repeats": 2, "parts": ["0" * 24]},
        {"repeats": 1, "parts": ["0" * 23]},
        {"repeats": 1, "parts": ["0" * 23 + "3"]},
    ],
)
def test_folds_of_other_graphs_are_refused(graphs, entry):
    with pytest.raises(ValueError, match=r"whose folds cannot be used .*; make them again"):
        fold_of(replace(graphs, metadata={"folds": entry}), 0)


def test_folds_are_kept_beside_the_file(graphs, tmp_path):
    graphs.save(tmp_path / "set.safetensors")
    path = kept_folds(tmp_path / "set.safetensors", FoldOptions(3), 0)
    before = path.stat().st_mtime_ns
    assert path.parent == tmp_path and len(labels(GraphSet.load(path))) == 3
    assert kept_folds(tmp_path / "set.safetensors", FoldOptions(3), 0) == path
    assert path.stat().st_mtime_ns == before
    assert kept_folds(tmp_path / "set.safetensors", FoldOptions(3), 1) != path


def test_no_scaffold_is_in_two_parts():
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    scaffolds = pytest.importorskip("rdkit.Chem.Scaffolds.MurckoScaffold")
    table = measured()
    folded = from_table(table, ["y"], folds=FoldOptions(4, 2), seed=3)
    assert len(labels(folded)) == 8 and not folded.has_splits
    own = [scaffolds.MurckoScaffoldSmiles(text) for text in table.column("smiles")]
    y = np.array(table.column("y"), float)
    for number in range(8):
        fold = fold_of(folded, number)
        parts = fold.split_of_graph.numpy()
        for ring in {*own}:
            assert len({*parts[[one == ring for one in own]].tolist()}) == 1
        assert fold.metadata["means"]["y"] == pytest.approx(y[parts == 0].mean(), rel=1e-6)
        assert fold.graph_scale[0] == pytest.approx(y[parts == 0].std(), rel=1e-6)
    with pytest.raises(ValueError, match="got 8 scaffolds for 9 folds"):
        from_table(table, ["y"], folds=FoldOptions(9))
    random = from_table(table, ["y"], folds=FoldOptions(9), split="random")
    assert len(labels(random)) == 9


def test_what_folds_do_not_go_with():
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    with pytest.raises(ValueError, match=r"got the split 'y' with folds .*expected scaffold or"):
        from_table(measured(), ["y"], folds=FoldOptions(3), split="y")
    with pytest.raises(ValueError, match=r"got a share of 0\.1 for calibration with folds"):
        from_table(measured(), ["y"], folds=FoldOptions(3), calibration=0.1)
