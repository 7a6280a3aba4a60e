"""The PNA layer by other libraries: JAX, `torch.sparse.mm` and cuDNN, with the weights of ours.

JAX makes every message, of products of nodes. The other two reduce features of senders alone, as
ours does: M = A x_i + B x_j + b, so A x_i + b is added to the reductions of B x_j. None of them has
a standard deviation: it is computed from the mean of squares, as PyG does.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from pna.bench.layer_cases import Case, Inputs
from pna.bench.measure import Submitted
from pna.nn import PNAConv

_EPSILON = 1e-5  # a variance up to this counts as 0, as in PyG


def missing_jax(device: torch.device) -> str | None:
    """What JAX needs to run on a device; None if nothing."""
    if find_spec("jax") is None:
        return "JAX is not installed: pip install jax"
    try:
        _jax_device(device)
    except RuntimeError as error:
        return f"JAX finds no such device ({error}): pip install 'jax[cuda13]'"
    return None


def missing_sparse(device: torch.device) -> str | None:
    return None if device.type == "cpu" else "torch has its reductions on a CPU only"


def missing_cudnn(device: torch.device) -> str | None:
    """What cuDNN's operations for graphs need; None if nothing."""
    if device.type != "cuda":
        return "cuDNN runs on a GPU only"
    if find_spec("cudnn") is None:
        return "cuDNN's frontend is not installed: pip install nvidia-cudnn-frontend"
    try:
        import cudnn

        version = cudnn.backend_version()
        if find_spec("cudnn.gnn") is None or not hasattr(cudnn, "gnn_agg_simple_forward"):
            return f"cuDNN's frontend {cudnn.__version__} has no agg_simple: use 1.32 or later"
    except Exception as error:  # of a library that does not load, for example
        return f"cuDNN's frontend does not load: {error}"
    if version < _CUDNN:
        return f"got cuDNN {version}, and agg_simple needs {_CUDNN} (9.26) or later"
    return None


_CUDNN = 92600  # the first version with operations for graphs


class JaxContender:
    """The layer of `jax.ops.segment_sum` and its like; the whole step is compiled as one.

    Edges are sorted by receiver beforehand, and JAX is told so. A fresh edge_index is unsorted.
    JAX compiles again for every new shape: here all batches have the same.
    """

    def __init__(self, case: Case, given: Inputs, ours: PNAConv) -> None:
        import jax

        self._place = _jax_device(given.x.device)
        self._weights = {name: self._array(value) for name, value in ours.state_dict().items()}
        self._x = self._array(given.x)
        self._table = None if given.table is None else self._array(given.table)
        edges = given.adjacency.incoming
        if given.fresh:
            assert given.edge_index is not None
            senders, receivers = given.edge_index
            types = given.types
        else:
            receivers = torch.repeat_interleave(edges.indptr.diff())
            senders = edges.neighbours
            types = None if given.types is None else given.types[given.adjacency.edge_ids.long()]
        indices = (senders, receivers, types)
        self._edges = [None if index is None else self._array(index.int()) for index in indices]
        self._upstream = self._array(given.upstream)
        self._device = given.x.device
        layer = partial(_jax_layer, nodes=case.nodes, is_sorted=not given.fresh)

        def both(upstream: Any, x: Any, table: Any, weights: Any, *edges: Any) -> Any:
            output, pull = jax.vjp(lambda *leaves: layer(*leaves, *edges), x, table, weights)
            return output, pull(upstream)

        self._compiled: dict[str, Any] = {}
        self._functions = {"forward": layer, "forward+backward": both}
        self._result: Any = None

    def step(self, work: str) -> Callable[[], Any]:
        import jax

        call, arguments = self._call(work), self._arguments(work)

        def submit() -> None:
            self._result = call(*arguments)

        return Submitted(submit, lambda: jax.block_until_ready(self._result))

    def output_and_gradient(self) -> tuple[Tensor, Tensor]:
        work = "forward+backward"
        output, (gradient, *_) = self._call(work)(*self._arguments(work))
        return self._tensor(output), self._tensor(gradient)

    def peak_bytes(self, work: str) -> int:
        """As XLA plans it: torch does not see JAX's memory."""
        planned = self._call(work).memory_analysis()
        return int(planned.temp_size_in_bytes + planned.output_size_in_bytes)

    def _arguments(self, work: str) -> tuple[Any, ...]:
        first = (self._upstream,) if work == "forward+backward" else ()
        return (*first, self._x, self._table, self._weights, *self._edges)

    def _call(self, work: str) -> Any:
        import jax

        if work not in self._compiled:
            with jax.default_matmul_precision("highest"):  # no TF32, as all others
                lowered = jax.jit(self._functions[work]).lower(*self._arguments(work))
                self._compiled[work] = lowered.compile()
        return self._compiled[work]

    def _array(self, value: Tensor) -> Any:
        import jax

        return jax.device_put(value.detach().cpu().numpy(), self._place)

    def _tensor(self, array: Any) -> Tensor:
        import numpy as np

        return torch.from_numpy(np.array(array)).to(self._device)


