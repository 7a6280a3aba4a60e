"""Rows of losses: what a resumed run keeps of them, and what it refuses to lose."""

from __future__ import annotations

import math
import os

import pytest

from pna.data import tensor_file
from pna.train.loop import train
from pna.train.metrics_file import Metrics, kept_rows, read, readable_rows
from pna.train.run import BEST, LAST, METRICS, Run
from pna.train.settings import Settings
from tests.train.cases import SMALL, random_graphs

NAMES = ["epoch", "member", "loss"]
HEADER = "epoch,member,loss\n"
ROWS = [["1", "0", "1.0"], ["2", "0", "2.0"]]
GRAPHS = random_graphs(train=6, validation=3, sizes=(3, 6))


@pytest.fixture
def path(tmp_path):
    return tmp_path / METRICS


def test_rows_are_written_after_those_kept(path):
    metrics = Metrics(path, NAMES, ROWS)
    metrics.add([[3, m, 0.5] for m in (0, 1)])
    metrics.close()
    assert metrics.rows == 4
    assert path.read_text().split() == ["epoch,member,loss", "1,0,1.0", "2,0,2.0", "3,0,0.5",
                                        "3,1,0.5"]  # fmt: skip
    assert read(path)[-1] == {"epoch": 3, "member": 1, "loss": 0.5}


NUMBERS = [1.0, -0.0, 2.1684043449710089e-19, 1e22, math.inf, -math.inf, math.nan]


def test_every_number_that_is_written_is_read(path):
    metrics = Metrics(path, NAMES)
    metrics.add([[i + 1, 0, loss] for i, loss in enumerate(NUMBERS)])
    metrics.close()
    assert [repr(row["loss"]) for row in read(path)] == [repr(loss) for loss in NUMBERS]
    assert len(kept_rows(path, NAMES, len(NUMBERS), len(NUMBERS))) == len(NUMBERS)


@pytest.mark.parametrize(
    "cell",
    ["", " ", "2", "0_1.8", "\u0663", "\u0663.0", " 7.0 ", "+2.0", "2.00", "Infinity", '"2.0"'],
)
def test_numbers_are_as_they_are_written(path, cell):
    """Python reads some of these, and took an empty cell for NaN: none was ever written."""
    path.write_text(f"{HEADER}1,0,1.0\n2,0,{cell}\n", encoding="utf-8")
    for refuse in (lambda: read(path), lambda: kept_rows(path, NAMES, 2, 2)):
        with pytest.raises(ValueError, match=r"line 3, .* is not a number as pna train writes it"):
            refuse()
    with pytest.warns(UserWarning, match="continues with 1 rows"):
        assert readable_rows(path, NAMES, 2) == ROWS[:1]


@pytest.mark.parametrize(
    "row", ["0_2,0,2.0", "2 ,0,2.0", "2,00,2.0", "2.0,0,2.0", ",0,2.0", "2,,2.0"]
)
def test_epochs_and_members_are_as_they_are_written(path, row):
    path.write_text(f"{HEADER}1,0,1.0\n{row}\n")
    with pytest.raises(ValueError, match=r"line 3, .* is not a number as pna train writes it"):
        kept_rows(path, NAMES, 2, 2)


@pytest.mark.parametrize("count", [2, None], ids=["counted", "of an older version"])
def test_a_row_of_the_checkpoint_that_is_cut_is_refused(path, count):
    """Wherever it is cut: 2.168 cut to 2.1, 2. or 2 was taken for the loss."""
    whole = (HEADER + "1,0,1.0\n2,0,2.168\n").replace("\n", "\r\n").encode()
    for cut in range(1, len(b"2,0,2.168\r\n")):
        path.write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=r"line 3, .*it is cut: the file does not end with"):
            kept_rows(path, NAMES, 2, count)
        with pytest.warns(UserWarning, match="continues with 1 rows"):
            assert readable_rows(path, NAMES, 2) == ROWS[:1]
    path.write_bytes(whole)
    assert kept_rows(path, NAMES, 2, count) == [ROWS[0], ["2", "0", "2.168"]]


def test_a_cut_header_is_refused(path):
    path.write_text(HEADER.strip())
    with pytest.raises(ValueError, match=r"line 1, .*it is cut"):
        kept_rows(path, NAMES, 2, 0)


