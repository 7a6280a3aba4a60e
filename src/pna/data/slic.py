"""Superpixels of images, as scikit-image 0.15 computed them for the benchmark.

Later versions stretch the contrast before clustering, and derive the sizes of segments from the
number of seeds, not from the requested number. The arguments here undo both, so that the same
superpixels result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pna.data.images import Images
from pna.data.pool import ordered_map
from pna.data.sources import Arrays

_BLOCK = 256  # images that a worker segments at a time


@dataclass(frozen=True)
class Cut:
    """The largest number of segments, the first number that is requested, and the compactness."""

    most: int
    requested: int
    compactness: float


CUTS = {"mnist": Cut(75, 95, 0.25), "cifar10": Cut(150, 200, 10.0)}


def cut_all(images: Images, cut: Cut, workers: int = 1) -> Iterator[Arrays]:
    """Yield the superpixels of some hundred images at a time, in their order.

    Means over a superpixel are the quotient (_q) and remainder (_r) of integer sums.
    """
    check_images()
    starts = range(0, len(images.label), _BLOCK)
    blocks = [(images.pixels[start : start + _BLOCK], cut) for start in starts]
    for start, arrays in zip(starts, ordered_map(_cut_block, blocks, workers), strict=True):
        chosen = slice(start, start + _BLOCK)
        yield arrays | {"label": images.label[chosen], "split": images.split[chosen]}


def check_images() -> None:
    """Raise unless scikit-image is installed."""
    if find_spec("skimage") is None:
        raise ModuleNotFoundError(
            "got no skimage, needed for superpixels; pip install 'pna[images]'"
        )


def segments(image: NDArray[np.uint8], cut: Cut) -> NDArray[np.int64]:
    """The segment of every pixel, numbered from 0; (rows, columns, channels) to (rows, columns).

    The requested number decreases until there are at most ``cut.most`` segments.
    """
    from skimage.color import rgb2lab

    values: NDArray[Any] = (image / 255).astype(np.float32).astype(np.float64)
    values = rgb2lab(values) if image.shape[-1] == 3 else values
    requested, before, found = cut.requested, None, None
    while found is None or found.max() >= cut.most:
        settings = _SlicSettings.of(image.shape, requested)
        if settings != before:  # most requested numbers give the same segments
            found, before = _slic(values, requested, cut.compactness, settings), settings
        requested -= 1
    return found


@dataclass(frozen=True)
class _SlicSettings:
    """The settings that depend on the requested number of segments."""

    seeds: tuple[range, ...]  # rows and columns
    least: int  # smallest number of pixels of a segment
    most: int

    @classmethod
    def of(cls, shape: tuple[int, ...], requested: int) -> _SlicSettings:
        from skimage.util import regular_grid

        rows, columns, _ = shape
        grid = regular_grid((1, rows, columns), requested)
        seeds = tuple(range(*s.indices(n)) for s, n in zip(grid, (1, rows, columns), strict=True))
        pixels = rows * columns / requested
        return cls(seeds, int(0.5 * pixels), int(3 * pixels))


def _slic(
    values: NDArray[Any], requested: int, compactness: float, settings: _SlicSettings
) -> NDArray[np.int64]:
    from skimage.segmentation import slic

    contrast = float(values.max() - values.min()) or 1.0  # slic divides by it
    size = math.prod(values.shape[:2]) / math.prod(map(len, settings.seeds))
    found: NDArray[np.int64] = slic(
        values,
        n_segments=requested,
        compactness=compactness / contrast,
        convert2lab=False,
        min_size_factor=(settings.least + 0.5) / size,
        max_size_factor=(settings.most + 0.5) / size,
        start_label=0,
        channel_axis=-1,
    )
    return found


def _cut_block(block: tuple[NDArray[np.uint8], Cut]) -> Arrays:
    images, cut = block
    of_images = [_sums(image, segments(image, cut)) for image in images]
    sums = np.concatenate(of_images, 1)
    quotient, rest = np.divmod(sums[1:], sums[0])
    found = {"num_nodes": np.array([part.shape[1] for part in of_images]), "npix": sums[0]}
    for name, rows in (("row", 0), ("col", 1), ("val", slice(2, None))):
        found |= {f"{name}_q": quotient[rows], f"{name}_r": rest[rows]}
    return {name: array.astype(np.uint8) for name, array in found.items()}


def _sums(image: NDArray[np.uint8], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of pixels of every segment, and the sums of their rows, columns and values, (3 +
    channels, n)."""
    coordinates = np.indices(found.shape).reshape(2, -1)
    columns = [np.ones(found.size), *coordinates, *image.reshape(found.size, -1).T]
    return np.stack([np.bincount(found.ravel(), column) for column in columns]).astype(np.int64)
