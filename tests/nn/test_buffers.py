"""What modules made without memory hold once they are given it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pna.degree import DegreeStats
from pna.nn.architectures.stacked import Stacked
from pna.nn.augmentation import RandomFlip, RandomRotate, RandomScaleShift
from pna.nn.dropout import Dropout
from pna.nn.encoder import Embedding

WITH_CONSTANTS = {
    "embedding": lambda: Embedding([3, 0], 4, [(0.0, 1.0), (2.0, 3.0)]),
    "flip": lambda: RandomFlip([(1, 0.75)], 3),
    "rotate": lambda: RandomRotate(20.0, [(0, 0.5), (1, 0.5)], 3),
    "scale_shift": lambda: RandomScaleShift([([1, 2], 0.5, 0.1, 0.05)], 3),
}


def late(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        module = make()
    for buffer in module.buffers():
        assert buffer.is_meta
    return module.to_empty(device="cpu")


@pytest.mark.parametrize("make", WITH_CONSTANTS.values(), ids=WITH_CONSTANTS)
def test_constants_are_there_after_memory_is_given_late(make):
    expected, found = make(), late(make)
    for name, buffer in expected.named_buffers():
        if not name.endswith("seed"):  # drawn
            assert torch.equal(found.get_buffer(name), buffer), name


@pytest.mark.parametrize("make", WITH_CONSTANTS.values(), ids=WITH_CONSTANTS)
def test_constants_take_another_type_along(make):
    expected, found = make(), make().half()
    for name, buffer in expected.named_buffers():
        if not name.endswith("seed"):
            cast = buffer.half() if buffer.is_floating_point() else buffer
            assert found.get_buffer(name).dtype == cast.dtype
            assert torch.equal(found.get_buffer(name), cast), name


def test_memory_given_late_in_a_context_of_another_device():
    with torch.device("meta"):
        module = RandomFlip([(1, 0.75)], 3).to_empty(device="cpu")
    assert module.ends.tolist() == [0.0, 0.75, 0.0]


def test_dropout_given_memory_late_draws_a_seed_and_has_made_no_passes():
    torch.manual_seed(3)
    expected = Dropout(0.5)
    torch.manual_seed(3)
    found = late(lambda: Dropout(0.5))
    assert found.seed == expected.seed
    assert found.passes == 0


KINDS = {"node_values": [4, 0, 0], "edge_columns": 1, "edge_values": [3]}
SEEN = {"mirror": ((1, 1.0),), "vary": (([1, 2], 0.5, 0.1, 0.05),)}


@pytest.mark.parametrize("arguments", [KINDS, SEEN], ids=["kinds", "numbers"])
def test_a_model_given_memory_late_is_that_of_its_checkpoint(arguments):
    def make() -> Stacked:
        stats = DegreeStats.from_degrees([1, 2, 3])
        return Stacked("pna", 3, 8, 0, 1, deg=stats, dropout=0.3, **arguments)

    expected, found = make(), late(make)
    found.load_state_dict(expected.state_dict())
    with torch.device("meta"):
        assigned = make()
    assigned.load_state_dict(expected.state_dict(), assign=True)
    for name, buffer in expected.named_buffers():
        assert torch.equal(found.get_buffer(name), buffer), name
        assert torch.equal(assigned.get_buffer(name), buffer), name


def test_a_model_made_without_memory_is_sharded():
    """As FSDP has it: memory first, then every module with tensors of its own is reset."""
    with torch.device("meta"):
        model = Stacked("gin", 3, 8, 0, 1, dropout=0.3, **SEEN)
    for module in model.modules():
        if list(module.parameters(recurse=False)) or list(module.buffers(recurse=False)):
            module.to_empty(device="cpu", recurse=False)
            module.reset_parameters()
    assert model.get_submodule("mirror").ends.tolist() == [0.0, 1.0, 0.0]


def test_buffers_of_others_are_left_to_them():
    with torch.device("meta"):
        module = Embedding([3], 4)
        module.register_buffer("mask", torch.ones(3))
    assert module.to_empty(device="cpu").offsets.tolist() == [0]
