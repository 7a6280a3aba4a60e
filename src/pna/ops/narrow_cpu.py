"""`degree_linear` of few features on a CPU: narrow.c, called through ctypes on Python threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pna.ops import cpu
from pna.ops.product import Product

#: Floats in a vector of narrow.c, and the most inputs and outputs that it supports.
_LANES, _INPUTS, _OUTPUTS = 4, 512, 64

#: The most nodes of a chunk, and the fewest that a degree must have on average.
_CHUNK, _FEWEST = 512, 8

_NUMBERS = ("groups", "towers", "width", "inner", "outputs")
_POINTERS = (
    *("nodes", "bounds", "often", "z", "shift", "weight", "across", "base", "out", "grad"),
    *("grad_z", "grad_shift", "partial"),
)


_Narrow = cpu.structure(_NUMBERS, _POINTERS)  # `struct narrow` of narrow.c
_kernel = cpu.kernel("narrow", _Narrow, 3, interface=1)
built = _kernel is not None


@dataclass(frozen=True)
class Chunks:
    """Nodes sorted by degree, cut into chunks of one degree."""

    nodes: Tensor  # (nodes,) int64
    first: Tensor  # (degrees,) int64, a node of every degree there is
    bounds: Tensor  # (chunks, 3) int64: first node, end of the nodes, place of their degree


_remembered: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def chunks_of(product: Product) -> Chunks | None:
    """How the nodes are cut, or None if narrow.c does not apply; cached while the graph lives."""
    z, by_degree = product.z, product.by_degree
    inner, outputs = product.weight.shape[2:]
    fits = inner <= _INPUTS and outputs <= _OUTPUTS and outputs % _LANES == 0
    if not built or z.dtype != torch.float32 or not fits:
        return None
    if by_degree not in _remembered:
        _remembered[by_degree] = _cut(product.indptr, by_degree)
    chunks: Chunks = _remembered[by_degree]
    return chunks if _FEWEST * len(chunks.first) <= len(chunks.nodes) else None


def _cut(indptr: Tensor, by_degree: Tensor) -> Chunks:
    nodes = by_degree.to(torch.int64, copy=True)
    counts = torch.unique_consecutive(indptr.diff()[nodes], return_counts=True)[1].tolist()
    bounds, first, begin = [], [], 0
    for degree, count in enumerate(counts):
        first.append(begin)
        end = begin + count
        bounds += [(i, min(i + _CHUNK, end), degree) for i in range(begin, end, _CHUNK)]
        begin = end
    return Chunks(nodes, nodes[torch.tensor(first)], torch.tensor(bounds))


def forward(
    chunks: Chunks, product: Product, base: Tensor | None, often: Tensor, out: Tensor
) -> None:
    """Write the result of `degree_linear`; `often` (nodes, groups) the shift is added."""
    given = {"out": out} if base is None else {"out": out, "base": base.contiguous()}
    _run(chunks, product, often, given, backward=False)


def backward(
    chunks: Chunks,
    grad: Tensor,
    product: Product,
    often: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of z, weight and shift; those without elements are not needed."""
    z, (grad_z, grad_weight, grad_shift) = product.z, grads
    count, towers, inner, outputs = product.weight.shape
    partial = z.new_empty((len(chunks.bounds), towers * inner * outputs))
    given = {
        "grad": grad.contiguous(),
        "grad_z": grad_z if grad_z.shape[0] > 0 else torch.empty_like(z),
        "grad_shift": grad_shift if grad_shift.shape[0] > 0 else z.new_empty(z[:, 0].shape),
        "partial": partial,
    }
    _run(chunks, product, often, given, backward=True)
    if grad_weight.shape[0] > 0:
        shares = _shares(chunks, product.factors)[chunks.bounds[:, 2]]
        with torch.autocast("cpu", enabled=False):
            grad_weight.copy_((shares.t() @ partial).view(count, towers, inner, outputs))


def _shares(chunks: Chunks, factors: Tensor) -> Tensor:
    """The factors of every degree."""
    return factors[chunks.first].to(torch.float32)


def _run(
    chunks: Chunks, product: Product, often: Tensor, given: dict[str, Tensor], backward: bool
) -> None:
    assert _kernel is not None
    kernel = _kernel
    z, weight, shift = product.z.contiguous(), product.weight, product.shift
    inner = -(-weight.shape[2] // _LANES) * _LANES
    with torch.autocast("cpu", enabled=False):  # narrow.c reads float32
        own = torch.tensordot(_shares(chunks, product.factors), weight, 1)  # of every degree
    if backward:
        given |= {"across": F.pad(own.mT, (0, inner - weight.shape[2])).contiguous()}
    else:
        given |= {"weight": own.contiguous()}
    tensors = given | {
        "nodes": chunks.nodes,
        "bounds": chunks.bounds,
        "often": often,
        "z": z,
        "shift": torch.zeros_like(z[:, 0]) if shift is None else shift.contiguous(),
    }
    problem = _Narrow(z.shape[1], z.shape[2], z.shape[3], inner, weight.shape[3])
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    each = weight[0].numel() * (z.shape[0] // max(len(chunks.bounds), 1) + 1)
    cpu.share(
        _pieces(len(chunks.bounds)),
        lambda *piece: kernel(ctypes.byref(problem), *piece, backward),
        each * len(chunks.bounds),
    )


def _pieces(count: int) -> Sequence[tuple[int, int]]:
    """Some chunks at a time."""
    return [(i, min(i + 2, count)) for i in range(0, count, 2)]
