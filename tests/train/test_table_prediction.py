"""Tables get the predictions of the models, in memory or block by block, which can be resumed."""

import io
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from pna.data import table as tables
from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import Settings, predict, predict_table, table_prediction, train
from pna.train.table_prediction import TablePredictor, extend_file

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

SMILES = [f"{chain}{ring}" for ring in ("C1CC1", "c1ccccc1") for chain in "CNOFI"] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def table_run(folder):
    """Trained by what suits the graphs, on a number and on yes or no."""
    rows = [[text, str(k % 2), str(-k)] for k, text in enumerate(SMILES)]
    table = Table("my.csv", ("smiles", "active", "logS"), rows, list(range(2, len(rows) + 2)))
    graphs = from_table(table, ["active", "logS"], split="random", features=["ogb"])
    return train(graphs, folder / "table", settings=Settings(epochs=2, members=2), device="cpu")


def test_a_table_with_its_predictions(table_run):
    tasks, arguments = table_run.config.tasks, table_run.config.model.arguments
    assert {task.name: task.loss for task in tasks} == {"active": "bce", "logS": "mse"}
    active, mean = arguments["graph_means"]
    assert active == 0.0 and -19 < mean * tasks[1].scale < 0
    rows = [["a", "CCO"], ["b", "(("], ["c", "c1ccccc1"]]
    table = Table("new.csv", ("name", "SMILES"), rows, [2, 3, 4])
    with pytest.warns(UserWarning, match="cannot read 1 of 3 molecules of new.csv: line 3"):
        predicted = predict_table(table_run, table)
    more = ("active predicted", "logS predicted", "active_std", "logS_std")
    assert predicted.columns == ("name", "SMILES", *more, "similarity", "extrapolates")
    assert [row[:2] for row in predicted.rows] == rows and not any(predicted.rows[1][2:])
    readable = Table("new.csv", table.columns, rows[::2], [2, 4])
    expected = predict(table_run, from_table(readable, features=["ogb"]))
    for name in ("active", "logS"):
        given, std = (
            [float(cell) for cell in predicted.column(name + word) if cell]
            for word in (" predicted", "_std")
        )
        np.testing.assert_allclose(given, expected.graph[name], rtol=1e-6)
        np.testing.assert_allclose(std, expected.spread["graph"][f"{name}_std"], rtol=1e-4)
    assert all(0 < float(predicted.rows[k][2]) < 1 for k in (0, 2))


def test_new_columns_have_free_names(table_run):
    given = ("smiles", "logS_std", "similarity", "extrapolates", "similarity_2")
    found = predict_table(table_run, Table("new.csv", given, [["C", "1", "2", "3", "4"]], [2]))
    assert found.rows[0][:5] == ["C", "1", "2", "3", "4"]
    assert found.columns[:5] == given and found.columns[-3:] == (
        "logS_std_2", "similarity_3", "extrapolates_2",
    )  # fmt: skip


def test_a_row_for_each_row_of_the_file(table_run, tmp_path):
    path, out = tmp_path / "new.csv", tmp_path / "out.csv"
    path.write_text("smiles,name\n,\nC C,a\n\n,\nC,b\nCC |$a;$|,c\n")
    with pytest.warns(UserWarning) as told:
        extend_file(TablePredictor(table_run), path, out)
    assert [str(one.message) for one in told] == [
        f"cannot read 2 of 5 molecules of {path}: line 2, 5",
        f"took text after a blank as a name in 1 of 5 molecules of {path}: line 3",
    ]
    found = Table.read(out)
    assert found.column("name") == ["", "a", "", "b", "c"]
    predicted = found.column("logS predicted")
    assert [*map(bool, predicted)] == [False, True, False, True, True]
    assert predicted[1] == predicted[3]


def test_what_a_table_cannot_give_is_said_before_the_work(table_run, folder, monkeypatch):
    monkeypatch.setattr(table_prediction, "molecule_blocks", None)
    table = Table("new.csv", ("smiles", "logS predicted"), [["C", "1"]], [2])
    with pytest.raises(ValueError, match="a column 'logS predicted', which would be added again"):
        predict_table(table_run, table)
    rows = [[text, str(k)] for k, text in enumerate(SMILES)]
    table = Table("my.csv", ("smiles", "y"), rows, [*range(20)])
    graphs = from_table(table, ["y"], split="random")
    own = replace(graphs, node_features=(*graphs.node_features[:-1], "mine"))
    run = train(own, folder / "own", settings=Settings(epochs=1), device="cpu")
    with pytest.raises(ValueError, match=r"other node features than .* \(mine\); make a graph set"):
        predict_table(run, Table("new.csv", ("smiles",), [["C"]], [2]))


@pytest.fixture
def long_table(tmp_path, monkeypatch):
    """A file of ten blocks of rows, with a molecule that cannot be read and one of many bonds."""
    monkeypatch.setattr(table_prediction, "BLOCK", 4)
    monkeypatch.setattr(tables, "_BLOCK", 3 * 6)  # six rows
    rows = [[f'a "{k}", b', f"{'C' * (k % 5 + 1)}O", str(k)] for k in range(40)]
    rows[5][1], rows[17][1] = "((", "CN(C)(C)C"
    path = tmp_path / "long.csv"
    Table("", ("name", "smiles", "id"), rows, []).save(path)
    return path


