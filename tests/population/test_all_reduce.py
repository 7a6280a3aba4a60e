"""`all_reduce_sum` as torch sees it; `tests/train/test_distributed.py` runs it in two processes."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from pna.population.all_reduce import all_reduce_sum

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch without distributed")


@pytest.fixture
def one_process():
    """A group of this process alone, as `all_reduce_sum` would skip it."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_opcheck(one_process):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    torch.library.opcheck(torch.ops.pna.all_reduce_sum.default, (x,))


def test_alone_it_is_the_identity():
    x = torch.tensor([1.0, 2.0])
    assert all_reduce_sum(x) is x