def _jax_device(device: torch.device) -> Any:
    """Raises RuntimeError if JAX has no such device."""
    # JAX would reserve three quarters of the memory at its first use
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if device.type == "cpu":
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax.devices("gpu" if device.type == "cuda" else "cpu")[device.index or 0]


def _jax_layer(
    x: Any, table: Any, weights: Any, senders: Any, receivers: Any, types: Any,
    nodes: int, is_sorted: bool,
) -> Any:  # fmt: skip
    """The layer as its users write it, except that M is applied to nodes, not to messages."""
    import jax
    import jax.numpy as jnp

    pre, post = weights["pre.0.weight"], weights["post.0.weight"]
    width = x.shape[1]
    own = jnp.einsum("ni,toi->nto", x, pre[:, :, :width]) + weights["pre.0.bias"]
    sent = jnp.einsum("ni,toi->nto", x, pre[:, :, width : 2 * width])
    messages = own[receivers] + sent[senders]
    if table is not None:
        encoded = table @ weights["edge_encoder.weight"].T + weights["edge_encoder.bias"]
        messages += jnp.einsum("ki,toi->kto", encoded, pre[:, :, 2 * width :])[types]
    shared = {"num_segments": nodes, "indices_are_sorted": is_sorted}
    count = jax.ops.segment_sum(jnp.ones(len(receivers), x.dtype), receivers, **shared)
    degree = jnp.maximum(count, 1)
    each = degree[:, None, None]
    mean = jax.ops.segment_sum(messages, receivers, **shared) / each
    variance = jax.ops.segment_sum(messages**2, receivers, **shared) / each - mean**2
    is_zero = variance <= _EPSILON
    std = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, variance)))
    some = (count > 0)[:, None, None]
    largest = jnp.where(some, jax.ops.segment_max(messages, receivers, **shared), 0)
    smallest = jnp.where(some, jax.ops.segment_min(messages, receivers, **shared), 0)
    statistics = jnp.concatenate([mean, std, largest, smallest], -1)
    delta = weights["neighbourhood.mean_log_degree"]
    factors = (1, jnp.log(count + 1) / delta, delta / jnp.log(degree + 1))
    scaled = [statistics, *(statistics * factor[:, None, None] for factor in factors[1:])]
    copies = jnp.broadcast_to(x[:, None], (nodes, len(pre), width))
    rows = jnp.concatenate([copies, *scaled], -1)
    output = jnp.einsum("nti,toi->nto", rows, post) + weights["post.0.bias"]
    return output.reshape(nodes, -1) @ weights["lin.weight"].T + weights["lin.bias"]


@dataclass(frozen=True)
class Csr:
    """Senders of every receiver."""

    indptr: Tensor  # (nodes + 1,)
    senders: Tensor  # (edges,)
    degree: Tensor  # (nodes,)


def csr_of(given: Inputs) -> Csr:
    """Rows as a user has them beforehand; of a fresh edge_index they are made in every call."""
    if not given.fresh:
        rows = given.adjacency.incoming
        return Csr(rows.indptr, rows.neighbours, rows.indptr.diff())
    edge_index = given.edges(ours=False)
    assert isinstance(edge_index, Tensor)
    receivers, order = edge_index[1].sort(stable=True)
    degree = torch.bincount(receivers, minlength=len(given.x))
    return Csr(nn.functional.pad(degree.cumsum(0), (1, 0)), edge_index[0][order], degree)


