"""Files of benchmarks are read only if they are what they should be."""

import hashlib
import io

import numpy as np
import pytest

from pna.data import sources
from pna.data.sources import SOURCES, File, cache, fetch_all, read, unpack
from tests.data.benchmarks import folder_of, serving

CONTENT = b"some molecules"
FILE = File("set/file.npz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("PNA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data" / FILE.name
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return tmp_path / "data"


def test_from_a_folder(folder, monkeypatch):
    assert read(FILE, folder) == CONTENT
    monkeypatch.setenv("PNA_DATA", str(folder))
    assert read(FILE) == CONTENT


def test_without_a_folder():
    with pytest.raises(FileNotFoundError, match=r"no PNA_DATA, .*set/file.npz.*--from.*docs/data"):
        read(FILE)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/set/file.npz"):
        read(FILE, tmp_path)


def test_another_file_is_not_opened(folder):
    (folder / FILE.name).write_bytes(CONTENT + b"!")
    with pytest.raises(
        ValueError, match=r"15 bytes .*expected 14 bytes.*not opened, copy it again"
    ):
        read(FILE, folder)


@pytest.fixture
def address(folder):
    with serving(folder) as address:
        yield address


def test_from_an_address_into_the_cache(address, tmp_path):
    assert read(FILE, address) == CONTENT
    assert cache() == tmp_path / "cache" / "pna"
    assert (cache() / FILE.name).read_bytes() == CONTENT


def test_all_files_of_a_benchmark(address, folder):
    more = File("set/more.csv", 3, hashlib.sha256(b"a,b").hexdigest())
    (folder / more.name).write_bytes(b"a,b")
    told = []
    fetch_all((FILE, more), address, lambda *done: told.append(done))
    assert told[-1] == (17, 17) and (14, 17) in told
    assert (cache() / more.name).read_bytes() == b"a,b"
    told.clear()
    fetch_all((FILE, more), address, lambda *done: told.append(done))  # there already
    assert told == [(14, 17), (17, 17)]


def packed(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_unpack():
    found = unpack("f.npz", packed(a=np.arange(3), b=np.zeros(2)), ["a", "b"])
    assert found["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"hello", packed(a=np.arange(3))[:40]])
def test_what_is_no_npz(content):
    with pytest.raises(ValueError, match=r"f.npz, which cannot be read as npz .*copy it again"):
        unpack("f.npz", content, ["a"])


def test_other_arrays():
    with pytest.raises(ValueError, match=r"got f.npz with the arrays a, c, expected a, b"):
        unpack("f.npz", packed(a=1, c=2), ["b", "a"])


def test_objects_are_never_unpickled():
    with pytest.raises(ValueError, match="cannot be read as npz"):
        unpack("f.npz", packed(a=np.array([{}], object)), ["a"])


@pytest.mark.parametrize("name", SOURCES)
def test_the_benchmarks_own_files(name, monkeypatch):
    monkeypatch.undo()
    folder = folder_of(name)
    for file in SOURCES[name].files:
        assert len(read(file, folder)) == file.size


def test_every_source_says_whom_it_is_owed_to():
    for name in SOURCES:
        told = sources.facts(name)
        assert told["benchmark"] == name and told["licence"] and told["citation"]
