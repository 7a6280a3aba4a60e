"""The narrow PNA layer for many calls, with its weights rearranged once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.fused import edge_term
from pna.nn.conv.inputs import EdgeFeatures, edge_inputs
from pna.nn.conv.shifts import aggregate_shifted, as_given, times_shifted, weights_of_x
from pna.nn.conv.split import Parts
from pna.nn.neighbourhood import Neighbourhood
from pna.ops.degree_linear import degree_linear
from pna.ops.request import Request
from pna.population.linears import linears
from pna.population.recurrence import Layer


class PreparedPNA:
    """A narrow `PNAConv` without towers, whose weights do not change between calls."""

    def __init__(
        self,
        parts: Parts,
        neighbourhood: Neighbourhood,
        views: Sequence[Sequence[int]],
        swapped: Sequence[bool],
        request: Request | None,
    ) -> None:
        """Rearrange the weights.

        `views` are groups of aggregators. Each group sees M(x_i, x_j), or M(x_j, x_i) if it is
        `swapped`. `request` is for kernels that compute all aggregators at once; None if no kernel
        can.
        """
        self._parts, self._neighbourhood = parts, neighbourhood
        self._views, self._request = views, request
        weights, biases = weights_of_x(parts, swapped)
        # squeeze, because the gradient of weight[0] would be a copy
        self._weights = [weight.squeeze(0) for weight in weights]
        self._biases = [None if bias is None else bias.squeeze(0) for bias in biases]
        self._known: tuple[Adjacency, Tensor] | None = None

    def __call__(self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures = None) -> Tensor:
        """Compute `PNAConv.forward`; the graph must be an `Adjacency`."""
        parts = self._parts
        factors = self._factors(adjacency, x.dtype)
        edge, at = edge_inputs(edge_attr)
        term = as_given(*edge_term(edge, at, parts.edge))
        every = self._neighbourhood.aggregators
        out, *projected = linears(x, self._weights, self._biases)
        out, products = out[:, None], iter(projected)
        for which, mix in zip(self._views, parts.mixes, strict=True):
            aggregators = [every[i] for i in which]
            results, own, times = aggregate_shifted(products, adjacency, aggregators, term)
            shift = own[:, None].to(results.dtype)
            out = degree_linear(results[:, :, None], mix, factors, adjacency, out, shift, times)
        return out.squeeze(1)

    def as_layer(
        self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures, slope: float
    ) -> Layer | None:
        """Return the layer for `recurrence`, with an activation of this slope below 0.

        The result is None if `recurrence` does not support the layer.
        """
        learned = any(True for _ in self._neighbourhood.parameters())
        if edge_attr is not None or self._request is None or learned:
            return None
        keep, sender, receiver = self._weights
        keep_bias, _, bias = self._biases
        assert keep_bias is not None and bias is not None
        times = tuple(times_shifted(self._neighbourhood.aggregators))
        return Layer(
            keep, keep_bias, sender, receiver, bias, self._parts.mixes[0],
            self._factors(adjacency, x.dtype), self._request, times, slope,
        )  # fmt: skip

    def _factors(self, adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
        if self._known is None or self._known[0] is not adjacency:
            self._known = (adjacency, self._neighbourhood.factors(adjacency, dtype))
        return self._known[1]
