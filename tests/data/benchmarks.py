"""What tests of the real benchmarks share: where their files are, and a server for others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest


def data_folder() -> Path:
    """The folder PNA_DATA names; the test is skipped, saying so, where there is none."""
    folder = os.environ.get("PNA_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("PNA_DATA names no folder with the benchmarks' files")
    return Path(folder)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a folder, while it lasts."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
