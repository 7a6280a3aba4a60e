"""Tables are read as people write them, and what cannot be read is named with its line."""

import gzip
import resource

import numpy as np
import pytest

from pna.data import table as tables
from pna.data.table import Table, is_table, opened, opened_table

ROWS = [["CCO", "1.5", "a, b"], ["C", "", 'say "so"']]


@pytest.fixture
def write(tmp_path):
    def written(content):
        path = tmp_path / "my.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.mark.parametrize(
    "text",
    [
        'smiles,y,note\nCCO,1.5,"a, b"\nC,,"say ""so"""\n',
        'smiles;y;note\nCCO;1.5;a, b\nC;;"say ""so"""\n',
        'smiles\ty\tnote\nCCO\t1.5\ta, b\nC\t\t"say ""so"""',
        '\ufeffsmiles,y,note\r\nCCO,1.5,"a, b"\r\n\r\nC,,"say ""so"""\r\n',
        '\n smiles , y,note\nCCO,1.5,"a, b"\n  \nC,,"say ""so"""\n',
        'smiles,y,note\rCCO,1.5,"a, b"\rC,,"say ""so"""\r',
        ' \nsmiles;y;note\nCCO;1.5;a, b\nC;;"say ""so"""\n',
        'sep=;\r\nsmiles;y;note\r\nCCO;1.5;a, b\r\nC;;"say ""so"""\r\n',
        'smiles,y,note\nCCO,1.5,"a, b",\nC,,"say ""so""",,\n',
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_as_people_write_them(write, text, packed, monkeypatch):
    path = write(gzip.compress(text.encode()) if packed else text)
    table = Table.read(path)
    assert table.columns == ("smiles", "y", "note")
    assert table.rows == ROWS
    monkeypatch.setattr(tables, "_BLOCK", 3)  # one row
    with opened(path) as (columns, blocks):
        found = [*blocks]
    assert columns == table.columns and len(found) == 2
    assert [[cell for (cell,) in block.columns] for block in found] == ROWS
    assert [int(line) for block in found for line in block.lines] == table.lines
    assert found[-1].position == path.stat().st_size


def test_names_with_separators(write):
    table = Table.read(write('smiles;"a, b, c"\nC;1\n'))
    assert table.columns == ("smiles", "a, b, c") and table.rows == [["C", "1"]]


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a file there; check the path"):
        Table.read(tmp_path / "my.csv")
    with pytest.raises(OSError, match="which is a folder, expected a file; check the path"):
        Table.read(tmp_path)


def test_lines_are_those_of_the_file(write):
    table = Table.read(write('smiles,y\n\nC,1\n"C\nC",2\nO,3\n'))
    assert table.lines == [3, 5, 6]


@pytest.mark.parametrize("row", [",,", ",", " ,, ", '"",,,'])
def test_rows_of_empty_cells_keep_their_place(write, row):
    path = write(f"smiles,y,z\n\n{row}\nC,1,2\n{row}\n")
    table = Table.read(path)
    assert table.rows == [["", "", ""], ["C", "1", "2"], ["", "", ""]] and table.lines == [3, 4, 5]
    with opened_table(path) as (_, parts):
        assert [part.rows for part, _ in parts] == [table.rows]
    kept = table.without_empty_rows()
    assert kept.rows == [["C", "1", "2"]] and kept.lines == [4]
    with opened(path) as (_, blocks):  # of nodes and edges
        assert [block.lines.tolist() for block in blocks] == [[4]]


def test_empty_cells_of_one_column(write):
    assert Table.read(write('smiles\nC\n""\n \n\nCC\n')).column("smiles") == ["C", "", "", "CC"]


def test_numbers(write):
    table = Table.read(write("smiles,y\nC, 1e-3\nC,\nC,NaN\nC,n/a\nC,-7\n"))
    np.testing.assert_array_equal(table.numbers("y"), [1e-3, np.nan, np.nan, np.nan, -7])
    assert table.column("y")[0] == "1e-3"


@pytest.mark.parametrize("wrong", ["much", "inf", "-inf", "1_0"])
def test_what_is_no_number(write, wrong):
    table = Table.read(write(f"smiles;y\nC;1\nC;{wrong}\n"))
    with pytest.raises(ValueError, match=rf"got '{wrong}' as y in line 3 of .*my.csv, expected a"):
        table.numbers("y")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas(write, separator):
    cells = ["0,5", "-12", "1,250", "", "2,5e-3"]
    lines = [separator.join(row) for row in (("smiles", "y"), *(("C", cell) for cell in cells))]
    with pytest.warns(UserWarning, match=r"took 0,5 as 0.5 in column y of .*my.csv, and likewise"):
        found = Table.read(write("\n".join(lines))).numbers("y")
    np.testing.assert_array_equal(found, [0.5, -12, 1.25, np.nan, 2.5e-3])


@pytest.mark.parametrize(
    "text",
    [
        "smiles;y\nC;1,250\nC;3,500\n",  # both may be thousands
        "smiles;y\nC;1,25\nC;0.5\n",  # a point is the decimal sign
        'smiles,y\nC,"1,25"\nC,2\n',  # a comma separates cells
    ],
    ids=["thousands", "points", "separator"],
)
def test_commas_that_may_mean_something_else(write, text):
    with pytest.raises(ValueError, match=r"got '1,25\d?' as y in line 2 .*comma may be decimal or"):
        Table.read(write(text)).numbers("y")


def test_limits(write):
    table = Table.read(write("smiles;y;z\nC;<0,5;1\nC;>= 3;2\nC;≤-1;3\nC;7;4\n"))
    with pytest.raises(ValueError, match=r"got '<0,5' as y in line 2 .*a limit, .*--take-limits"):
        table.numbers("y")
    with pytest.warns(UserWarning, match="took 0,5 as 0.5"):
        assert table.numbers("y", take_limits=True).tolist() == [0.5, 3, -1, 7]
    assert table.limits("y") == [(0, "<0,5"), (1, ">= 3"), (2, "≤-1")] and not table.limits("z")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "UTF-16"])
