"""Superpixels of made-up images: what is passed to scikit-image undoes what it changed."""

import numpy as np
import pytest
from scipy import ndimage

from pna.data import slic as module
from pna.data.images import Images
from pna.data.slic import CUTS, cut_all, segments

skimage = pytest.importorskip("skimage.segmentation", reason="cutting images needs pna[images]")


def image(seed, side, channels, low=0, high=255):
    """A smooth one, whose values go from `low` to `high`."""
    noise = np.random.default_rng(seed).random((side, side, channels))
    smooth = ndimage.gaussian_filter(noise, (3, 3, 0))
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return (low + smooth * (high - low)).round().astype(np.uint8)


@pytest.mark.parametrize("name, side, channels", [("mnist", 28, 1), ("cifar10", 32, 3)])
def test_no_more_segments_than_allowed_each_in_one_piece(name, side, channels):
    for seed in range(3):
        found = segments(image(seed, side, channels), CUTS[name])
        count = int(found.max()) + 1
        assert 40 <= count <= CUTS[name].most
        for place in range(count):
            assert ndimage.label(found == place)[1] == 1


def test_full_contrast_is_cut_as_it_is():
    picture = image(0, 28, 1)
    requested = 81  # a seed at every third pixel of 28, from the second: 9 × 9 seeds
    cut = module.Cut(most=1000, requested=requested, compactness=0.25)
    plain = skimage.slic(
        picture[..., 0] / 255,
        n_segments=requested,
        compactness=0.25,
        start_label=0,
        channel_axis=None,
    )
    assert np.array_equal(segments(picture, cut), plain)


def test_contrast_is_not_stretched():
    low, high = 40, 90
    picture = image(0, 28, 1, low, high)
    cut = module.Cut(most=1000, requested=81, compactness=0.25)
    stretched = skimage.slic(
        picture[..., 0] / 255, n_segments=81, compactness=0.25, start_label=0, channel_axis=None
    )
    rounder = skimage.slic(
        picture[..., 0] / 255,
        n_segments=81,
        compactness=0.25 * 255 / (high - low),
        start_label=0,
        channel_axis=None,
    )
    assert np.array_equal(segments(picture, cut), rounder)
    assert not np.array_equal(segments(picture, cut), stretched)


def test_an_image_of_one_colour():
    found = segments(np.full((28, 28, 1), 7, np.uint8), CUTS["mnist"])
    assert 1 <= int(found.max()) + 1 <= 75


@pytest.mark.parametrize("workers", [1, 2])
def test_sums_are_whole(monkeypatch, workers):
    monkeypatch.setattr(module, "_BLOCK", 2)
    pictures = np.stack([image(seed, 32, 3) for seed in range(3)])
    label, split = np.array([5, 6, 7], np.uint8), np.array([1, 0, 2], np.uint8)
    parts = list(cut_all(Images(pictures, label, split), CUTS["cifar10"], workers))
    assert [part["label"].tolist() for part in parts] == [[5, 6], [7]]
    assert [part["split"].tolist() for part in parts] == [[1, 0], [2]]
    (nodes,) = parts[1]["num_nodes"].tolist()
    found = segments(pictures[2], CUTS["cifar10"])
    assert nodes == found.max() + 1
    pixels = parts[1]["npix"].astype(float)
    assert pixels.sum() == 32 * 32
    for place in range(nodes):
        rows, columns = np.nonzero(found == place)
        for name, expected in (("row", rows.mean()), ("col", columns.mean())):
            mean = parts[1][f"{name}_q"][place] + parts[1][f"{name}_r"][place] / pixels[place]
            assert mean == pytest.approx(expected, abs=1e-12)
        mean = parts[1]["val_q"][:, place] + parts[1]["val_r"][:, place] / pixels[place]
        assert mean.tolist() == pytest.approx(pictures[2][rows, columns].mean(0).tolist())


def test_without_scikit_image(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pna\[images\]'"):
        next(cut_all(Images(*[np.zeros(0, np.uint8)] * 3), CUTS["mnist"]))
