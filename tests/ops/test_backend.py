"""Which implementation runs: by device, or by choice."""

import pytest
import torch

from pna.ops import backend as module
from pna.ops import cpu
from pna.ops.backend import availability, backend, choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NO_COMPILER = "no compiler was found"


@pytest.fixture
def machine(monkeypatch):
    """A machine that has, or has not, a GPU, Triton, its interpreter, and the C kernel."""

    def build(gpu=False, triton=True, interpreter=False, kernel=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreter else "0")
        monkeypatch.setattr(cpu, "unavailable", lambda: None if kernel else NO_COMPILER)
        monkeypatch.setattr(module, "_TRITON_FOUND", triton)

    return build


# What a machine can run


@pytest.mark.parametrize(
    ("has", "cannot"),
    [
        (dict(gpu=True), {}),
        (dict(interpreter=True), {}),
        (dict(gpu=True, triton=False), {"triton": "Triton is not installed"}),
        (dict(interpreter=True, triton=False), {"triton": "Triton is not installed"}),
        (dict(), {"triton": "no CUDA device (TRITON_INTERPRET=1"}),
        (dict(gpu=True, kernel=False), {"cpu": NO_COMPILER}),
        (dict(kernel=False), {"cpu": NO_COMPILER, "triton": "no CUDA device"}),
    ],
    ids=str,
)
def test_availability_says_why_not(machine, has, cannot):
    machine(**has)
    available = availability()
    assert list(available) == ["reference", "cpu", "triton"]
    assert {name for name, reason in available.items() if reason is not None} == set(cannot)
    for name, reason in cannot.items():
        assert reason in available[name]


# By device


@pytest.mark.parametrize(
    ("device", "has", "expected"),
    [
        ("cpu", dict(), "cpu"),
        ("cpu", dict(kernel=False), "reference"),
        ("cpu", dict(interpreter=True, kernel=False), "reference"),  # never unasked: it is slow
        ("cuda", dict(gpu=True), "triton"),
        ("cuda:1", dict(gpu=True), "triton"),
        ("cuda", dict(gpu=True, triton=False), "reference"),
        ("mps", dict(), "reference"),
        ("meta", dict(), "reference"),
    ],
)
def test_choice_by_device(machine, device, has, expected):
    machine(**has)
    assert choose(torch.device(device)) == expected


# By the user


def test_context_managers_nest_and_restore(machine):
    machine()
    assert choose(CPU) == "cpu"
    with backend("reference"):
        assert choose(CPU) == "reference"
        assert choose(CUDA) == "reference"
        with backend("cpu"):
            assert choose(CPU) == "cpu"
            with backend("reference"):
                assert choose(CPU) == "reference"
            assert choose(CPU) == "cpu"
        assert choose(CPU) == "reference"
    assert choose(CPU) == "cpu"


def test_choice_is_restored_after_an_exception(machine):
    machine()
    with pytest.raises(ZeroDivisionError), backend("reference"), backend("cpu"):
        raise ZeroDivisionError
    assert choose(CPU) == "cpu"
    assert choose(torch.device("meta")) == "reference"


def test_refused_choice_changes_nothing(machine):
    machine(kernel=False)
    with backend("reference"):
        with pytest.raises(RuntimeError), backend("cpu"):
            pass
        with pytest.raises(ValueError), backend("cuda"):
            pass
        assert choose(CPU) == "reference"
    assert module._chosen is None


@pytest.mark.parametrize(
    ("name", "has", "reason"),
    [
        ("cpu", dict(kernel=False), NO_COMPILER),
        ("triton", dict(), "there is no CUDA device"),
        ("triton", dict(gpu=True, triton=False), "Triton is not installed"),
    ],
)
def test_backend_that_cannot_run_says_why(machine, name, has, reason):
    machine(**has)
    message = f"got backend '{name}', which cannot run here: .*{reason}"
    with pytest.raises(RuntimeError, match=message), backend(name):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tritn", "unknown backend 'tritn'; did you mean 'triton'"),
        ("Reference", "unknown backend 'Reference'; did you mean 'reference'"),
        ("cuda", "unknown backend 'cuda'. Known: reference, cpu, triton"),
    ],
)
def test_unknown_backend(name, message):
    with pytest.raises(ValueError, match=message), backend(name):
        pass


@pytest.mark.parametrize(
    ("name", "has", "device"),
    [
        ("triton", dict(gpu=True), "cuda"),
        ("triton", dict(interpreter=True), "cpu"),
        ("cpu", dict(), "meta"),  # where there is nothing to read
        ("reference", dict(), "mps"),
    ],
)
def test_backend_chosen_for_tensors_that_it_can_read(machine, name, has, device):
    machine(**has)
    with backend(name):
        assert choose(torch.device(device)) == name


@pytest.mark.parametrize(
    ("name", "has", "device"),
    [
        ("cpu", dict(gpu=True), "cuda"),  # the C kernel would read addresses of the GPU
        ("cpu", dict(), "mps"),
        ("triton", dict(gpu=True), "cpu"),
    ],
)
def test_backend_chosen_for_tensors_that_it_cannot_read(machine, name, has, device):
    machine(**has)
    message = f"tensors on {device} and backend '{name}', .* choose 'reference'"
    with backend(name), pytest.raises(ValueError, match=message):
        choose(torch.device(device))


# Compiled


def by_choice(x):
    return x + 1 if choose(x.device) == "reference" else x - 1


def test_compiled_code_follows_the_choice(monkeypatch):
    monkeypatch.setattr(cpu, "unavailable", lambda: None)
    compiled, x = torch.compile(by_choice, fullgraph=True, backend="eager"), torch.zeros(1)
    assert compiled(x).item() == -1
    with backend("reference"):
        assert compiled(x).item() == 1
    assert compiled(x).item() == -1


def test_choice_made_inside_compiled_code(monkeypatch):
    monkeypatch.setattr(cpu, "unavailable", lambda: None)

    @torch.compile(fullgraph=True, backend="eager")
    def function(x):
        with backend("reference"):
            inside = by_choice(x)
        return inside, by_choice(x)

    inside, after = function(torch.zeros(1))
    assert (inside.item(), after.item()) == (1, -1)
    assert choose(CPU) == "cpu"
