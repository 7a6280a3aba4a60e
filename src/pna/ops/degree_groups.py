"""`degree_linear` on a CPU: a product for every degree that enough nodes have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops import narrow_cpu
from pna.ops.request import wide_type

#: Weights of all factors up to so many numbers are multiplied at once.
_NARROW = 4096

#: A group of nodes is worth a product of its own if that spares so many operations.
_WORTH = 5e6


def definition(z: Tensor, weight: Tensor, factors: Tensor, base: Tensor | None = None) -> Tensor:
    """`degree_linear` of shifted z in plain torch, one product for each factor.

    factors may also be (receivers, R, towers), where each tower has its own."""
    factors = factors.to(z.dtype)
    factors = factors[:, :, None] if factors.dim() == 2 else factors
    total = base
    for r in range(weight.shape[0]):
        scaled = factors[:, r, :, None] * _through(z, weight[r])
        total = scaled if total is None else total + scaled
    assert total is not None
    return total


def shifted(z: Tensor, shift: Tensor | None, times: Sequence[int], degree: Tensor) -> Tensor:
    """z with `shift` added as often as `times` says: never, once, or (2) for each neighbour."""
    if shift is None or not any(times):
        return z
    degree = degree.to(wide_type(z.dtype))  # which half precision may not hold
    often = (torch.zeros_like(degree), torch.ones_like(degree), degree)
    added = torch.stack([often[n] for n in times], 1)[:, :, None, None] * shift[:, None]
    return z + added.to(z.dtype)


def forward(
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    base: Tensor | None,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    by_degree: Tensor,
    out: Tensor,
) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs)."""
    degree = indptr.diff()
    if _is_narrow(weight):
        chunks = narrow_cpu.chunks_of(z, weight, indptr, by_degree)
        if chunks is not None and fast_paths.is_on("narrow_cpu"):
            often = _often(times, degree, z)
            narrow_cpu.forward(chunks, z, weight, factors, base, shift, often, out)
            return
        _forward_at_once(shifted(z, shift, times, degree), weight, factors, base, out)
        return
    for rows, shares in _groups(weight, factors, degree, by_degree):
        own = _shifted_rows(z, shift, times, degree, rows)
        if shares is None:
            part = definition(own, weight, _take(factors, rows))
        else:
            part = _through(own, _combine(shares, weight))
        _put(out, rows, part)
    if base is not None:
        out += base


def backward(
    grad: Tensor,
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    by_degree: Tensor,
    grad_z: Tensor,
    grad_weight: Tensor,
    grad_shift: Tensor,
) -> None:
    """Write the gradients of z, weight and shift; those of no length are not needed."""
    degree = indptr.diff()
    if _is_narrow(weight):
        chunks = narrow_cpu.chunks_of(z, weight, indptr, by_degree)
        if chunks is not None and fast_paths.is_on("narrow_cpu"):
            often, of = _often(times, degree, z), (grad_z, grad_weight, grad_shift)
            narrow_cpu.backward(chunks, grad, z, weight, factors, shift, often, of)
            return
        moved = shifted(z, shift, times, degree)
        _backward_at_once(grad, moved, weight, factors, grad_z, grad_weight)
        if grad_shift.shape[0] > 0:
            add_shifted(grad_z, times, indptr, grad_shift)
        return
    across = weight.transpose(2, 3)
    total = torch.zeros(grad_weight.shape, dtype=wide_type(grad.dtype))
    for rows, shares in _groups(weight, factors, degree, by_degree):
        upstream = _take(grad, rows)
        own = _take(factors, rows).to(grad.dtype) if shares is None else None
        if grad_z.shape[0] > 0:
            if own is not None:
                part = definition(upstream[:, None], across, own)
            else:
                part = _through(upstream[:, None], _combine(shares, across))
            part = part.unflatten(2, (z.shape[1], z.shape[3])).transpose(1, 2)
            _put(grad_z, rows, part)
        if grad_weight.shape[0] > 0:
            flat = _shifted_rows(z, shift, times, degree, rows)
            flat = flat.permute(2, 1, 3, 0).flatten(1, 2)  # (towers, A·K, n)
            if own is not None:
                for r in range(weight.shape[0]):
                    scaled = own[:, r, None, None] * upstream
                    total[r] += torch.bmm(flat, scaled.transpose(0, 1))
            else:
                assert shares is not None
                product = torch.bmm(flat, upstream.transpose(0, 1))
                for r, share in enumerate(shares.tolist()):
                    total[r].add_(product, alpha=share)
    if grad_weight.shape[0] > 0:
        grad_weight.copy_(total)
    if grad_shift.shape[0] > 0:
        add_shifted(grad_z, times, indptr, grad_shift)


