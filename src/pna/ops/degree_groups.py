"""`degree_linear` on a CPU: one product for every degree that enough nodes share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.product import Product, definition, shifted, through
from pna.ops.request import wide_type

#: If the weights of all factors have at most this many elements, they are multiplied at once.
_NARROW = 4096

#: Nodes of one degree get their own product if that saves more than this many operations.
_WORTH = 5e6


def forward(product: Product, base: Tensor | None, out: Tensor) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs)."""
    weight, factors = product.weight, product.factors
    lengths = product.indptr.diff()
    if _is_narrow(weight):
        _forward_at_once(product.shifted_z(), weight, factors, base, out)
        return
    for rows, shares in _groups(product):
        own = _shifted_rows(product, lengths, rows)
        if shares is None:
            part = definition(own, weight, _take(factors, rows))
        else:
            part = through(own, _combine(shares, weight))
        _put(out, rows, part)
    if base is not None:
        out += base


def backward(grad: Tensor, product: Product, grads: tuple[Tensor, Tensor, Tensor]) -> None:
    """Write the gradients of z, weight and shift; a gradient without elements is not needed."""
    z, weight, factors, times = product.z, product.weight, product.factors, product.times
    indptr, (grad_z, grad_weight, grad_shift) = product.indptr, grads
    lengths = indptr.diff()
    if _is_narrow(weight):
        _backward_at_once(grad, product.shifted_z(), weight, factors, grad_z, grad_weight)
        if grad_shift.shape[0] > 0:
            add_shifted(grad_z, times, indptr, grad_shift)
        return
    transposed = weight.transpose(2, 3)
    total = torch.zeros(grad_weight.shape, dtype=wide_type(grad.dtype))
    for rows, shares in _groups(product):
        upstream = _take(grad, rows)
        own = _take(factors, rows).to(grad.dtype) if shares is None else None
        if grad_z.shape[0] > 0:
            if own is not None:
                part = definition(upstream[:, None], transposed, own)
            else:
                part = through(upstream[:, None], _combine(shares, transposed))
            part = part.unflatten(2, (z.shape[1], z.shape[3])).transpose(1, 2)
            _put(grad_z, rows, part)
        if grad_weight.shape[0] > 0:
            flat = _shifted_rows(product, lengths, rows)
            flat = flat.permute(2, 1, 3, 0).flatten(1, 2)  # (towers, A·K, n)
            if own is not None:
                for r in range(weight.shape[0]):
                    scaled = own[:, r, None, None] * upstream
                    total[r] += torch.bmm(flat, scaled.transpose(0, 1))
            else:
                assert shares is not None
                together = torch.bmm(flat, upstream.transpose(0, 1))
                for r, share in enumerate(shares.tolist()):
                    total[r].add_(together, alpha=share)
    if grad_weight.shape[0] > 0:
        grad_weight.copy_(total)
    if grad_shift.shape[0] > 0:
        add_shifted(grad_z, times, indptr, grad_shift)


def _is_narrow(weight: Tensor) -> bool:
    """Whether one product with the weights of all factors costs less than grouping by degree."""
    count, _, inner, outputs = weight.shape
    return count > 1 and count * inner * outputs <= _NARROW


def _forward_at_once(
    z: Tensor, weight: Tensor, factors: Tensor, base: Tensor | None, out: Tensor
) -> None:
    """Multiply shifted z by the weights of all factors at once, and the result by the factors."""
    every = through(z, weight.permute(1, 2, 0, 3).flatten(2))  # (receivers, towers, R × outputs)
    every = every.unflatten(2, (weight.shape[0], -1))
    total = (every * factors.to(z.dtype)[:, None, :, None]).sum(2)
    out.copy_(total if base is None else total + base)


def _backward_at_once(
    grad: Tensor,
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    grad_z: Tensor,
    grad_weight: Tensor,
) -> None:
    """Write the gradients of shifted z and of weight."""
    count, outputs = weight.shape[0], weight.shape[3]
    upstream = grad[:, :, None] * factors.to(grad.dtype)[:, None, :, None]
    upstream = upstream.flatten(2)  # (receivers, towers, R × outputs)
    if grad_z.shape[0] > 0:
        transposed = weight.permute(1, 0, 3, 2).flatten(1, 2)  # (towers, R × outputs, A·K)
        part = through(upstream[:, None], transposed)
        grad_z.copy_(part.unflatten(2, (z.shape[1], z.shape[3])).transpose(1, 2))
    if grad_weight.shape[0] > 0:
        wide = wide_type(grad.dtype)
        flat = z.permute(2, 1, 3, 0).flatten(1, 2)  # (towers, A·K, receivers)
        total = torch.bmm(flat.to(wide), upstream.transpose(0, 1).to(wide))
        grad_weight.copy_(total.unflatten(2, (count, outputs)).permute(2, 0, 1, 3))


def add_shifted(grad_z: Tensor, times: Sequence[int], indptr: Tensor, total: Tensor) -> None:
    """Write the gradient of `shift`: the sum over everything it was added to."""
    once = [grad_z[:, a] for a, often in enumerate(times) if often == 1]
    if len(once) > 1:
        torch.add(once[0], once[1], out=total)
    elif once:
        total.copy_(once[0])
    else:
        total.zero_()
    for part in once[2:]:
        total += part
    for a, often in enumerate(times):
        if often == 2:
            lengths = indptr.diff()[:, None, None].to(wide_type(grad_z.dtype))
            total += (lengths * grad_z[:, a]).to(total.dtype)


def _groups(product: Product) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Yield (receivers, factors): receivers of a common degree, and the factors that they share;
    then the receivers of all rare degrees, and None. None for receivers means all of them."""
    factors, by_degree = product.factors, product.by_degree
    count, towers, inner, outputs = product.weight.shape
    few = _WORTH / max(2 * (count - 1) * towers * inner * outputs, 1)
    alone = count == 1 or by_degree.shape[0] <= few
    if alone or not fast_paths.is_on("degree_groups"):
        yield None, None
        return
    order = by_degree.long()
    along = factors.index_select(0, order)
    changes = (along[1:] != along[:-1]).any(1).nonzero()[:, 0] + 1
    rare = []
    for rows in order.tensor_split(changes):
        if rows.shape[0] <= few:
            rare.append(rows)
        else:
            yield rows, factors[rows[0]]
    if rare:
        yield torch.cat(rare), None


def _shifted_rows(product: Product, lengths: Tensor, rows: Tensor | None) -> Tensor:
    z, shift = product.z, product.shift
    if shift is None:
        return _take(z, rows)
    return shifted(_take(z, rows), _take(shift, rows), product.times, _take(lengths, rows))


def _take(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


def _put(tensor: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is None:
        tensor.copy_(values)
    else:
        tensor.index_copy_(0, rows, values)


def _combine(shares: Tensor | None, weight: Tensor) -> Tensor:
    """Σ_r shares[r] · W_r."""
    assert shares is not None
    return torch.tensordot(shares.to(weight.dtype), weight, dims=1)
