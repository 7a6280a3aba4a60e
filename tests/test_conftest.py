"""Which tests `make test-gpu` runs: those marked `gpu`, by hand or for their fixtures."""

from pathlib import Path

import pytest

from tests.conftest import _FIRST


def is_marked(request):
    return request.node.get_closest_marker("gpu") is not None


def test_on_the_device(device, request):
    assert is_marked(request)


def test_on_every_backend_but_the_processor(backend, request):
    assert is_marked(request) == (backend.name != "cpu")


def test_elsewhere(request):
    assert not is_marked(request)


@pytest.mark.gpu
def test_only_where_there_is_a_gpu(device):
    assert device.type == "cuda"


def test_the_files_that_come_first_exist():
    assert {path.name for path in Path(__file__).parent.rglob("test_*.py")} >= _FIRST
