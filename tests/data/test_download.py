"""Downloads from a server of our own: whole, broken off, wrong, and none at all."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pna.data import download
from pna.data.download import ATTEMPTS, download_file

CONTENT = bytes(range(256)) * 4096  # a megabyte: several reads
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What to answer, in turn, and what was asked."""

    url: str
    answers: list[bytes | int] = field(default_factory=list)  # content, or a status
    length: int = len(CONTENT)  # what is promised
    asked: int = 0


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = held.answers[min(held.asked, len(held.answers) - 1)]
            held.asked += 1
            if isinstance(answer, int):
                self.send_error(answer)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(held.length))
            self.end_headers()
            self.wfile.write(answer)  # and hangs up, even if more was promised

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held = Server(f"http://127.0.0.1:{listening.server_address[1]}/file")
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield held
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.npz"


def get(server: Server, path: Path, **other: object) -> Path:
    expected = {"sha256": SHA256, "size": len(CONTENT)} | other
    return download_file(server.url, path, **expected)


def nothing_left(path: Path) -> bool:
    return not path.parent.exists() or list(path.parent.iterdir()) == []


def test_whole(server, path):
    server.answers = [CONTENT]
    told = []
    assert get(server, path, progress=lambda *done: told.append(done)) == path
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert told[-1] == (len(CONTENT), len(CONTENT)) and len(told) > 1
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_what_is_there_is_not_fetched_again(server, path):
    server.answers = [CONTENT]
    get(server, path)
    get(server, path)
    assert server.asked == 1


def test_what_is_damaged_is_fetched_again(server, path):
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1] + b"x")
    server.answers = [CONTENT]
    get(server, path)
    assert path.read_bytes() == CONTENT


def test_a_transfer_that_breaks_off_begins_again(server, path):
    server.answers = [CONTENT[:1000], CONTENT[:500_000], CONTENT]
    get(server, path)
    assert path.read_bytes() == CONTENT and server.asked == 3


def test_a_transfer_that_always_breaks_off(server, path):
    server.answers = [CONTENT[:1000]]
    with pytest.raises(ConnectionError, match=r"1,000 bytes.* 3 times.*check the network"):
        get(server, path)
    assert server.asked == ATTEMPTS and nothing_left(path)


def test_what_is_received_is_whole(server):
    server.answers = [CONTENT[:1000], CONTENT]
    assert download.download(server.url, len(CONTENT)) == CONTENT and server.asked == 2
    server.answers = [CONTENT[:1000]]
    with pytest.raises(ConnectionError, match=r"1,000 bytes and then nothing .* 3 times"):
        download.download(server.url, len(CONTENT))
    server.answers = [CONTENT]
    with pytest.raises(ValueError, match="more than 999 bytes"):
        download.download(server.url, 999)


def test_the_wrong_hash_is_thrown_away(server, path):
    server.answers = [CONTENT[:-1] + b"x"]
    with pytest.raises(ValueError, match=f"expected .* sha256 {SHA256}.*unopened"):
        get(server, path)
    assert server.asked == 1 and nothing_left(path)


def test_no_more_is_read_than_expected(server, path):
    server.answers, server.length = [CONTENT * 2], 2 * len(CONTENT)
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        get(server, path)
    assert nothing_left(path)


def test_a_failed_download_keeps_what_was_there(server, path):
    path.parent.mkdir()
    path.write_bytes(b"older")
    server.answers = [b"wrong".ljust(len(CONTENT))]
    with pytest.raises(ValueError, match="another file"):
        get(server, path)
    assert path.read_bytes() == b"older"


def test_no_such_file(server, path):
    server.answers = [404]
    with pytest.raises(FileNotFoundError, match=r"404.*check the address"):
        get(server, path)
    assert server.asked == 1 and nothing_left(path)


def test_a_server_that_is_busy_is_asked_again(server, path):
    server.answers = [503, 429, CONTENT]
    get(server, path)
    assert path.read_bytes() == CONTENT and server.asked == 3
    path.unlink()
    server.answers = [500]
    with pytest.raises(ConnectionError, match=r"the answer 500 .* 3 times"):
        get(server, path)


def test_no_network(path):
    with socket.socket() as unused:  # bound, so that nobody else listens there
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(ConnectionError, match=r"refused.*check the network"):
            download_file(url, path, sha256=SHA256, size=len(CONTENT))
    assert nothing_left(path)


def test_other_addresses_are_refused(path):
    with pytest.raises(ValueError, match="expected one that begins with https"):
        download_file("file:///etc/passwd", path, sha256=SHA256, size=1)


def test_what_is_no_address_is_named(path):
    with pytest.raises(
        ValueError, match=r"got the address http://\[::1, which is not valid .*check it"
    ):
        download_file("http://[::1", path, sha256=SHA256, size=1)


def test_leftovers_of_killed_downloads_go_once_they_are_old(server, path, monkeypatch):
    path.parent.mkdir()
    old, new = (path.with_name(f".{path.name}.{number}.tmp") for number in (1, 2))
    for leftover in (old, new):
        leftover.write_bytes(b"part")
    os.utime(old, (0, 0))
    server.answers = [CONTENT]
    get(server, path)
    assert not old.exists() and new.exists()


def test_a_silent_server_is_given_up(path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(ConnectionError, match="timed out"):
            download_file(url, path, sha256=SHA256, size=len(CONTENT))


def test_a_full_disk_is_not_taken_for_the_network(server, path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    server.answers = [CONTENT]
    monkeypatch.setattr("pna.files.os.fsync", full)
    with pytest.raises(OSError, match=rf"{path} \(No space left on device\); free some"):
        get(server, path)
    assert server.asked == 1 and nothing_left(path)