@pytest.mark.parametrize("count", [2, None], ids=["counted", "of an older version"])
@pytest.mark.parametrize(
    "torn",
    ["", "3", "3,", "3,1", "3,0,", "3,0,-", "3,0,1e-", "3,0,na", "3,0,3.0", "3,0,3.0\r",
     "3,0,3.0\n4,0,"],
    ids=repr,
)  # fmt: skip
def test_rows_after_the_checkpoint_may_be_torn(path, torn, count):
    """A killed process may have written a part of what came after its checkpoint."""
    path.write_text(f"{HEADER}1,0,1.0\n2,0,2.0\n{torn}")
    assert kept_rows(path, NAMES, 2, count) == ROWS


@pytest.mark.parametrize("count", [2, None], ids=["counted", "of an older version"])
@pytest.mark.parametrize(
    "odd",
    [b"\0\0", b"\0\0\n", b"\xff\x83\x10", b"x,1,2.0", b"3,0,3.0,9.0\n,,", b'"3,0', b"3,0,3.0,",
     b"3,0,x", b"3,,3.0", b"1,1,2.0\n", b"2,1,2.", b"4,0,4.0\n3,0,3.0\n"],
    ids=repr,
)  # fmt: skip
def test_what_no_row_begins_with_is_refused_after_the_checkpoint_too(path, odd, count):
    """It was left out without a word."""
    path.write_bytes(f"{HEADER}1,0,1.0\n2,0,2.0\n".encode() + odd)
    with pytest.raises(ValueError, match=r"metrics\.csv, line [45], .*--repair-metrics"):
        kept_rows(path, NAMES, 2, count)


def test_a_row_cut_in_its_epoch_is_told_by_the_count(path):
    """A 1 may be the beginning of epoch 10, member 1, or of epoch 11."""
    path.write_text(f"{HEADER}9,0,1.0\n10,0,2.0\n1")
    assert len(kept_rows(path, NAMES, 10, 2)) == 2
    with pytest.raises(ValueError, match=r"line 4, .*it is cut"):
        kept_rows(path, NAMES, 10, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("1,0,1.0\n2,0,2.0\n", 1),
        ("epoch,member\n1,0\n2,0\n", 1),
        (HEADER + "x,0,1.0\n2,0,2.0\n", 2),
        (HEADER + "1,0\n2,0,2.0\n", 2),
        (HEADER + "1,0,1.0\n2,0,2.0\ufffd\n", 3),
        (HEADER + '1,0,"1.0\n2,0,2.0\n', 2),
        (HEADER + "2,0,2.0\n1,0,1.0\n", 3),
        (HEADER + "1,0,1.0\n1,0,1.0\n2,0,2.0\n", 3),
        (HEADER + "1,0,1.0\n", 3),
        (HEADER, 2),
    ],
    ids=["empty", "no header", "other columns", "a letter", "a cell less", "no text", "a quote",
         "another order", "twice", "a row less", "no rows"],
)  # fmt: skip
def test_damaged_rows_are_refused_by_their_line(path, text, line):
    path.write_text(text)
    with pytest.raises(
        ValueError, match=rf"metrics\.csv, line {line}, .*restore the file.*--repair-metrics"
    ):
        kept_rows(path, NAMES, 2, 2)
    assert path.read_text() == text


def test_without_a_count_rows_reach_as_far_as_they_come_one_after_another(path):
    """Of checkpoints of older versions: every third epoch up to the ninth, none of the twelfth."""
    path.write_text(HEADER + "".join(f"{epoch},0,1.0\n" for epoch in (3, 6, 9)))
    assert len(kept_rows(path, NAMES, 11, None)) == 3
    with pytest.raises(ValueError, match=r"line 5, .*it is missing: .* after epoch 12 has more"):
        kept_rows(path, NAMES, 12, None)


def test_what_cannot_be_opened_is_named(path):
    for make in (lambda: None, lambda: os.symlink(path, path)):
        make()
        with pytest.raises(ValueError, match=r"metrics\.csv, line 1, .*the file cannot be read"):
            read(path)


def test_all_that_can_be_read_is_kept_where_that_is_asked_for(path):
    damaged = b"\xff\xfe\n1,0,1.0\n1,1,x\n\x00,1\n2,0,2.0\n2,0,7.0\n3,0,3.0\n"
    for number in (1, 2):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"with 2 rows .*now .*csv.damaged-{number}"):
            assert readable_rows(path, NAMES, 2) == ROWS
        assert not path.exists()
        assert path.with_name(f"{METRICS}.damaged-{number}").read_bytes() == damaged
    with pytest.warns(UserWarning, match=r"with 0 rows .*; there was no file"):
        assert readable_rows(path, NAMES, 2) == []