def test_encodings(write, encoding):
    path = write("smiles,name\nC,Äther\n".encode(encoding))
    suggested = "latin-1" if encoding == "cp1252" else encoding.lower()
    with pytest.raises(ValueError, match=rf"not UTF-8 in line \d; .*\(--encoding {suggested}\)"):
        Table.read(path)
    with opened(path, encoding) as (columns, blocks):
        assert columns == ("smiles", "name") and next(blocks).columns[1] == ("Äther",)
    assert Table.read(path, encoding).rows == [["C", "Äther"]]


def test_encodings_that_do_not_fit(write):
    path = write("smiles,name\nC,Äther\n")
    with pytest.raises(ValueError, match=r"not ASCII in line 2; save it as CSV in UTF-8, or give"):
        Table.read(path, "ascii")
    for name in ("latin-one", "rot13"):
        with pytest.raises(
            ValueError, match=f"got the encoding '{name}', expected one that Python"
        ):
            Table.read(path, name)


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "without rows"),
        ("smiles,y\n\n", "without rows"),
        ("smiles,y\nC,1\nC\n", "got 1 cells in line 3 of .*, expected one for each of the 2"),
        ("smiles,y\nC,1,2\n", "got 3 cells in line 2"),
        ('smiles,y\nC,"1\n', "got line 2 of .*, which is no line of a table"),
        ("smiles,ä\nC,1\n".encode("latin-1"), "not UTF-8 in line 1; save it as CSV in UTF-8"),
        (gzip.compress(b"smiles,y\nC,1\n", mtime=0)[:-9], "gzip cannot unpack .*; copy it again"),
    ],
    ids=["empty", "no rows", "few cells", "many cells", "open quote", "latin", "truncated"],
)
def test_what_is_no_table(write, content, words):
    with pytest.raises(ValueError, match=words):
        Table.read(write(content))
    with pytest.raises(ValueError, match=words), opened(write(content)) as (_, blocks):
        list(blocks)


def test_columns_by_name(write):
    table = Table.read(write("smiles,logS,logS\nC,1,2\n"))
    with pytest.raises(ValueError, match=r"unknown column of .*my.csv 'smile'; did you mean 'smi"):
        table.column("smile")
    with pytest.raises(ValueError, match=r"two columns called 'logS' in .*my.csv"):
        table.column("logS")


def test_more_columns(write, tmp_path):
    table = Table.read(write('smiles;y;note\nCCO;1.5;a, b\nC;;"say ""so"""\n'))
    out = tmp_path / "out.csv"
    table.with_columns({"p": ["0.5", ""], "q": ["1", "2"]}).save(out)
    again = Table.read(out)
    assert again.columns == ("smiles", "y", "note", "p", "q")
    assert again.rows == [[*ROWS[0], "0.5", "1"], [*ROWS[1], "", "2"]]
    assert table.columns == ("smiles", "y", "note")
    with pytest.raises(
        ValueError, match="with a column 'y', which would be added again; rename it"
    ):
        table.with_columns({"y": ["1", "2"]})


def test_tables_by_name(tmp_path):
    names = ["a.csv", "A.CSV", "a.tsv", "a.txt", "a.csv.gz", "a.smi.gz", "a.SDF", "a.parquet"]
    assert all(is_table(tmp_path / name) for name in names)
    assert not any(is_table(tmp_path / name) for name in ("a.safetensors", "a.gz", "csv"))


def test_a_limit_on_the_size_of_files_leaves_the_table_there(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("before")
    table = Table("t", ("a",), [["x" * 100]] * 1000, list(range(1000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write .*my\.csv .*ulimit -f"):
            table.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
