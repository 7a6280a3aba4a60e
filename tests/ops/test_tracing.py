"""Inductor sees the Triton kernels inside the operators, with or without a GPU here."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton")
from pna import fast_paths
from pna.ops.operators import OPERATORS, SOURCE
from pna.ops.request import Request
from pna.ops.tracing import divisor, is_tracing, likely, tracing
from pna.ops.triton.launch import std_constants
from pna.torch_internals import kernels_of_operators

#: The cases of `trace_operators`, each with a kernel of its own. A compilation takes seconds.
CASES = {
    "small layer of an Adjacency": "_senders_kernel",
    "layer": "_degree_linear_kernel",
    "narrow": "_narrow_linear_kernel",
    "one scaler": "_combine_kernel",
    "statistics": "_statistics_merge_kernel",
    "dense edge features": "_message_gradient_kernel",
    "few edge types": "add_up_kernel",
    "some edge types": "_kind_gradient_kernel",
    "basis of edge features": "add_up_kernel",
    "coefficients": "_message_gradient_kernel",
    "edge weights": "_weight_gradient_kernel",
    "products with edge types": "_add_segments_kernel",
    "edges": "_statistics_rows_kernel",
    "attention": "_attention_senders_merge_kernel",
    "gates": "_gates_senders_kernel",
    "neighbour sum": "_neighbour_sum_kernel",
    "linears": "_linears_kernel",
    "gru": "_gru_backward_kernel",
    "batch norm": "_batch_norm_gradient_kernel",
    "dropout": "_dropout_kernel",
    "set2set": "_set2set_backward_kernel",
}


def traced(*names):
    """The kernels in the graph of each case, whose checks have passed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.trace_operators", *names],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "assuming every input is mutated" not in done.stderr
    lines = [line.split(": ") for line in done.stdout.splitlines()]
    return {name: set(found.split()) for name, found in lines}


@pytest.mark.slow
def test_graphs_have_kernels_instead_of_operators():
    """Forward and backward; no index is taken for an output, and no guard fails for other sizes.
    Torch takes seconds for each graph."""
    found = traced(*CASES)
    assert {name: CASES[name] in found[name] for name in CASES} == dict.fromkeys(CASES, True)


def test_the_interpreter_is_not_traced(device):
    """Compiled code calls the operators as a whole there, as it does on a CPU."""
    if device.type == "cuda":
        pytest.skip("there is a GPU")
    from pna import Adjacency, aggregate, backend

    x, edges = torch.randn(3, 2), torch.tensor([[0, 1], [1, 2]])
    graph = Adjacency.from_edge_index(edges, 3)
    compiled = torch.compile(lambda x: aggregate(x, graph, ["mean"]), backend="aot_eager")
    for name in ("cpu", "triton"):
        with backend(name):
            torch.testing.assert_close(compiled(x), aggregate(x, graph, ["mean"]))


def test_tracing_is_seen_inside_only():
    with tracing():
        assert is_tracing()
    assert not is_tracing()


def test_sizes_are_chosen_by_without_a_guard():
    seen = []

    def look(x):
        rows, columns = x.shape
        int(columns)  # a guard, so it is known from now on
        seen.append((likely(rows), likely(7), divisor(rows), divisor(columns), divisor(7)))
        seen.append(len(rows.node.shape_env.guards))
        return x + 1

    make_fx(look, tracing_mode="symbolic")(torch.ones(30, 20))
    assert seen == [(30, 7, 1, 20, 7), 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3, 0.3, 2.0])
def test_constants_are_rounded_as_torch_does(dtype, epsilon):
    least = torch.tensor(math.sqrt(epsilon), dtype=torch.float64).to(dtype).double()
    above = (least * (1 + 0.75 * torch.finfo(dtype).eps)).to(dtype)
    found = std_constants(Request(("std",), epsilon, False), dtype)
    assert found == {"EPSILON": epsilon, "LEAST": float(least), "NEXT": float(above)}


def test_the_cache_on_disk_knows_the_source_and_the_fast_paths():
    """Otherwise an upgrade of this package would run the kernels of the version before."""
    opaque = {"recurrence", "recurrence_backward", "all_reduce_sum", "segment_reduce"}
    opaque |= {"segment_spread"}
    for name in OPERATORS:
        assert (SOURCE in kernels_of_operators.get(f"pna::{name}", [])) == (name not in opaque)
    source = SOURCE.src
    with fast_paths.without("degree_linear"):
        assert SOURCE.src != source
    assert SOURCE.src == source
