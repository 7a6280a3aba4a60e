from pathlib import Path

import pytest
import torch

from pna import doctor
from pna.doctor import diagnose
from pna.ops import cpu
from pna.ops.backend import availability
from pna.population import set2set_cpu


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


def test_a_library_of_another_version_says_how_to_rebuild_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks() -> dict[str, str | None]:
        return {backend.name: backend.lacks for backend in diagnose().backends}

    for module in doctor.CALLERS.values():
        monkeypatch.setattr(module, "built", True)
    monkeypatch.setattr(cpu, "unavailable", lambda: None)
    assert set(lacks().values()) == {None}
    monkeypatch.setattr(set2set_cpu, "built", False)
    found = lacks()
    assert found["cpu"] is not None and found["reference"] is None and found["triton"] is None
    assert "set2set.c" in found["cpu"]
    assert "pip install -e ." in found["cpu"]
    monkeypatch.setattr(cpu, "unavailable", lambda: "no compiler was found")
    assert lacks()["cpu"] is None  # there is a problem, which says more


def test_a_missing_launcher_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton runs on Linux only")
    from pna.ops.triton import driver

    monkeypatch.setattr(doctor, "interpreting", lambda: False)
    monkeypatch.setattr(doctor, "availability", lambda: {"triton": None})
    for is_there in (False, True):
        monkeypatch.setattr(driver, "is_available", lambda is_there=is_there: is_there)
        (backend,) = diagnose().backends
        assert (backend.lacks is None) == is_there
        assert is_there or "pip install -e ." in str(backend.lacks)


def test_all_callers_of_the_library_are_asked() -> None:
    sources = Path(doctor.__file__).parent.rglob("*.c")
    with_interface = {p.name for p in sources if "_interface(void)" in p.read_text()}
    assert with_interface == set(doctor.CALLERS)


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
