"""`pna bench molecules`, with commands that take no time in the place of packages."""

import sys
from pathlib import Path

import numpy as np
import pytest

from pna.bench import molecule_tables
from pna.bench.molecule_tables import (
    CHEMPROP,
    OURS,
    Commands,
    MoleculeCase,
    measure_rates,
    measure_table,
)

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

#: Predicts the number of letters of a SMILES plus the seed, which `train` has written; for a member
#: of an ensemble, plus its number too.
PREDICT = """
import sys
seed = int(open(sys.argv[2]).read()) + int(sys.argv[4])
rows = open(sys.argv[1]).read().split()[1:]
lines = [f"{row},{len(row) + seed}" for row in rows]
open(sys.argv[3], "w").write("\\n".join(["smiles,size", *lines]) + "\\n")
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.csv"
    rows = [f"{'C' * (k + 1)},{k + 1}" for k in range(20)] + ["Q,1"]
    path.write_text("\n".join(["smiles,size", *rows]) + "\n")
    return path


@pytest.fixture
def packages(monkeypatch) -> list[tuple[str, int]]:
    """The trainings that were run, by fake packages; of chemprop seed 3 fails."""
    ran: list[tuple[str, int]] = []

    def fake(name: str, ensembles: bool) -> Commands:
        def train(case, run, seed, members):
            ran.append((run.name, seed))
            fails = name == CHEMPROP and seed == 3
            script = f"open({str(run)!r}, 'w').write('{seed}')" if not fails else "1 / 0"
            assert not list(case.path.parent.glob("molecules.csv-*"))
            (case.path.parent / "molecules.csv-graphs").touch()  # the next training makes its own
            return [sys.executable, "-c", script]

        def predict(case, runs, out, member):
            files = (str(case.test), ",".join(map(str, runs)), str(out))
            return [sys.executable, "-c", PREDICT, *files, str(member or 0)]

        return Commands(train, predict, "{}", ensembles)

    both = {OURS: fake(OURS, True), CHEMPROP: fake(CHEMPROP, False)}
    monkeypatch.setattr(molecule_tables, "peers", lambda python: both)
    return ran


def test_models_and_ensembles_are_measured_once(table, tmp_path, packages):
    case = MoleculeCase(table, split="random", seeds=3)
    rows = list(measure_table(case, tmp_path / "work", "python"))
    assert [(row.contender, row.model) for row in rows] == [
        (name, model)
        for name in (OURS, CHEMPROP)
        for model in ("seed 0", "seed 1", "seed 2", "ensemble of 3")
    ]
    assert {row.metric for row in rows} == {"rmse"} and {row.molecules for row in rows} == {20}
    # an error of 0, 1 and 2; one command trains our ensemble, with seed 0; the other is a mean
    assert np.allclose([row.value for row in rows], [0, 1, 2, 0, 0, 1, 2, 1])
    # the first model and the ensemble are trained; the others are members of the ensemble
    timed = [row for row in rows if row.cpu_seconds is not None]
    assert [row.model for row in timed[:3]] == ["seed 0", "ensemble of 3", "seed 0"]
    assert all(row.cpu_seconds > 0 and row.predict_seconds > 0 for row in timed)
    assert rows[-1].cpu_seconds == pytest.approx(sum(row.cpu_seconds for row in rows[4:7]))
    assert len(packages) == 5
    again = list(measure_table(case, tmp_path / "work", "python"))
    assert again == rows and len(packages) == 5
    assert len(list(measure_table(case, tmp_path / "work"))) == 4  # ours alone


def test_a_command_that_fails_names_its_output(table, tmp_path, packages):
    case = MoleculeCase(table, split="random", seeds=4)
    with pytest.raises(ValueError, match=r"ended with 1; its output is in .*chemprop-3.log"):
        list(measure_table(case, tmp_path / "work", "python"))
    assert "ZeroDivisionError" in next(tmp_path.glob("work/*/chemprop-3.log")).read_text()


def test_the_rate_has_no_start(table, tmp_path, packages, monkeypatch):
    """A fake clock: 5 seconds to start, and 2 ms for each row."""
    case = MoleculeCase(table, split="random", seeds=2)
    list(measure_table(case, tmp_path / "work", "python"))
    ran = []

    def timed(command, log):
        rows = len(Path(command[-4]).read_text().split()) - 1
        ran.append((rows, command[-3].count(",") + 1))
        return 1.0, 5 + 0.002 * rows

    monkeypatch.setattr(molecule_tables, "_timed", timed)
    rates = list(measure_rates(case, tmp_path / "work", "python"))
    assert [(rate.contender, rate.model) for rate in rates] == [
        (OURS, "prediction, seed 0"), (OURS, "prediction, ensemble of 2"),
        (CHEMPROP, "prediction, seed 0"), (CHEMPROP, "prediction, ensemble of 2"),
        ("rdkit", "parsing"),
    ]  # fmt: skip
    assert [rate.value for rate in rates[:4]] == pytest.approx([500] * 4) and rates[4].value > 0
    assert [runs for _, runs in ran[::2]] == [1, 1, 1, 2]  # chemprop's ensemble is several runs
    most = max(rows for rows, _ in ran)
    assert rates[0].molecules == most and rates[0].predict_seconds == pytest.approx(5 + most / 500)
    list(measure_rates(case, tmp_path / "work"))
    assert len(ran) == 8  # measured once
