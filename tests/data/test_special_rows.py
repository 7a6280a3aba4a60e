"""Special rows of a table of molecules are counted, named and treated as the rules say."""

import pytest

from pna.data.molecule_table import from_table
from pna.data.special_rows import KINDS, RowRules, SpecialRow, read_rows, save_rows, summary
from pna.data.table import Table

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

OVERVALENT = "CN(C)(C)C"
#: Texts, numbers and the kinds of special rows that each is, in the rows of a table.
ROWS = [
    ("CCO", "1", ()),
    ("CCN", "2", ()),
    ("OCC", "1", ("duplicate",)),
    ("C(C)O", "", ("duplicate",)),
    ("NCC", "3", ("contradicting duplicate",)),
    ("CC[NH3+].[Cl-]", "4", ("fragments",)),
    ("[13CH3]C", "5", ("isotope",)),
    ("*CC", "6", ("wildcard",)),
    ("[Na+]", "7", ("single atom",)),
    (OVERVALENT, "8", ("over-valent",)),
    ("[2H]O.[Al](O)(O)(O)(O)(O)O", "9", ("over-valent", "fragments", "isotope")),
    ("C" * 31, "10", ("large",)),
    ("C" * 14, "11", ()),
    ("CCF and more", "12", ("text after SMILES",)),
    ("CCS |$a;;$| thiol", "13", ()),
]


def table_of(rows):
    cells = [[text, y] for text, y, *_ in rows]
    return Table("my.csv", ("smiles", "y"), cells, list(range(2, len(rows) + 2)))


def found(rows, **rules):
    special = []
    rules = RowRules(**rules, report=lambda name, rows: special.extend(rows))
    graphs = from_table(table_of(rows), ["y"], split="random", rows=rules)
    return graphs, special


def test_every_kind_is_named():
    graphs, special = found(ROWS)
    assert len(graphs) == len(ROWS)
    expected = [(line, kind) for line, row in enumerate(ROWS, 2) for kind in row[2]]
    assert [(row.line, row.what) for row in special] == expected
    assert {row.done for row in special} == {"kept"}
    assert {kind for _, kind in expected} == {*KINDS} - {"unreadable", "limit"}
    details = {row.line: row.detail for row in special}
    assert details[4] == "same molecule as line 2"
    assert details[6] == "same molecule as line 3; y from 2 to 3"
    assert details[13] == "31 atoms, median 3"


def test_what_skip_and_keep_leave_out():
    rows = [*ROWS, ("C1CC", "14", ("unreadable",)), ("", "15", ("unreadable",))]
    with pytest.raises(ValueError, match=r"got 'C1CC' in line 17 of my.csv, .*\(--skip\)"):
        found(rows)
    graphs, special = found(rows, skip=True)
    lost = {row.line for row in special if row.done == "left out"}
    assert lost == {11, 12, 17, 18} and len(graphs) == len(rows) - 4
    assert 8.0 not in graphs.y_graph[:, 0].tolist()
    graphs, special = found(rows, skip=True, keep=True)
    assert {row.line for row in special if row.done == "left out"} == {17, 18}
    assert 8.0 in graphs.y_graph[:, 0].tolist()


@pytest.mark.parametrize(
    "rows, words",
    [
        ([(OVERVALENT, "1")], r"line 2 .*too many bonds.*\(--skip\), or leave out --strict"),
        ([("C1CC", "1")], r"line 2 of my.csv, expected the SMILES .*\(--skip\)"),
        ([("C C", "1")], r"got 'C C' in line 2 .*\(text after SMILES\), .*leave out --strict"),
        ([("*C", "1")], r"got '\*C' in line 2 .*\(wildcard\), .*leave out --strict"),
        ([("CCO", "1"), ("OCC", "2")], "line 3 .*contradicting duplicate: same molecule as line 2"),
    ],
)
def test_strict(rows, words):
    plain = [(f"C{'C' * k}O{'C' * k}", str(k)) for k in range(1, 12)]
    assert found(plain, strict=True)[1] == []
    with pytest.raises(ValueError, match=words):
        found([*rows, *plain], strict=True)


def test_python_is_told_of_text_after_smiles():
    rows = [("CCO ethanol", "1"), *(("C" * k, str(k)) for k in range(2, 12))]
    with pytest.warns(UserWarning, match=r"as a name in 1 SMILES of my.csv: line 2$"):
        graphs = from_table(table_of(rows), ["y"], split="random")
    assert graphs.sizes[0] == 3


def test_rows_of_empty_cells_are_not_trained_on():
    plain = [("C" * k, str(k)) for k in range(2, 12)]
    graphs, special = found([*plain, ("", "")])
    assert len(graphs) == 10 and not special
    with pytest.raises(ValueError, match=r"got '' in line 12 of my.csv, expected the SMILES"):
        found([*plain, ("", "1")])


def test_strict_and_skip():
    plain = [("C" * k, str(k)) for k in range(2, 12)]
    graphs, special = found([(OVERVALENT, "1"), *plain], strict=True, skip=True)
    assert len(graphs) == 10 and [row.done for row in special] == ["left out"]
    with pytest.raises(ValueError, match="got --keep and --strict, expected one of them"):
        RowRules(keep=True, strict=True)


def test_limits_are_taken_and_named():
    rows = [("C" * k, "<0.5" if k == 3 else str(k)) for k in range(2, 13)]
    with pytest.raises(ValueError, match=r"got '<0.5' as y in line 3 .*\(--take-limits\)"):
        found(rows)
    graphs, special = found(rows, take_limits=True)
    assert graphs.y_graph[1, 0] == 0.5
    assert special == [SpecialRow(3, "CCC", "limit", "y <0.5", "limit taken")]
    with pytest.raises(ValueError, match=r"line 3 .*\(limit: y <0.5\)"):
        found(rows, take_limits=True, strict=True)


def test_file_and_summary(tmp_path):
    rows = [
        SpecialRow(3, "C, C", "unreadable", "", "left out"),
        SpecialRow(4, "*", "wildcard", "", "kept"),
        SpecialRow(9, "*", "wildcard", "", "kept"),
    ]
    save_rows(tmp_path / "a.rows.csv", rows)
    table = Table.read(tmp_path / "a.rows.csv")
    assert table.columns == ("line", "smiles", "what", "detail", "done")
    assert table.rows[0] == ["3", "C, C", "unreadable", "", "left out"] and len(table.rows) == 3
    assert read_rows(tmp_path / "a.rows.csv") == rows
    for damaged in ("", "line,smiles\n3,C\n", "line,smiles,what,detail,done\nx,C,limit,,kept\n"):
        (tmp_path / "b.rows.csv").write_text(damaged)
        with pytest.raises(ValueError, match=r"b\.rows\.csv, which is not a list of special rows"):
            read_rows(tmp_path / "b.rows.csv")
    assert summary(rows) == [
        "1 unreadable, left out (RDKit cannot read the SMILES)",
        "2 wildcard, kept (atoms of no element (*))",
    ]
