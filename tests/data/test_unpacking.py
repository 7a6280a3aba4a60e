"""Compressed files that unpack to more than there is room for."""

import gzip
import io
import resource
import struct
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.data.images import _cifar10, _mnist
from pna.data.sources import PUBLIC
from pna.data.table import Table
from pna.data.unpacking import VARIABLE, gunzip, load_npz, most_unpacked

#: Unpacks to 400 MiB.
BOMB = gzip.compress(bytes(2**20)) * 400


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1e6")


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_what_fits_is_unpacked(few):
    assert gunzip("x", gzip.compress(b"words") + gzip.compress(b" more")) == b"words more"
    assert load_npz("x", npz(a=np.arange(3)))["a"].tolist() == [0, 1, 2]


def test_the_limit_is_refused_before_the_memory_fills(few):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"got my\.csv\.gz, .* more than 1,000,000 bytes.*4e9"):
        gunzip("my.csv.gz", BOMB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_there_is_a_limit_if_none_is_given(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert most_unpacked() == 256 * 2**20
    with pytest.raises(ValueError, match="more than 268,435,456 bytes"):
        gunzip("my.csv.gz", BOMB)
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ValueError, match=f"got {VARIABLE}='much', expected a number of bytes"):
        gunzip("my.csv.gz", BOMB)


def test_every_reader_has_the_limit(few, tmp_path):
    path = tmp_path / "my.csv.gz"
    path.write_bytes(BOMB)
    bombs = {
        "my.csv.gz": lambda: Table.read(path),
        "train-images": lambda: _mnist([BOMB] * 4),
        PUBLIC["cifar10"].files[0].name: lambda: _cifar10(BOMB),
        "my.npz": lambda: load_npz("my.npz", npz(a=np.zeros(10**7))),
    }
    for name, read in bombs.items():
        with pytest.raises(ValueError, match=rf"{name}.*unpacks to more than 1,000,000 bytes"):
            read()


def test_the_command_line_says_what_to_do(few, tmp_path):
    pytest.importorskip("rdkit")
    path, out = tmp_path / "my.csv.gz", tmp_path / "out"
    path.write_bytes(BOMB)
    done = CliRunner().invoke(app, ["data", "molecules", str(path), "--out", str(out)])
    (line,) = done.output.splitlines()
    assert done.exit_code == 1 and f"unpack it yourself, or raise the limit: {VARIABLE}=" in line
    assert not out.exists()


def headed(descr="'<f8'", shape="(1,)", more=""):
    """An archive of one array of 8 bytes with such a header, which numpy parses as Python."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, {more}}}".encode()
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    return archive(**{"a.npy": start + header + bytes(8)})


def encrypted() -> bytes:
    """An archive whose directory says that its member needs a password."""
    content = bytearray(npz(a=np.zeros(9)))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zip",
        npz(a=np.zeros(9))[:-30],
        npz(a=np.array([{}], object)),
        encrypted(),
        headed(shape=f"({10**12},)"),
        headed(shape=f"({10**30},)"),  # OverflowError
        headed(shape="(" * 100),  # TokenError
        headed(shape="-" * 5000 + "1"),  # RecursionError
        headed(shape="(True,)"),  # TypeError
        headed(descr="()"),  # IndexError
        headed(descr="',f8'"),  # SyntaxError
        headed(more=" " * 20_000),  # an error of three lines
        headed(shape=f"('{'a' * 5000}',)"),  # an error that quotes it all
    ],
    ids=["empty", "no zip", "cut", "pickle", "password", "8 TB", "huge", "open", "deep", "true",
         "no type", "no syntax", "long header", "long error"],
)  # fmt: skip
def test_damaged_arrays(content):
    with pytest.raises(
        ValueError, match=r"got my\.npz, which cannot be read as npz \(.+\), .*copy it again$"
    ) as caught:
        load_npz("my.npz", content)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_limit_that_is_no_number_is_not_blamed_on_the_file(monkeypatch):
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ValueError, match=f"^got {VARIABLE}='much', expected a number of bytes"):
        load_npz("my.npz", npz(a=np.arange(3)))


@pytest.mark.parametrize(
    "content",
    [BOMB[:50], b"\x1f\x8b", gzip.compress(b"a") + b"rest"],
    ids=["cut", "no header", "followed by more"],
)
def test_damaged_gzip(content):
    with pytest.raises(ValueError, match=r"my\.csv\.gz, which gzip cannot unpack .*copy it again"):
        gunzip("my.csv.gz", content)
