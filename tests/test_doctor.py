import pytest
import torch

from pna import doctor
from pna.doctor import diagnose
from pna.ops.backend import availability


def test_versions_are_those_installed() -> None:
    versions = {package.name: package.version for package in diagnose().packages}
    assert versions["torch"] == torch.__version__


def test_what_is_missing_says_what_for_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: None)
    packages = {package.name: package for package in diagnose().packages}
    assert packages["matplotlib"].version is None
    assert packages["matplotlib"].purpose == "figures"
    assert packages["torch-geometric"].install == "pip install 'pna[pyg]'"


def test_backends_are_those_of_the_operation() -> None:
    report = diagnose()
    assert {backend.name: backend.problem for backend in report.backends} == availability()
    assert report.backends[0] == doctor.Backend("reference", "any device", None)


def test_triton_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton runs on Linux only")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    report = diagnose()
    (triton,) = (backend for backend in report.backends if backend.name == "triton")
    assert report.gpus == ()
    assert triton.problem is not None
    assert "no CUDA device" in triton.problem
    assert "TRITON_INTERPRET=1" in triton.problem


def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor, total_memory = "a card", 9, 0, 2**37

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert diagnose().gpus == (doctor.Gpu("a card", "9.0", 2**37),) * 2