@pytest.fixture
def run(tmp_path) -> Run:
    settings = Settings(members=2, epochs=3, batch_size=6)
    return train(GRAPHS, tmp_path / "run", SMALL["pna stacked"], settings, device="cpu")


def damage(whole: bytes, how: str) -> bytes | None:
    lines = whole.splitlines(keepends=True)
    return {
        "missing": None,
        "empty": b"",
        "binary": b"\xff\x00\xfe" * 50,
        "a line less": b"".join(lines[:3] + lines[4:]),
        "cut": b"".join(lines[:5]),
        "cut in a number": whole[:-7],
        "zeros after it": whole + bytes(40),
        "a letter": whole.replace(b"\n2,", b"\nx,", 1),
    }[how]


DAMAGES = [
    "missing", "empty", "binary", "a line less", "cut", "cut in a number", "zeros after it",
    "a letter",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_a_run_is_not_resumed_over_damaged_rows(run, how):
    """They were rewritten without a word; what was good of them was lost."""
    path = run.folder / METRICS
    whole = path.read_bytes()
    damaged = damage(whole, how)
    path.unlink() if damaged is None else path.write_bytes(damaged)
    before = {p.name: p.read_bytes() for p in run.folder.iterdir()}
    for epochs in (None, 4):
        with pytest.raises(ValueError, match=r"run/metrics\.csv, line \d, .*--repair-metrics"):
            train(GRAPHS, run.folder, resume=True, epochs=epochs, device="cpu")
        assert {p.name: p.read_bytes() for p in run.folder.iterdir()} == before
    with pytest.warns(UserWarning, match="continues with [0-6] rows"):
        train(GRAPHS, run.folder, resume=True, repair_metrics=True, device="cpu")
    assert all(row in whole.split() for row in path.read_bytes().split())
    train(GRAPHS, run.folder, resume=True, epochs=4, device="cpu")  # and needs no repair again
    assert [row["epoch"] for row in run.metrics()][-2:] == [4, 4]


def test_rows_that_are_not_damaged_are_not_repaired(run):
    """The file was renamed, and called damaged."""
    whole = {p.name: p.read_bytes() for p in run.folder.iterdir()}
    with pytest.warns(UserWarning, match=r"run/metrics\.csv is not damaged: .*nothing to repair"):
        train(GRAPHS, run.folder, resume=True, repair_metrics=True, device="cpu")
    assert {p.name: p.read_bytes() for p in run.folder.iterdir()} == whole
    with pytest.warns(UserWarning, match="is not damaged"):
        train(GRAPHS, run.folder, resume=True, repair_metrics=True, epochs=4, device="cpu")
    assert len(run.metrics()) == 8
    assert (run.folder / METRICS).read_bytes().startswith(whole[METRICS])


def test_a_repair_does_not_overwrite_damaged_weights(run):
    """Nor does it rename the rows before all else was checked."""
    for name in (METRICS, BEST):
        (run.folder / name).write_bytes((run.folder / name).read_bytes()[:-9])
    before = {p.name: p.read_bytes() for p in run.folder.iterdir()}
    with pytest.raises(ValueError, match=r"best\.safetensors.*; or move it away"):
        train(GRAPHS, run.folder, resume=True, repair_metrics=True, device="cpu")
    assert {p.name: p.read_bytes() for p in run.folder.iterdir()} == before


def test_runs_of_older_versions_are_resumed(run):
    """Their checkpoints do not know how many rows there are."""
    tensors, facts = run.read(LAST)
    assert facts.pop("rows") == 6
    path = run.folder / LAST
    tensor_file.write(path, tensors, facts, kind="pna.train.last", version=1, force=True)
    train(GRAPHS, run.folder, resume=True, epochs=4, device="cpu")
    assert len(run.metrics()) == 8 and run.read(LAST)[1]["rows"] == 8


def test_a_new_run_has_nothing_to_repair(tmp_path):
    with pytest.raises(ValueError, match="got repair_metrics for a new run, expected it only with"):
        train(GRAPHS, tmp_path / "run", repair_metrics=True)
