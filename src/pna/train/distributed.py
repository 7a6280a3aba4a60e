"""One training on several processes, started by `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as distributed

from pna.population.all_reduce import all_reduce_sum, world_size


def device_of(requested: str | torch.device | None) -> torch.device:
    """The given device; by default a GPU if there is one."""
    return torch.device(requested or ("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the process group of `torchrun`, if it started this process."""
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
    """Wait until every process is here."""
    if world_size() > 1:
        distributed.barrier()


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether this is true in any process."""
    if world_size() == 1:
        return flag
    return bool(all_reduce_sum(torch.tensor(float(flag), device=device)))


def is_lost(error: Exception) -> bool:
    """Whether an error says that another process has ended or cannot be reached."""
    if world_size() == 1:
        return False
    of_torch = (distributed.DistBackendError, distributed.DistNetworkError)
    return isinstance(error, of_torch) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def is_first() -> bool:
    """Whether this process writes files and reports progress."""
    return world_size() == 1 or distributed.get_rank() == 0


def gathered(values: torch.Tensor) -> list[torch.Tensor]:
    """The values (count,) of every process, in the order of their ranks; counts may differ."""
    count = values.new_tensor([len(values)], dtype=torch.int64)
    counts = [torch.empty_like(count) for _ in range(world_size())]
    distributed.all_gather(counts, count)
    sizes = torch.cat(counts).tolist()
    padded = values.new_zeros(max(sizes))
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(found, padded)
    return [part[:size] for part, size in zip(found, sizes, strict=True)]
