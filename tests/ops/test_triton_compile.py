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
    "_argmax_rows_kernel",
    "_argmax_segments_kernel",
    "_argmax_merge_kernel",
    "_receiver_rows_kernel",
    "_segment_deviations_kernel",
    "_long_rows_kernel",
    "_linear_gradient_kernel",
    "_extremum_gradient_kernel",
    "_message_gradient_kernel",
    "_weight_gradient_kernel",
    "_kind_gradient_kernel",
    "_attention_kernel",
    "_attention_merge_kernel",
    "_attention_receivers_kernel",
    "_attention_senders_kernel",
    "_attention_senders_merge_kernel",
    "_gates_kernel",
    "_gates_receivers_kernel",
    "_gates_senders_kernel",
    "_neighbour_sum_kernel",
    "_degree_linear_kernel",
    "_wide_linear_kernel",
    "_degree_spread_kernel",
    "_degree_weight_kernel",
    "_shift_gradient_kernel",
    "_apart_kernel",
    "_combine_kernel",
    "_narrow_linear_kernel",
    "_narrow_input_kernel",
    "_narrow_weight_kernel",
    "_linears_kernel",
    "_linears_input_kernel",
    "_linears_weight_kernel",
    "add_up_kernel",
    "_column_sums_kernel",
    "_add_segments_kernel",
    "_gru_kernel",
    "_gru_backward_kernel",
    "_set2set_forward_kernel",
    "_set2set_backward_kernel",
    "_batch_norm_moments_kernel",
    "_batch_norm_kernel",
    "_batch_norm_sums_kernel",
    "_batch_norm_gradient_kernel",
    "_dropout_kernel",
    "_factors_kernel",
    "_rank_edges_kernel",
    "_rank_rows_kernel",
    "_read_edges_kernel",
    "_slots_kernel",
    "_transpose_kernel",
    "_row_keys_kernel",
    "_cut_rows_kernel",
    "_graphs_kernel",
    "_nodes_kernel",
    "_edges_kernel",
    "_rank_kernel",
    "_adam_finite_kernel",
    "_adam_kernel",
    "_inputs_kernel",
    "_gradients_kernel",
    "_senders_kernel",
    "_rows_kernel",
    "_weights_kernel",
}


#: Of kernels whose widths are even, but not multiples of sixteen: how many numbers they move at a
#: time.
AT_A_TIME = {
    "_statistics_rows_kernel": 4,
    "_argmax_rows_kernel": 4,
    "_receiver_rows_kernel": 4,
    "_linear_gradient_kernel": 4,
    "_gates_kernel": 4,
    "_gates_receivers_kernel": 4,
    "_gates_senders_kernel": 4,
    "_neighbour_sum_kernel": 4,
    "_batch_norm_moments_kernel": 4,
    "_batch_norm_kernel": 4,
    "_batch_norm_sums_kernel": 4,
    "_batch_norm_gradient_kernel": 4,
    "_linears_kernel": 2,
    "_linears_input_kernel": 2,
    "_narrow_linear_kernel": 2,
    "_narrow_input_kernel": 2,
    "_narrow_weight_kernel": 2,
    "_wide_linear_kernel": 2,
    "_degree_weight_kernel": 2,
}


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(request):
    """Checks each kernel for every type and constant it is used with: 200 programs. The one of the
    largest tiles and those of even widths are compiled to the end, half a second each; with
    `--every-case`, all are. They are not optimised as they are assembled. Of even widths, several
    numbers are moved at a time."""
    every = ["--every"] if request.config.getoption("every_case") else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.compile_kernels", *every],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "0", "DISABLE_PTXAS_OPT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in compiled} == KERNELS
    assert max(int(shared) for _, shared, *_ in compiled) <= 227 * 1024, (
        "more than a GPU has to share"
    )
    found = {name: int(most) for name, _, most, widths in compiled if widths == "even"}
    assert {name: found[name] for name in AT_A_TIME} == AT_A_TIME
