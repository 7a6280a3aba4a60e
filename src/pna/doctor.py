"""What this machine can run, and why not where it cannot."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from pna.machine import cpu_model, version
from pna.ops.backend import availability


@dataclass(frozen=True)
class Package:
    """An installed library, or one that is missed: then `version` is None."""

    name: str
    version: str | None
    purpose: str
    install: str


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: compute capability such as "9.0", and all its memory in bytes."""

    name: str
    capability: str
    memory: int


@dataclass(frozen=True)
class Backend:
    """An implementation of `pna.aggregate`; `problem` is None where it runs here."""

    name: str
    hardware: str
    problem: str | None


@dataclass(frozen=True)
class Report:
    """Everything `pna doctor` prints."""

    pna: str | None
    python: str
    platform: str
    cpu: str
    threads: int
    packages: tuple[Package, ...]
    gpus: tuple[Gpu, ...]
    mps: bool
    backends: tuple[Backend, ...]


# Distribution, what it is for, what to type where it is missing.
PACKAGES = (
    ("torch", "everything", "pip install torch"),
    ("numpy", "arrays in and out", "pip install numpy"),
    ("scipy", "graph algorithms", "pip install scipy"),
    ("safetensors", "files without pickle", "pip install safetensors"),
    ("triton", "kernels on a GPU (Linux)", "pip install triton"),
    ("torch-geometric", "its Data objects, and comparison with it", "pip install 'pna[pyg]'"),
    ("matplotlib", "figures", "pip install 'pna[plot]'"),
    ("rdkit", "molecules from SMILES", "pip install 'pna[chem]'"),
    ("scikit-image", "superpixels from images", "pip install 'pna[images]'"),
    ("ogb", "features of atoms and bonds for MolHIV", "pip install 'pna[chem]'"),
)
HARDWARE = {"reference": "any device", "cpu": "CPU", "triton": "CUDA GPU"}


def diagnose() -> Report:
    """Look at this machine."""
    return Report(
        pna=version("pna"),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu_model(),
        threads=torch.get_num_threads(),
        packages=tuple(Package(name, version(name), *rest) for name, *rest in PACKAGES),
        gpus=tuple(_gpu(i) for i in range(torch.cuda.device_count())),
        mps=torch.backends.mps.is_available(),
        backends=tuple(
            Backend(name, HARDWARE[name], problem) for name, problem in availability().items()
        ),
    )


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, f"{properties.major}.{properties.minor}", properties.total_memory)
