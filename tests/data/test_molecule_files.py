"""Molecules in lines of SMILES, SDF and Parquet are tables, whole and in blocks."""

import gzip

import pytest

from pna.data import molecule_files
from pna.data.molecule_table import from_table, numeric_columns
from pna.data.table import Table, is_table, opened_table

Chem = pytest.importorskip("rdkit.Chem", reason="reading molecules needs pna[chem]")
depict = pytest.importorskip("rdkit.Chem.rdDepictor")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

#: Methylammonium chloride, with one hydrogen as an atom.
RECORD = """a salt
  by hand

  4  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0  0  0  0  0
    1.5000    0.0000    0.0000 N   0  0  0  0  0  0
    4.0000    0.0000    0.0000 Cl  0  0  0  0  0  0
    2.5000    0.0000    0.0000 H   0  0  0  0  0  0
  1  2  1  0
  2  4  1  0
M  CHG  2   2   1   3  -1
M  END
>  <logS>  (1)
-1.5

> <Note>
two
lines

$$$$
"""


def write(folder, name, text, encoding="utf-8"):
    path = folder / name
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["a.smi", "a.smi.gz"])
def test_lines_of_smiles(tmp_path, name):
    path = write(tmp_path, name, "CCO ethanol, pure\n\nc1ccccc1\tbenzene\r\nC\n")
    table = Table.read(path)
    assert table.columns == ("smiles", "name") and table.lines == [1, 3, 4]
    assert table.rows == [["CCO", "ethanol, pure"], ["c1ccccc1", "benzene"], ["C", ""]]
    assert from_table(path).sizes.tolist() == [3, 6, 1]


def test_a_line_of_names_is_left_out(tmp_path):
    assert Table.read(write(tmp_path, "a.smi", "SMILES Name\nC methane\n")).lines == [2]


@pytest.mark.parametrize("name", ["a.sdf", "a.sdf.gz", "A.SD"])
def test_structures(tmp_path, name):
    made = [("CCO", "7"), ("F[C@](Cl)(Br)I", ""), ("F/C=C/F", "11")]
    records = []
    for smiles, number in made:
        molecule = Chem.MolFromSmiles(smiles)
        depict.Compute2DCoords(molecule)
        records.append(Chem.MolToMolBlock(molecule) + f"> <SMILES>\n{number}\n\n$$$$\n")
    broken = "none\n\n\n  x\nM  END\n$$$$\n"
    text = (RECORD + "".join(records)).replace("\n", "\r\n") + broken
    table = Table.read(write(tmp_path, name, text))
    assert table.columns == ("smiles", "name", "logS", "Note", "SMILES (property)")
    assert table.rows[0][1:] == ["a salt", "-1.5", "two\nlines", ""]
    assert [row[4] for row in table.rows] == ["", "7", "", "11", ""]
    found = [Chem.CanonSmiles(text) for text in table.column("smiles")[:4]]
    expected = ["C[NH3+].[Cl-]", *(smiles for smiles, _ in made)]
    assert found == [Chem.CanonSmiles(text) for text in expected]
    assert table.rows[4][:2] == ["", "none"] and table.lines[:2] == [1, RECORD.count("\n") + 1]
    assert numeric_columns(table) == ["logS", "SMILES (property)"]


def test_hydrogen_is_not_an_atom_of_an_overvalent_molecule(tmp_path):
    molecule = Chem.RWMol(Chem.AddHs(Chem.MolFromSmiles("CN")))
    for _ in range(2):  # N with five bonds
        molecule.AddBond(1, molecule.AddAtom(Chem.Atom(9)), Chem.BondType.SINGLE)
    text = Chem.MolToMolBlock(molecule, kekulize=False) + "$$$$\n"
    graphs = from_table(write(tmp_path, "a.sdf", text))
    assert graphs.sizes.tolist() == [4]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    columns = {
        "smiles": ["C", None, "CCO"],
        "y": [0.1, None, 1e-9],
        "n": [1, 2, 3],
        "b": [True, False, None],
    }
    parquet.write_table(pyarrow.table(columns), path)
    table = Table.read(path)
    assert table.columns == tuple(columns) and table.lines == [1, 2, 3]
    assert table.rows == [["C", "0.1", "1", "1"], ["", "", "2", "0"], ["CCO", "1e-09", "3", ""]]
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"a.parquet, which cannot be read as Parquet"):
        Table.read(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(molecule_files, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"no pyarrow, .*pip install 'pna\[parquet\]'"):
        Table.read(write(tmp_path, "a.parquet", ""))


def test_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(molecule_files, "_ROWS", 2)
    path = write(tmp_path, "a.smi", "C a\nCC b\nCCC c\n")
    with opened_table(path) as (empty, tables):
        found = [*tables]
    assert empty.rows == [] and [len(table.rows) for table, _ in found] == [2, 1]
    assert found[1][0].lines == [3] and found[-1][1] == 1


@pytest.mark.parametrize("name", ["a.smi", "a.sdf"])
def test_what_cannot_be_read(tmp_path, name):
    with pytest.raises(ValueError, match="without rows"):
        Table.read(write(tmp_path, name, "\n\n"))
    path = write(tmp_path, name, RECORD.replace("two", "Äther") + "C Ä\n", "latin-1")
    with pytest.raises(ValueError, match=r"not UTF-8 in line \d+; .*--encoding latin-1"):
        Table.read(path)
    assert "Ä" in str(Table.read(path, "latin-1").rows)
    with pytest.raises(FileNotFoundError, match="expected a file there; check the path"):
        Table.read(tmp_path / f"none{name}")


def test_every_reader_is_of_a_table(tmp_path):
    assert all(is_table(tmp_path / f"a{suffix}") for suffix in molecule_files.READERS)
