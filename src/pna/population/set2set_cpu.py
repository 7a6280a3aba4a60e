"""Set2Set on a CPU: set2set.c, called through ctypes on Python threads.

Widths that are too large, or not a multiple of the vector width, use the definition in plain torch.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops import cpu

#: Graphs per chunk in set2set.c, the largest width, and the number that must divide the width.
_CHUNK, _WIDEST, _LANES = 64, 64, 8

_NUMBERS = ("is_double", "nodes", "graphs", "members", "width")
_POINTERS = (
    *("indptr", "steps", "x", "weight", "bias", "out", "z", "cells", "shares", "slopes"),
    *("grad", "grad_x", "partial"),
)


_Problem = cpu.structure(_NUMBERS, _POINTERS)  # `struct set2set` of set2set.c
_kernel = cpu.kernel("set2set", _Problem, 3, interface=1)
built = _kernel is not None


class Set2SetInputs(NamedTuple):
    """Inputs: the nodes of every graph, its number of steps, and the parameters of the LSTM."""

    x: Tensor  # (nodes, members, H)
    indptr: Tensor  # (graphs + 1,)
    steps: Tensor  # (graphs,)
    weight: Tensor  # (members, 4H, 2H)
    bias: Tensor  # (members, 4H)


class Set2SetResults(NamedTuple):
    """The result, and what the backward pass reads. Entries for steps that a graph does not take
    are unspecified."""

    out: Tensor  # (graphs, members, 2H)
    z: Tensor  # (steps, members, graphs, 2H)
    cells: Tensor  # (steps, members, graphs, 5, H): σ(i), σ(f), tanh(g), σ(o) and c
    norms: Tensor  # (steps, members, graphs, 2): largest score, sum of exponentials; none on a CPU


def takes(x: Tensor) -> bool:
    """Return whether set2set.c supports these nodes and is enabled."""
    return built and _fits(x) and fast_paths.is_on("set2set_cpu")


def _fits(x: Tensor) -> bool:
    known = x.dtype in (torch.float32, torch.float64)
    return known and x.shape[2] <= _WIDEST and x.shape[2] % _LANES == 0


def check(indptr: Tensor, steps: Tensor, nodes: int, max_steps: int) -> None:
    """Raise if indptr does not match the nodes, or if steps exceed max_steps.

    Without graphs nothing is checked.
    """
    if steps.numel() == 0:
        return
    if int(indptr[-1]) != nodes:
        raise ValueError(
            f"got graphs of {int(indptr[-1])} nodes in all, expected {nodes}, as many as x has"
        )
    if int(steps.max()) > max_steps:
        raise ValueError(
            f"got a graph that takes {int(steps.max())} steps, expected at most {max_steps}; "
            "correct max_steps (max_size of Set2Set)"
        )


def forward(graphs: Set2SetInputs, saved: Set2SetResults) -> None:
    """Write the result of `set2set`, and z and cells of the steps that each graph takes."""
    x, indptr, steps, weight, bias = graphs
    out, z, cells, _ = saved
    if not _fits(x):
        raise ValueError(
            f"got {x.shape[2]} features of {x.dtype}, expected a multiple of {_LANES} up to "
            f"{_WIDEST}, float32 or float64; call pna.population.set2set.set2set"
        )
    check(indptr, steps, x.shape[0], z.shape[0])
    given = {"weight": weight.mT, "bias": bias, "out": out, "z": z, "cells": cells}
    _run(x, indptr, steps, given, backward=False)


def backward(
    grad: Tensor, graphs: Set2SetInputs, saved: Set2SetResults, grads: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add the gradients of x, weight and bias to `grads`."""
    x, indptr, steps, weight, _ = graphs
    grad_x, grad_weight, grad_bias = grads
    members, rows, columns = weight.shape
    chunks = -(-steps.shape[0] // _CHUNK)
    partial = x.new_empty((members, chunks, rows * columns + rows))
    given = {"weight": weight, "z": saved.z, "cells": saved.cells, "grad": grad, "grad_x": grad_x}
    _run(x, indptr, steps, given | {"partial": partial}, backward=True)
    to_weight, to_bias = partial.sum(1).split([rows * columns, rows], 1)
    grad_weight += to_weight.view_as(grad_weight)
    grad_bias += to_bias


def _run(
    x: Tensor, indptr: Tensor, steps: Tensor, given: dict[str, Tensor], backward: bool
) -> None:
    """Run the forward or backward kernel over all chunks of graphs of all members."""
    assert _kernel is not None
    kernel = _kernel
    (nodes, members, width), graphs = x.shape, steps.shape[0]
    room = x.new_empty((2, members, nodes))
    tensors = given | {"x": x, "indptr": indptr.long(), "steps": steps.long()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    tensors |= {"shares": room[0], "slopes": room[1]}
    problem = _Problem(x.dtype == torch.float64, nodes, graphs, members, width)
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    pieces = [(m, c) for m in range(members) for c in range(-(-graphs // _CHUNK))]
    cpu.share(
        pieces,
        lambda *piece: kernel(ctypes.byref(problem), backward, *piece),
        given["z"].numel() * 4 * width,
    )
