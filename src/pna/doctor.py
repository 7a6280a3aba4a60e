"""What this machine can run, and the reasons for what it cannot."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from pna.machine import cpu_model, version
from pna.ops import small_cpu
from pna.ops.backend import availability, interpreting
from pna.population import adam_cpu, set2set_cpu


@dataclass(frozen=True)
class Package:
    """A library that pna uses; `version` is None if it is not installed."""

    name: str
    version: str | None
    purpose: str
    install: str


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: compute capability such as "9.0", and its memory in bytes."""

    name: str
    capability: str
    memory: int


@dataclass(frozen=True)
class Backend:
    """An implementation of `pna.aggregate`. `problem` is the reason why it cannot run, or None;
    `lacks` names the parts that cannot."""

    name: str
    hardware: str
    problem: str | None
    lacks: str | None = None


@dataclass(frozen=True)
class Diagnosis:
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


# Distribution, its purpose, and the command to install it.
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
    ("onnxscript", "models as ONNX files", "pip install 'pna[onnx]'"),
    ("ogb", "features of atoms and bonds for MolHIV", "pip install 'pna[chem]'"),
)
HARDWARE = {"reference": "any device", "cpu": "CPU", "triton": "CUDA GPU"}

# Files that an older C library may lack, and the modules that call them.
CALLERS = {"adam.c": adam_cpu, "set2set.c": set2set_cpu, "small.c": small_cpu}

_REBUILD = (
    "the C library was built from another version of pna, or not at all; reinstall pna (in a "
    "checkout: pip install -e .)"
)


def diagnose() -> Diagnosis:
    """Inspect this machine."""
    return Diagnosis(
        pna=version("pna"),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu_model(),
        threads=torch.get_num_threads(),
        packages=tuple(Package(name, version(name), *rest) for name, *rest in PACKAGES),
        gpus=tuple(_gpu(i) for i in range(torch.cuda.device_count())),
        mps=torch.backends.mps.is_available(),
        backends=tuple(
            Backend(name, HARDWARE[name], problem, _lacks(name, problem))
            for name, problem in availability().items()
        ),
    )


def _lacks(backend: str, problem: str | None) -> str | None:
    """The parts of the C library that torch or Triton replaces, and the remedy."""
    if problem is not None:
        return None
    missing = [file for file, caller in CALLERS.items() if not caller.built]
    if backend == "cpu" and missing:
        return f"torch replaces {', '.join(missing)}, which is slower: {_REBUILD}"
    if backend == "triton" and not interpreting():
        from pna.ops.triton import driver

        if not driver.is_available():
            return f"Triton launches kernels, so that the first calls take longer: {_REBUILD}"
    return None


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, f"{properties.major}.{properties.minor}", properties.total_memory)
