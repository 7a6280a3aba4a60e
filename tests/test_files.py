"""Files that are written wholly or not at all, and errors that say which."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from pna.files import (
    alone,
    check_readable,
    is_new,
    leftovers,
    make_folder,
    naming,
    remove_leftovers,
    replacing,
)


@pytest.mark.parametrize("content, binary", [("α\r\nβ", False), (b"\x00\xff", True)], ids=repr)
def test_a_file_is_replaced_when_all_is_written(tmp_path, content, binary):
    path = tmp_path / "file"
    path.write_text("before")
    with replacing(path, binary=binary) as file:
        file.write(content)
        assert path.read_text() == "before"
    assert path.read_bytes() == (content if binary else content.encode())
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write("half")
        raise KeyError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_says_where(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as error, replacing(tmp_path / "file") as file:
        file.write("half")
    assert error.value.errno == errno.ENOSPC
    place = tmp_path / "file"
    assert str(error.value) == f"cannot write {place} (No space left on device); free some space"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number, remedy",
    [
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "choose a folder on a disk that can be written to"),
        (errno.EACCES, "permissions"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_errors_of_the_file_system_name_the_file_and_the_remedy(
    tmp_path, monkeypatch, number, remedy
):
    """And leave the file that was there as it was."""
    path = tmp_path / "file"
    path.write_text("before")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError) as error, replacing(path) as file:
        file.write("half")
    assert error.value.errno == number
    assert str(error.value).startswith(f"cannot write {path} (") and remedy in str(error.value)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("before")
    folder.chmod(0o555)
    try:
        with (
            pytest.raises(PermissionError, match="permissions"),
            replacing(folder / "file") as file,
        ):
            file.write("after")
        with pytest.raises(PermissionError, match=r"cannot write .*more .*permissions"):
            make_folder(folder / "more")
        assert (folder / "file").read_text() == "before"
    finally:
        folder.chmod(0o755)


def test_names_that_cannot_be_those_of_files(tmp_path):
    (tmp_path / "file").write_text("words")
    for path in (tmp_path / ("x" * 300), tmp_path / "file" / "below", tmp_path / "none" / "file"):
        refused = pytest.raises(OSError, match=r"cannot write|expected the name")
        with refused as error, replacing(path) as file:
            file.write("words")
        assert "\n" not in str(error.value) and "Errno" not in str(error.value)


def test_what_is_no_file_cannot_be_read(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for name, words in {
        "none": "expected a file there; check the path",
        "loop": "which is a symbolic link that leads to itself",
        "folder": "which is a folder, expected a file",
    }.items():
        with pytest.raises(OSError, match=words):
            check_readable(tmp_path / name)
    with pytest.raises(OSError, match=r"got - \(standard input\), .* expected a file; save"):
        check_readable(Path("-"))


@pytest.mark.parametrize(
    "given", [FileNotFoundError(errno.ENOENT, "No such file", "other"), OSError("odd")], ids=repr
)
def test_errors_that_say_enough_stay_as_they_are(tmp_path, given):
    with pytest.raises(OSError) as error, naming(tmp_path / "file"):
        raise given
    assert error.value is given


@pytest.mark.parametrize("name", ["file", "file/folder"])
def test_a_file_is_no_folder(tmp_path, name):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotADirectoryError, match=r"file is a file, expected a folder"):
        is_new(tmp_path / name)


def test_what_a_killed_process_left_is_told_from_other_files(tmp_path):
    assert is_new(tmp_path / "none") and is_new(tmp_path)
    left = tmp_path / ".config.json.4711.tmp"
    left.write_text("{")
    assert leftovers(tmp_path) == [left] and is_new(tmp_path)
    (tmp_path / ".notes.tmp").write_text("precious")
    assert leftovers(tmp_path) == [left] and not is_new(tmp_path)
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".notes.tmp"]


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks")
def test_one_is_alone_at_a_time(tmp_path):
    """Also where somebody fails, who lets go."""
    inside, seen = [], []

    def work():
        with alone(tmp_path):
            inside.append(1)
            seen.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    with pytest.raises(ValueError, match="wrong"), alone(tmp_path):
        raise ValueError("wrong")
    with (
        alone(tmp_path),
        pytest.raises(BlockingIOError, match="in which another process is writing"),
        alone(tmp_path, wait=False),
    ):
        raise AssertionError
    with alone(tmp_path, wait=False):
        pass
    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_a_pipe_stays_a_pipe(tmp_path):
    """A rename would put a file in the place of a device, which all the machine may need."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match="a device or a pipe"), replacing(path) as file:
        file.write("words")
    assert path.is_fifo() and list(tmp_path.iterdir()) == [path]


def test_a_link_that_leads_to_itself(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(OSError), replacing(tmp_path / "one") as file:
        file.write("words")


@pytest.mark.parametrize("before", ["before", None], ids=["a link", "a link to nothing"])
def test_what_a_link_leads_to_is_replaced(tmp_path, before):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    if before is not None:
        target.write_text(before)
    with replacing(link) as file:
        file.write("after")
    assert link.is_symlink() and target.read_text() == "after"
