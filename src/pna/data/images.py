"""The images of MNIST and CIFAR10 from their public addresses, in plain formats."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pna.data.sources import PUBLIC, read
from pna.data.unpacking import gunzip

VALIDATION = 5_000  # first training images that validate, as in the benchmark


@dataclass(frozen=True)
class Images:
    """Images with their classes and splits: 0 train, 1 validation, 2 test."""

    pixels: NDArray[np.uint8]  # (images, rows, columns, channels)
    label: NDArray[np.uint8]
    split: NDArray[np.uint8]


def images(benchmark: str) -> Images:
    """All images of MNIST or CIFAR10, training images first, in their published order.

    They are downloaded into the cache, and opened only if their hash is right.
    """
    public = PUBLIC[benchmark]
    contents = [read(file, public.address) for file in public.files]
    (train, of_train), (test, of_test) = (
        _mnist(contents) if benchmark == "mnist" else _cifar10(contents[0])
    )
    split = np.full(len(of_train) + len(of_test), 2, np.uint8)
    split[: len(of_train)] = np.arange(len(of_train)) < VALIDATION
    return Images(np.concatenate([train, test]), np.concatenate([of_train, of_test]), split)


Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _mnist(packed: list[bytes]) -> list[Part]:
    names = [file.name for file in PUBLIC["mnist"].files]
    train, of_train, test, of_test = map(gunzip, names, packed)
    return [
        (np.frombuffer(part, np.uint8, offset=16).reshape(-1, 28, 28, 1),
         np.frombuffer(classes, np.uint8, offset=8))
        for part, classes in ((train, of_train), (test, of_test))
    ]  # fmt: skip


def _cifar10(packed: bytes) -> list[Part]:
    parts = []
    unpacked = gunzip(PUBLIC["cifar10"].files[0].name, packed)
    with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
        for names in ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]):
            files = [archive.extractfile(f"cifar-10-batches-bin/{name}") for name in names]
            content = b"".join(file.read() for file in files if file is not None)
            records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            colours = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts.append((np.ascontiguousarray(colours), records[:, 0]))
    return parts