class StoppedError(Exception):
    """In the place of Ctrl-C."""


def stop_after(rows):
    def told(done, total):
        if done >= rows:
            raise StoppedError

    return told


def test_in_blocks_as_in_memory(table_run, long_table, tmp_path):
    with pytest.warns(UserWarning) as told:
        predict_table(table_run, long_table).save(tmp_path / "whole.csv")
    assert [str(one.message) for one in told] == [
        f"cannot read 1 of 40 molecules of {long_table}: line 7",
        f"an atom has too many bonds in 1 of 40 molecules of {long_table}: line 19",
    ]
    out, stream, told = tmp_path / "out.csv", io.StringIO(newline=""), []
    with pytest.warns(UserWarning, match="cannot read 1 of 40"):
        extend_file(TablePredictor(table_run), long_table, out, progress=lambda *n: told.append(n))
    with pytest.warns(UserWarning, match="cannot read 1 of 40"):
        extend_file(TablePredictor(table_run, workers=2), long_table, stream)
    whole, found = Table.read(tmp_path / "whole.csv"), Table.read(out)
    assert found.columns == whole.columns and len(found.rows) == 40
    for mine, other in zip(found.rows, whole.rows, strict=True):
        assert mine[:3] == other[:3] and [*map(bool, mine)] == [*map(bool, other)]
    known = [row for row in range(40) if row != 5]
    mine, other = (
        np.array([[*map(float, t.rows[row][3:8])] for row in known]) for t in (found, whole)
    )
    np.testing.assert_allclose(mine, other, rtol=1e-5)
    assert stream.getvalue() == out.read_bytes().decode()
    assert [done for done, _ in told] == [4, 6, 10, 12, 16, 18, 22, 24, 28, 30, 34, 36, 40]
    assert told[-1] == (40, 40)


@pytest.mark.parametrize("rows", [1, 40])
def test_resumed_as_if_it_had_not_stopped(table_run, long_table, tmp_path, rows, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK", 3 * 40)
    out, once = tmp_path / "out.csv", tmp_path / "once.csv"
    with pytest.warns(UserWarning) as expected:
        extend_file(TablePredictor(table_run), long_table, once)
    with pytest.raises(StoppedError):
        extend_file(TablePredictor(table_run), long_table, out, progress=stop_after(rows))
    with (tmp_path / "out.csv.partial" / "rows.csv").open("a") as file:
        file.write('"half a row')
    assert not out.exists()
    told = []
    with pytest.warns(UserWarning) as found:
        extend_file(
            TablePredictor(table_run), long_table, out, resume=True,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
    assert out.read_bytes() == once.read_bytes()
    assert told == [(done, 40) for done in range(8, 44, 4) if rows < 40]
    assert [str(one.message) for one in found] == [str(one.message) for one in expected]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.csv", "once.csv", "out.csv"]


def test_what_is_not_resumed(table_run, long_table, tmp_path):
    out = tmp_path / "out.csv"

    def resumed(*how):
        extend_file(TablePredictor(table_run, *how), long_table, out, resume=True)

    with pytest.raises(FileNotFoundError, match=r"there is no .*out.csv.partial .*leave out --res"):
        resumed()
    with pytest.raises(StoppedError):
        extend_file(TablePredictor(table_run), long_table, out, progress=stop_after(20))
    with pytest.raises(ValueError, match="made with other weights, another member or other"):
        resumed(1)
    given = long_table.read_text()
    long_table.write_text(given.replace('"2"', '"20"'))
    with pytest.raises(ValueError, match="first rows of the table are others than those"):
        resumed()
    long_table.write_text("\n".join(given.splitlines()[:9]))
    with pytest.raises(ValueError, match="first rows of the table are others than those"):
        resumed()
    long_table.write_text(given)
    (tmp_path / "out.csv.partial" / "rows.csv").write_text("short")
    with pytest.raises(ValueError, match=r"out.csv.partial, which is damaged \(rows are missing\)"):
        resumed()


def test_a_table_without_readable_molecules_has_empty_cells(table_run, tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("smiles\n((\n))\n")
    with pytest.warns(UserWarning, match=r"2 of 2 molecules of .*none.csv: line 2, 3"):
        extend_file(TablePredictor(table_run), path, tmp_path / "out.csv")
    head, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert head.startswith("smiles,") and rows == ["((" + "," * head.count(","),
                                                   "))" + "," * head.count(",")]  # fmt: skip


def test_memory_does_not_grow_with_the_table(table_run, tmp_path, monkeypatch):
    monkeypatch.setattr(table_prediction, "BLOCK", 64)
    monkeypatch.setattr(tables, "_BLOCK", 2 * 64)
    path, peaks = tmp_path / "long.csv", []
    with path.open("w") as file:
        file.write("smiles,note\n" + "".join(f"C,{k:02000d}\n" for k in range(1024)))

    def told(done, total):
        assert 0.9 * 1024 < total < 1.1 * 1024
        if done % 256 == 0:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        extend_file(TablePredictor(table_run), path, tmp_path / "out.csv", progress=told)
    finally:
        tracemalloc.stop()
    assert len(peaks) == 4 and peaks[-1] < 1.1 * peaks[1]  # a quarter of the rows: 500 kB
