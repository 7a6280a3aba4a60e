"""The machine of a measurement: hardware, versions and commit."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import torch


def machine() -> dict[str, str | int | None]:
    """A flat row for a table of results; None for what this machine does not have."""
    return {
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "triton": version("triton"),
        "torch_geometric": version("torch-geometric"),
        "pna": version("pna"),
        "commit": commit(),
    }


def command() -> str:
    """The command line of this process, without the folder of the program."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return " ".join([name, *map(shlex.quote, sys.argv[1:])])


def free_memory(device: torch.device) -> int:
    """Bytes that a process can still allocate on a GPU, or on a CPU within the limit of its
    container; half of what a machine has if it does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    available = _field(_text("/proc/meminfo"), "MemAvailable")
    free = half if available is None else int(available.split()[0]) * 1024
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit is None or used is None or not limit.strip().isdigit():
        return free
    files = re.search(r"^inactive_file (\d+)$", _text("/sys/fs/cgroup/memory.stat") or "", re.M)
    reclaimable = int(files.group(1)) if files else 0
    return max(min(free, int(limit) - int(used) + reclaimable), 0)


def version(distribution: str) -> str | None:
    """Version of an installed distribution, by its name on a package index."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Name of the processor, such as "Neoverse-N1", or else its architecture."""
    if platform.system() == "Darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        name = _field(_output("lscpu"), "Model name")
        name = name or _field(_text("/proc/cpuinfo"), "model name")
    return name or platform.processor() or platform.machine()


def commit() -> str | None:
    """Commit of the checkout of this package, with "-dirty" if it has changes; else None.

    `PNA_COMMIT` is the commit of files that were copied without their history.
    """
    if named := os.environ.get("PNA_COMMIT"):
        return named
    folder = Path(__file__).parent
    # An installed copy may be inside the repository of another project.
    if _output("git", "-C", str(folder), "ls-files", Path(__file__).name) is None:
        return None
    return _output("git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*")


def _text(path: str) -> str | None:
    """The contents of a file of the system; None if there is none."""
    return Path(path).read_text() if Path(path).exists() else None


def _field(text: str | None, key: str) -> str | None:
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


@cache
def _output(*command: str) -> str | None:
    """The output of a program, or None if it is missing, fails or prints nothing.

    Each program runs once per process: modules are imported once, so later commits do not change
    the code that runs.
    """
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None
