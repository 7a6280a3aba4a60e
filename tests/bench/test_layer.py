from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pna.bench import contenders, layer, layer_cases, measure
from pna.bench.contenders import BOTH, FORCES, FORWARD, OURS, OURS_COMPILED, PYG, PYG_COMPILED
from pna.bench.layer import measure_case
from pna.bench.layer_cases import SMALL, Case, LayerResult
from pna.nn import PNAConv

TINY = Case("tiny", 50, 400, 8)
needs_pyg = pytest.mark.skipif(
    not layer_cases.has_pyg(), reason="needs PyG: pip install 'pna[pyg]'"
)


def measured(case: Case, compiled: bool = False) -> list[LayerResult]:
    return measure_case(case, "cpu", 0.01, compiled, status=lambda _: None)


def kinds(rows: list[LayerResult]) -> list[tuple[str, str]]:
    return [(row.work, row.contender) for row in rows]


@pytest.mark.slow
@needs_pyg
@pytest.mark.parametrize("case", [c for c in SMALL if not c.alone and not c.errors])
def test_every_contender_is_timed_and_weighed(case: Case) -> None:
    rows = measured(case)
    works = [FORCES] if case.forces else [BOTH, FORWARD]
    assert kinds(rows) == [(work, name) for work in works for name in (OURS, PYG)]
    for row in rows:
        assert row.note is None
        assert None not in (row.ms, row.ms_low, row.ms_high, row.mib)
        assert (row.nodes, row.edges, row.towers) == (case.nodes, case.edges, case.towers)
    memory = {(row.work, row.contender): row.mib or 0 for row in rows}
    assert memory[works[-1], OURS] <= memory[works[0], OURS] < memory[works[0], PYG]


@pytest.mark.slow
@needs_pyg
def test_compiled_takes_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    rows = measured(replace(TINY, compiled=True), compiled=True)
    names = [name for work, name in kinds(rows) if work == FORWARD]
    assert names == [OURS, PYG, OURS_COMPILED, PYG_COMPILED]
    assert all(row.note is None and row.ms is not None for row in rows)


@needs_pyg
def test_where_pyg_cannot_run_a_row_says_so() -> None:
    ours, pyg = measured(replace(TINY, alone=True))
    assert (ours.contender, ours.note) == (OURS, None)
    assert (pyg.contender, pyg.ms) == (PYG, None)
    assert "not run: x_i and x_j of all edges side by side take" in str(pyg.note)


@needs_pyg
def test_errors_are_those_of_float32() -> None:
    rows = measured(replace(TINY, errors=True))
    assert kinds(rows) == [
        (f"error of {what}", name) for name in (OURS, PYG) for what in ("output", "gradient")
    ]
    for row in rows:
        assert row.error is not None
        assert 0 < row.error < 1e-4  # near-equal neighbours: PyG's variance cancels


def test_without_pyg_ours_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_cases, "find_spec", lambda name: None)
    rows = measured(TINY)
    assert kinds(rows) == [(BOTH, OURS), (FORWARD, OURS)]
    assert all(row.ms is not None for row in rows)
    assert measured(replace(TINY, errors=True)) == []


@needs_pyg
def test_one_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 95.37 GiB.")

    monkeypatch.setattr(contenders, "_call_pyg", fail)
    for row in measured(TINY):
        if row.contender == PYG:
            assert row.ms is None
            assert "out of memory. Tried to allocate 95.37 GiB" in str(row.note)
        else:
            assert row.ms is not None


@needs_pyg
def test_one_that_fails_while_taking_turns_is_timed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_if_many(calls: list[Any], *others: Any) -> Any:
        if len(calls) > 1:
            raise RuntimeError("no room for two")
        return time_calls(calls, *others)

    time_calls = measure.time_calls
    monkeypatch.setattr(measure, "time_calls", fail_if_many)
    assert all(row.ms is not None for row in measured(TINY))


def test_a_case_that_cannot_be_set_up_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr(layer_cases, "uniform_edges", fail)
    (row,) = measured(TINY)
    assert (row.contender, row.note) == ("all", "RuntimeError: no memory")


def test_little_memory_makes_small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "free_memory", lambda device: 2**20)
    messages: list[str] = []
    case = Case("wide", 1000, 16_000, 128, alone=True)  # ours: 13.8 MB
    rows = measure_case(case, "cpu", 0.01, False, status=lambda _: None, log=messages.append)
    assert (rows[0].nodes, rows[0].edges) == (31, 500)
    assert len(messages) == 1
    assert "1,000 nodes, 16,000 edges, F = 128 need about" in messages[0]
    assert "31 nodes, 500 edges" in messages[0]


def test_tf32_is_off_while_measuring_and_as_before_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    forward = PNAConv.forward

    def watched(*arguments: Any) -> Tensor:
        seen.add(torch.get_float32_matmul_precision())
        return forward(*arguments)

    monkeypatch.setattr(PNAConv, "forward", watched)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        measured(replace(TINY, alone=True))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == {"highest"}


def test_steps_leave_no_gradients() -> None:
    setup = contenders.Setup.of(SMALL[1], torch.device("cpu"))
    for entry in contenders.chosen(SMALL[1], torch.device("cpu"), False, True):
        contender = entry.make(setup)
        if not isinstance(contender, contenders.TorchContender):
            continue
        grads: list[bool] = []
        for leaf in contender.leaves:
            leaf.register_post_accumulate_grad_hook(lambda _, seen=grads: seen.append(True))
        contender.both()
        assert len(grads) >= len(contender.leaves)  # x, the table and every parameter had one
        assert all(leaf.grad is None for leaf in contender.leaves)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="got device 'meta', expected cpu or cuda"):
        layer_cases.cases("meta")
