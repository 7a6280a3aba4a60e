from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from pna.bench import contenders, layer_cases, peers
from pna.bench.contenders import (
    BOTH,
    CONTENDERS,
    FORWARD,
    JAX,
    OURS,
    PYG,
    SCATTER,
    SPARSE,
    ContenderEntry,
    Setup,
    difference,
    left_out,
)
from pna.bench.layer import measure_case
from pna.bench.layer_cases import Case
from pna.bench.measure import Submitted, seconds_a_call

CPU = torch.device("cpu")
CASES = (
    Case("one tower", 40, 200, 8),
    Case("towers", 40, 200, 10, towers=5, edge_types=4),
    Case("fresh edges", 40, 200, 8, fresh=True),
    Case("nodes without edges", 40, 12, 8),
    Case("alone", 40, 200, 8, alone=True),
)
needs_pyg = pytest.mark.skipif(
    not layer_cases.has_pyg(), reason="needs PyG: pip install 'pna[pyg]'"
)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes a minute; what is compiled is tested elsewhere."""
    monkeypatch.setattr(torch, "compile", lambda layer, mode="default": layer)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("entry", CONTENDERS, ids=lambda entry: entry.name)
@pytest.mark.usefixtures("eager")
def test_every_contender_computes_our_layer(entry: ContenderEntry, case: Case) -> None:
    torch.manual_seed(0)
    setup = Setup.of(case, CPU)
    reason = entry.missing(CPU) or entry.unfit(case)
    if reason is not None:
        assert len(reason) > 20  # a sentence
        assert entry.name != OURS
        return
    contender = entry.make(setup)
    ours = CONTENDERS[0].make(setup).output_and_gradient()
    assert difference(contender.output_and_gradient(), ours) is None
    for work in (BOTH, FORWARD):
        step = contender.step(work)
        step()
        assert contender.peak_bytes(work) != 0
        assert seconds_a_call(step, CPU, 2) > 0


def test_names_are_unique() -> None:
    assert CONTENDERS[0].name == OURS  # with which others are compared
    assert len({entry.name for entry in CONTENDERS}) == len(CONTENDERS)


def test_peers_that_are_left_out_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (peers, contenders):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    lines = list(left_out("cpu"))
    assert "JAX segment operations is left out: JAX is not installed: pip install jax" in lines
    assert f"{SCATTER} is left out: PyG calls torch-scatter on a GPU only" in lines
    assert not any(line.startswith((SPARSE, OURS, "PyG, compiled")) for line in lines)
    on_gpu = list(left_out("cuda"))
    assert any("pip install torch-scatter" in line for line in on_gpu)
    assert any("pip install nvidia-cudnn-frontend" in line for line in on_gpu)
    (line,) = left_out("cpu", CASES[1])
    assert line.startswith("torch.sparse.mm is left out of towers: ")


@needs_pyg
def test_pyg_is_measured_without_torch_scatter_and_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyG reads the flag in every `scatter`: it is set for one contender and for no other."""
    from torch_geometric import typing
    from torch_geometric.nn.aggr import base

    seen: list[bool] = []
    scatter = base.scatter

    def watched(*arguments: Any, **named: Any) -> Tensor:
        seen.append(typing.WITH_TORCH_SCATTER)
        out: Tensor = scatter(*arguments, **named)
        return out

    monkeypatch.setattr(base, "scatter", watched)
    setup, table = Setup.of(CASES[0], CPU), {entry.name: entry for entry in CONTENDERS}
    for installed in (False, True):
        monkeypatch.setattr(typing, "WITH_TORCH_SCATTER", installed)
        for name, used in ((PYG, False), (SCATTER, True)):
            seen.clear()
            table[name].make(setup).step(BOTH)()
            assert seen and set(seen) == {used}
            assert typing.WITH_TORCH_SCATTER == installed


@needs_pyg
@pytest.mark.gpu
@pytest.mark.skipif(find_spec("torch_scatter") is None, reason="needs torch-scatter")
def test_torch_scatter_is_called_by_one_contender_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_scatter

    calls: list[str] = []
    scatter = torch_scatter.scatter

    def counted(*arguments: Any, **named: Any) -> Tensor:
        calls.append(named["reduce"])
        out: Tensor = scatter(*arguments, **named)
        return out

    monkeypatch.setattr(torch_scatter, "scatter", counted)
    setup = Setup.of(CASES[0], torch.device("cuda"))
    table = {entry.name: entry for entry in CONTENDERS}
    table[PYG].make(setup).step(BOTH)()
    assert calls == []
    table[SCATTER].make(setup).step(BOTH)()
    assert sorted(calls) == ["max", "min"]


@needs_pyg
def test_a_peer_with_other_results_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = peers.ReducedLayer.forward
    monkeypatch.setattr(peers.ReducedLayer, "forward", lambda *given: 1.001 * reduced(*given))
    rows = measure_case(CASES[0], "cpu", 0.01, False, True, lambda _: None, lambda _: None)
    found = {row.contender: row for row in rows if row.work == BOTH}
    assert found[SPARSE].ms is None
    assert "its output differs from ours by 1.0e-03" in str(found[SPARSE].note)
    assert found[OURS].ms is not None and found[PYG].ms is not None


def test_a_gradient_that_differs_is_found() -> None:
    x = torch.ones(4)
    assert difference((x, x), (x, x)) is None
    assert "gradient" in str(difference((x, 1.1 * x), (x, x)))
    assert "output" in str(difference((x * torch.nan, x), (x, x)))
    assert difference((1.05 * x, 1.1 * x), (x, x), "bfloat16") is None
    assert "output" in str(difference((1.2 * x, x), (x, x), "bfloat16"))


def test_work_that_torch_does_not_see_is_waited_for() -> None:
    done: list[str] = []
    call = Submitted(lambda: done.append("submitted"), lambda: done.append("waited"))
    seconds_a_call(call, "cpu", 2)
    assert done == ["submitted", "submitted", "waited"]


def test_recorded_layers_need_a_gpu() -> None:
    case = replace(CASES[0], compiled=True, recorded=True)
    names = [entry.name for entry in contenders.chosen(case, CPU, True, False)]
    assert not any("reduce-overhead" in name for name in names)
    assert "pna, compiled" in names
    assert JAX not in names


@needs_pyg
@pytest.mark.usefixtures("eager")
def test_recorded_layers_compute_our_layer_and_are_not_weighed() -> None:
    """The same code without a GPU, not compiled: it marks each call as the first of a step."""
    setup = Setup.of(CASES[0], CPU)
    expected = CONTENDERS[0].make(setup).output_and_gradient()
    for entry in CONTENDERS:
        if entry.when == "recorded":
            contender = entry.make(setup)
            assert difference(contender.output_and_gradient(), expected) is None
            assert contender.peak_bytes(BOTH) is None
