"""Rows of the generator's benchmark; never their times."""

from typer.testing import CliRunner

from pna.bench.generate import measure
from pna.cli import app


def test_rows():
    rows = list(measure(small=True, status=lambda _: None))
    assert [(row.case, row.contender) for row in rows] == [
        ("default set", "pna"),
        ("a quarter", "pna"),
        ("labels, 20 nodes", "pna"),
        ("labels, 20 nodes", "NetworkX"),
    ]
    assert rows[0].graphs == 560 and rows[1].graphs == 140
    assert all(row.seconds > 0 and row.per_second == row.graphs / row.seconds for row in rows)


def test_command(tmp_path):
    path = tmp_path / "rows.csv"
    done = CliRunner().invoke(app, ["bench", "generate", "--small", "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "default set" in done.output and "NetworkX" in done.output
    assert len(path.read_text().splitlines()) == 5
