"""Work in processes gives what it gives here."""

import os
import signal

import pytest

from pna.data.pool import ordered_map


def _square(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    if number == 99:
        os._exit(1)
    return number**2


@pytest.mark.parametrize("workers", [1, 3])
def test_results_are_in_order(workers):
    assert list(ordered_map(_square, range(10), workers)) == [n**2 for n in range(10)]


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_through(workers):
    with pytest.raises(ValueError, match="unlucky"):
        list(ordered_map(_square, [1, 13], workers))


def test_a_killed_worker_is_told():
    with pytest.raises(MemoryError, match="use fewer workers"):
        list(ordered_map(_square, [1, 99, 2], 2))


def _at_ctrl_c(_: int) -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def _process(_: int) -> int:
    return os.getpid()


def test_a_single_job_needs_no_other_process():
    assert list(ordered_map(_process, [1], 2)) == [os.getpid()]
    assert os.getpid() not in list(ordered_map(_process, [1, 2], 2))


def test_ctrl_c_is_for_whoever_waits():
    assert list(ordered_map(_at_ctrl_c, [1, 2], 2)) == [True, True]


def test_no_workers():
    with pytest.raises(ValueError, match="workers=0"):
        list(ordered_map(_square, [1], 0))
