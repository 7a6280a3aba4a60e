"""The kernels compile for a real GPU, with or without one here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = {
    "_statistics_rows_kernel",
    "_statistics_segments_kernel",
    "_statistics_merge_kernel",
    "_places_rows_kernel",
    "_places_segments_kernel",
    "_places_merge_kernel",
    "_centre_kernel",
    "_receiver_rows_kernel",
    "_linear_gradient_kernel",
    "_extremum_gradient_kernel",
    "_gradient_merge_kernel",
    "_message_gradient_kernel",
    "_degree_linear_kernel",
    "_degree_weight_kernel",
}


def test_every_kernel_compiles_for_a_gpu():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.compile_kernels"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in compiled} == KERNELS
    assert max(int(shared) for _, shared in compiled) <= 227 * 1024, "more than a GPU has to share"