class SparseReductions:
    """`torch.sparse.mm` of the matrix of edges, whose values are ones."""

    def __init__(self, csr: Csr, like: Tensor) -> None:
        nodes = len(csr.degree)
        ones = torch.ones(len(csr.senders), dtype=like.dtype)
        indices = csr.indptr.long(), csr.senders.long()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is in beta
            self._matrix = torch.sparse_csr_tensor(
                *indices, ones, (nodes, nodes), check_invariants=False
            )

    def __call__(self, z: Tensor, how: str) -> Tensor:
        names = {"mean": "mean", "max": "amax", "min": "amin"}
        return torch.sparse.mm(self._matrix, z, names[how])


class CudnnReductions:
    """`cudnn.gnn.agg_simple`."""

    def __init__(self, csr: Csr, like: Tensor) -> None:
        from cudnn import gnn

        self._reduce = gnn.agg_simple
        self._graph = gnn.CscGraph(csr.indptr, csr.senders, num_src_nodes=len(csr.degree))

    def __call__(self, z: Tensor, how: str) -> Tensor:
        return self._reduce(self._graph, node_features=z, aggr=how)


def with_reductions(
    reductions: Callable[[Csr, Tensor], Callable[[Tensor, str], Tensor]], made: Csr | None
) -> Callable[[nn.Module, Inputs], Tensor]:
    """How a `ReducedLayer` is called: with rows made beforehand, or in every call."""
    kept = None

    def call(layer: nn.Module, given: Inputs) -> Tensor:
        nonlocal kept
        csr = csr_of(given) if made is None else made
        if made is None or kept is None:
            kept = reductions(csr, given.x)
        output: Tensor = layer(given.x, csr.degree, kept)
        return output

    return call


class ReducedLayer(nn.Module):
    """The layer of an operator that reduces the features of senders by mean, max or min."""

    def __init__(self, ours: PNAConv) -> None:
        super().__init__()
        state = ours.state_dict()
        named = ("pre.0.weight", "pre.0.bias", "post.0.weight", "post.0.bias")
        self.pre, self.pre_bias, self.post, self.post_bias = (
            nn.Parameter(state[name].clone()) for name in named
        )
        self.lin = copy.deepcopy(ours.lin) or nn.Identity()
        self.delta: Tensor
        self.register_buffer("delta", state["neighbourhood.mean_log_degree"].clone())

    def forward(self, x: Tensor, degree: Tensor, reduce: Callable[[Tensor, str], Tensor]) -> Tensor:
        towers, width = len(self.pre), x.shape[1]
        own = torch.einsum("ni,toi->nto", x, self.pre[:, :, :width]) + self.pre_bias
        sent = torch.einsum("ni,toi->nto", x, self.pre[:, :, width:]).flatten(1)
        some = (degree > 0)[:, None]
        mean = reduce(sent, "mean")
        variance = reduce(sent.square(), "mean") - mean.square()
        std = variance.clamp(min=_EPSILON).sqrt()
        std = std.masked_fill(std <= math.sqrt(_EPSILON), 0.0)
        shifted = (mean, None, reduce(sent, "max"), reduce(sent, "min"))
        parts = [
            std if part is None else torch.where(some, part + own.flatten(1), 0) for part in shifted
        ]
        statistics = torch.cat([part.view(len(x), towers, -1) for part in parts], -1)
        count = degree.to(x.dtype)
        factors = ((count + 1).log() / self.delta, self.delta / (count.clamp(min=1) + 1).log())
        scaled = [statistics, *(statistics * factor[:, None, None] for factor in factors)]
        rows = torch.cat([x[:, None].expand(-1, towers, -1), *scaled], -1)
        output = torch.einsum("nti,toi->nto", rows, self.post) + self.post_bias
        mixed: Tensor = self.lin(output.flatten(1))
        return mixed
