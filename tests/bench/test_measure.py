import time

import pytest
import torch
from torch import Tensor

from pna.bench.measure import peak_memory, time_call, time_calls

MEGABYTES = 1_000_000


def test_peak_counts_what_is_alive_at_once() -> None:
    def call() -> Tensor:
        first = torch.ones(MEGABYTES)  # 4 MB
        second = first + 1  # 8 MB with the first
        del first
        return second * 2  # 8 MB with the second

    assert peak_memory(call, "cpu") == pytest.approx(8 * MEGABYTES, rel=1e-3)


def test_peak_counts_temporaries_of_the_backward_pass_but_not_the_inputs() -> None:
    x = torch.randn(MEGABYTES, requires_grad=True)

    def call() -> Tensor:
        return torch.autograd.grad(x.exp().sum(), x)[0]  # exp is kept; its gradient is new

    assert peak_memory(call, "cpu") == pytest.approx(8 * MEGABYTES, rel=1e-3)


def test_peak_of_nothing_is_nothing() -> None:
    assert peak_memory(lambda: None, "cpu") == 0


def test_a_device_without_a_peak_is_refused() -> None:
    with pytest.raises(ValueError, match="got device 'meta', expected cpu or cuda"):
        peak_memory(lambda: None, "meta")


def test_timing_is_the_time_of_one_call() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    timing = time_call(call, "cpu", seconds=0.01)
    assert timing.low <= timing.median <= timing.high
    assert timing.samples >= 3
    assert calls > 100  # a call this short is timed many at a time


def test_a_slow_first_call_is_not_taken_for_the_time_of_all() -> None:
    """As where it compiles: others are still timed many at a time."""
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.05)

    timing = time_call(call, "cpu", seconds=0.01)
    assert calls > 100 * timing.samples


def test_a_call_that_takes_longer_than_asked_for_is_warmed_up_once() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.03)

    assert time_call(call, "cpu", seconds=0.01).samples == 3
    assert calls == 4


def test_calls_take_turns() -> None:
    log: list[str] = []
    spin = torch.randn(400, 400)

    def call(name: str) -> None:
        log.append(name)
        for _ in range(20):
            spin @ spin

    timings = time_calls([lambda: call("a"), lambda: call("b")], "cpu", seconds=0.01)
    turns = "".join(name for i, name in enumerate(log) if i == 0 or log[i - 1] != name)
    assert "ababab" in turns
    assert timings[0].samples == timings[1].samples
