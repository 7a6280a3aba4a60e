"""One training on many processes, as `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as distributed

from pna.population.all_reduce import processes, sum_of_all


def device_of(asked: str | torch.device | None) -> torch.device:
    """The device asked for; a GPU if there is one, if none is."""
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Work together, on devices of this kind, with the other processes that `torchrun` has
    started, if it has."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if gpu else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def wait_for_all() -> None:
    """Until every process has come here."""
    if processes() > 1:
        distributed.barrier()


def any_of_all(said: bool, device: torch.device) -> bool:
    """Whether any process says so."""
    return said if processes() == 1 else bool(sum_of_all(torch.tensor(float(said), device=device)))


def is_first() -> bool:
    """Whether this process writes files and tells of progress."""
    return not (distributed.is_available() and distributed.is_initialized()) or (
        distributed.get_rank() == 0
    )
