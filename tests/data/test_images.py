"""Published images, from archives made here in their formats."""

import gzip
import io
import tarfile

import numpy as np
import pytest

from pna.data import images as module
from pna.data.images import images
from pna.data.sources import PUBLIC


@pytest.fixture
def published(monkeypatch):
    """Puts content in the place of the published files, by their names."""
    held: dict[str, bytes] = {}
    monkeypatch.setattr(module, "read", lambda file, where: held[file.name])
    monkeypatch.setattr(module, "VALIDATION", 1)
    return held


def idx(array, magic):
    header = np.array([magic, *array.shape], ">i4").tobytes()
    return gzip.compress(header + array.tobytes())


def test_mnist(published):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    label = np.array([3, 1, 4, 1, 5], np.uint8)
    for name, chosen in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        published[f"mnist/{name}-images-idx3-ubyte.gz"] = idx(pixels[chosen], 2051)
        published[f"mnist/{name}-labels-idx1-ubyte.gz"] = idx(label[chosen], 2049)
    found = images("mnist")
    assert np.array_equal(found.pixels[..., 0], pixels) and found.pixels.shape[-1] == 1
    assert found.label.tolist() == [3, 1, 4, 1, 5]
    assert found.split.tolist() == [1, 0, 0, 2, 2]


def test_cifar10(published):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 32, 32, 3)).astype(np.uint8)
    label = np.arange(12, dtype=np.uint8)
    packed = io.BytesIO()
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for place in (5, 3, 0, 1, 2, 4):  # in any order
            chosen = slice(2 * place, 2 * place + 2)
            planes = pixels[chosen].transpose(0, 3, 1, 2).reshape(2, -1)
            content = np.concatenate([label[chosen, None], planes], 1).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{names[place]}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    published["cifar-10-binary.tar.gz"] = packed.getvalue()
    found = images("cifar10")
    assert np.array_equal(found.pixels, pixels) and found.label.tolist() == list(range(12))
    assert found.split.tolist() == [1] + [0] * 9 + [2, 2]


@pytest.mark.parametrize("name", PUBLIC)
def test_addresses_are_safe(name):
    assert PUBLIC[name].address.startswith("https://")
    assert all(len(file.sha256) == 64 and file.size > 0 for file in PUBLIC[name].files)
