"""What tests of the real benchmarks share: where their files are, and a server for others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from pna.data.sources import SOURCES


def data_folder(*files: str) -> Path:
    """The folder PNA_DATA names; the test is skipped, saying so, where it does not have these."""
    folder = Path(os.environ.get("PNA_DATA") or "no folder")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"PNA_DATA names no folder with {', '.join(missing)}")
    return folder


def folder_of(source: str) -> Path:
    """The same for all files of a benchmark."""
    return data_folder(*(file.name for file in SOURCES[source].files))


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