def _often(times: Sequence[int], degree: Tensor, z: Tensor) -> Tensor:
    """How often the shift is added to every group of every node, (receivers, groups)."""
    wanted = list(times) or [0] * z.shape[1]
    once, each = (
        torch.tensor([often == kind for often in wanted], dtype=torch.float32) for kind in (1, 2)
    )
    return torch.addcmul(once, degree[:, None].to(torch.float32), each)


def _is_narrow(weight: Tensor) -> bool:
    """Whether a product with the weights of all factors costs less than finding equal degrees."""
    count, _, inner, outputs = weight.shape
    return count > 1 and count * inner * outputs <= _NARROW


def _forward_at_once(
    z: Tensor, weight: Tensor, factors: Tensor, base: Tensor | None, out: Tensor
) -> None:
    """Of shifted z: through the weights of all factors side by side, then times the factors."""
    every = _through(z, weight.permute(1, 2, 0, 3).flatten(2))  # (receivers, towers, R × outputs)
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
    """Gradients of shifted z and of weight."""
    count, outputs = weight.shape[0], weight.shape[3]
    upstream = grad[:, :, None] * factors.to(grad.dtype)[:, None, :, None]
    upstream = upstream.flatten(2)  # (receivers, towers, R × outputs)
    if grad_z.shape[0] > 0:
        across = weight.permute(1, 0, 3, 2).flatten(1, 2)  # (towers, R × outputs, A·K)
        part = _through(upstream[:, None], across)
        grad_z.copy_(part.unflatten(2, (z.shape[1], z.shape[3])).transpose(1, 2))
    if grad_weight.shape[0] > 0:
        wide = wide_type(grad.dtype)
        flat = z.permute(2, 1, 3, 0).flatten(1, 2)  # (towers, A·K, receivers)
        total = torch.bmm(flat.to(wide), upstream.transpose(0, 1).to(wide))
        grad_weight.copy_(total.unflatten(2, (count, outputs)).permute(2, 0, 1, 3))


def add_shifted(grad_z: Tensor, times: Sequence[int], indptr: Tensor, total: Tensor) -> None:
    """Write the gradient of `shift`: that of everything it was added to."""
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
            degree = indptr.diff()[:, None, None].to(wide_type(grad_z.dtype))
            total += (degree * grad_z[:, a]).to(total.dtype)


def _groups(
    weight: Tensor, factors: Tensor, degree: Tensor, by_degree: Tensor
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Receivers of one degree with the factors that they share; then those of rarer degrees
    together, with none. All receivers are None."""
    count, towers, inner, outputs = weight.shape
    few = _WORTH / max(2 * (count - 1) * towers * inner * outputs, 1)
    alone = count == 1 or by_degree.shape[0] <= few
    if alone or not fast_paths.is_on("degree_groups"):
        yield None, None
        return
    order = by_degree.long()
    counts = torch.unique_consecutive(degree[order], return_counts=True)[1].tolist()
    rare = []
    for rows in order.split(counts):
        if rows.shape[0] <= few:
            rare.append(rows)
        else:
            yield rows, factors[rows[0]]
    if rare:
        yield torch.cat(rare), None


def _shifted_rows(
    z: Tensor, shift: Tensor | None, times: Sequence[int], degree: Tensor, rows: Tensor | None
) -> Tensor:
    if shift is None:
        return _take(z, rows)
    return shifted(_take(z, rows), _take(shift, rows), times, _take(degree, rows))


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


def _through(z: Tensor, weight: Tensor) -> Tensor:
    """z (n, A, towers, K) through weight (towers, A·K, outputs): (n, towers, outputs)."""
    if weight.shape[0] == 1:
        return (z.flatten(1) @ weight[0])[:, None]
    return torch.bmm(z.permute(2, 0, 1, 3).flatten(2), weight).transpose(0, 1)
