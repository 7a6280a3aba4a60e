"""The PNA layer, with PyG's signature and less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.degree import DegreeStats, Linear, Power
from pna.names import check_keywords
from pna.nn.activation import activation
from pna.nn.conv import memory, pyg
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.fused import edge_term, mixing_layer, pna_layer, project_each
from pna.nn.conv.inputs import NARROW, EdgeFeatures, converted, edge_inputs, working_type
from pna.nn.conv.plain import call, plain_layer
from pna.nn.conv.prepared import PreparedPNA
from pna.nn.conv.shifts import (
    aggregate_shifted,
    as_given,
    is_shifted_by_kernel,
    times_shifted,
    weights_of_x,
)
from pna.nn.conv.small import is_small, small_layer
from pna.nn.conv.small_cpu import is_small_on_cpu, small_layer_on_cpu
from pna.nn.conv.split import Form, LayerPlan, Weights, join_towers, split
from pna.nn.hooks import may_be_read
from pna.nn.neighbourhood import Neighbourhood, StdConvention
from pna.nn.registry import Entry, Restriction, register
from pna.nn.towers import TowerLinear, first_of, named_layers, tower_layers
from pna.ops.aggregate import aggregate, has_kernels, one_pass
from pna.ops.aggregators import Aggregator, Max, Min
from pna.ops.backend import choose
from pna.ops.degree_linear import degree_linear
from pna.ops.request import Request
from pna.torch_internals import in_transform

#: The widest layer whose towers are joined if it is called many times.
NARROW_LAYER = 32


class PNAConv(Conv):
    """Principal Neighbourhood Aggregation: x_i' = U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji)).

    ⊕ is every scaler times every aggregator. M and U are one linear layer each, or several with
    `pre_layers`, `post_layers` > 1. `towers` of them run in parallel, then one linear layer mixes
    their outputs. The arguments and shapes are those of PyG's `PNAConv`, and with ``std="pyg"``
    the results too.

    With one layer in M, M is split into the parts of the receiver, the sender and the edge. On a
    large graph no tensor then has a row of features for each edge, unless edge features wider than
    16 are given for each. On a small graph of a GPU, where launches of kernels take most of the
    time, the gradients of all messages and the inputs of U are stored. Aggregators without a kernel
    (moments, softmax, k-th smallest, your own) compute the messages of a block of receivers at a
    time. With more layers in M, all messages are stored: several tensors of shape (edges, towers ×
    features).

    The weights of the parts (`pre`, `post`, `edge_encoder`) are used directly; the parts are not
    called. If one of them was replaced, or it or every module has hooks, all parts are called as
    modules, on messages that are stored. This is slower, and a warning says so once.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        aggregators: names or objects of `pna.aggregators`, or your own.
        scalers: names or objects, as in `pna.scale`.
        deg: histogram of in-degrees over the training set, or a `DegreeStats`; may be None if the
            only scaler is the identity.
        edge_dim: features of an edge. Default: none.
        towers: number of towers, narrow layers that run in parallel.
        pre_layers: layers of M.
        post_layers: layers of U.
        divide_input: each tower sees its share of the input only.
        act: activation between the layers of M and of U: a name, a module, a function, or None.
        act_kwargs: arguments of the activation.
        train_norm: learn δ.
        std: "paper" for sqrt(var + ε), or "pyg" for sqrt(var) if var > ε, otherwise 0.
        swap_extrema: max and min see M(x_j, x_i), as in the authors' multi-task code.
        encode_edges: map edge features to the width of a tower's input by a linear layer before M.
            Otherwise M gets them unchanged, as in the authors' benchmark code.
        mixing: apply the last linear layer; otherwise the outputs of the towers are concatenated.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair of tensors, see `forward`; optional
        - **output**: (nodes, out_channels)
    """

    _shown = ("towers", "edge_dim")

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregators: Sequence[str | Aggregator | type[Aggregator]],
        scalers: Sequence[str | Power | Linear],
        deg: Tensor | DegreeStats | None,
        edge_dim: int | None = None,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        divide_input: bool = False,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        act_kwargs: dict[str, Any] | None = None,
        train_norm: bool = False,
        *,
        std: StdConvention = "paper",
        swap_extrema: bool = False,
        encode_edges: bool = True,
        mixing: bool = True,
    ) -> None:
        layers = {"pre_layers": pre_layers, "post_layers": post_layers}
        super().__init__(in_channels, out_channels, edge_dim, towers=towers, **layers)
        _check_towers(in_channels, out_channels, towers, divide_input)
        self.towers, self.divide_input = towers, divide_input
        self.swap_extrema = swap_extrema
        self.F_in = in_channels // towers if divide_input else in_channels
        self.F_out = out_channels // towers
        self.neighbourhood = Neighbourhood(aggregators, scalers, deg, train_norm, std)
        self.act = activation(act, act_kwargs)
        results = self.neighbourhood.num_aggregators * self.neighbourhood.num_scalers
        encoded = edge_dim is not None and encode_edges
        self.edge_encoder = nn.Linear(edge_dim, self.F_in) if edge_dim and encoded else None
        of_edge = self.F_in if encoded else edge_dim or 0
        self.pre = tower_layers(towers, 2 * self.F_in + of_edge, self.F_in, pre_layers)
        self.post = tower_layers(towers, (results + 1) * self.F_in, self.F_out, post_layers)
        self.lin = nn.Linear(out_channels, out_channels) if mixing else None
        self._shapes = (
            (towers, self.F_in, 2 * self.F_in + of_edge),
            (towers, self.F_out, (results + 1) * self.F_in),
            (self.F_in, edge_dim),
        )
        chosen = self.neighbourhood.aggregators
        self._swapped, views = _views(chosen, swap_extrema)
        self._times = tuple(times_shifted(chosen))
        usual = pre_layers == 1 and self._swapped == [False]
        self._request = _request(chosen) if usual else None
        self._form = Form(
            width=self.F_in,
            scalers=self.neighbourhood.num_scalers,
            aggregators=self.neighbourhood.num_aggregators,
            views=views,
        )
        self._plans = {}
        if self._request is not None:
            of_layer = (self._form, self._request, self._times, self._shares)
            self._plans = {name: LayerPlan(*of_layer, name) for name in ("cpu", "triton")}
        self.register_load_state_dict_pre_hook(pyg.rename_keys)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses assignments without effect: layers under PyG's names, or not in a list."""
        ours = name.removesuffix("_nns")
        if ours in ("pre", "post") and not (name == ours and isinstance(value, nn.ModuleList)):
            raise TypeError(
                f"got {name} = {type(value).__name__}, expected a torch.nn.ModuleList as {ours}, "
                f"which holds layers for all towers at once; replace one of them: {ours}[0] = …"
            )
        super().__setattr__(name, value)

    @classmethod
    def from_pyg(cls, conv: nn.Module) -> PNAConv:
        """A layer with the weights and the results of a `torch_geometric.nn.PNAConv`.

        It has ``std="pyg"``. Not supported: aggregations that this package does not have, an
        activation with weights, and ``flow="target_to_source"``.
        """
        arguments = pyg.arguments_of(conv)
        parameter = next(conv.parameters())
        layer = cls(**arguments, std="pyg").to(parameter.device, parameter.dtype)
        layer.load_state_dict(conv.state_dict())
        layer.neighbourhood.keep_averages()
        pyg.freeze_alike(layer, conv)
        return layer.train(conv.training)

    def reset_parameters(self) -> None:
        self.neighbourhood.reset_parameters()
        for layer in (*self.pre, *self.post, self.lin, self.edge_encoder):
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels).

        Args:
            x: node features.
            edge_index: (2, edges), or an `Adjacency`, which saves making one. The adjacency of an
                ``edge_index`` tensor is cached as long as the tensor exists.
            edge_attr: one of
                (edges, edge_dim), in the order of the edges;
                a pair (table, index): (types, edge_dim), and (edges,) the row of each edge;
                a pair (basis, coefficients): (k, edge_dim) and (edges, k) with k at most 16, whose
                product coefficients @ basis is the edge features.
        """
        called = self._called_part()
        bias = getattr(next(iter(self.pre)), "bias", None)  # the weight may be parametrised
        of_layer = bias if isinstance(bias, Tensor) else x
        adjacency = self._checked(x, edge_index, edge_attr, of_layer, basis=True)
        if called is not None:
            self._warn_once(called)
        if called is not None or not fast_paths.is_on("split"):
            return plain_layer(self, x, adjacency, edge_attr)
        if in_transform() and self._is_narrow:
            return self._prepared()(x, adjacency, edge_attr)
        factors = self.neighbourhood.factors(adjacency, x.dtype)
        edge, at = edge_inputs(edge_attr)
        plan, reads_lin = self._plan(x, factors), self._reads_lin
        is_last = reads_lin and len(self.post) == 1  # the mixing layer follows U at once
        if plan is not None and is_small(plan, x, adjacency):
            compute = small_layer
        elif plan is not None and is_small_on_cpu(
            plan, x, adjacency, at, first_of(self.post).weight
        ):
            compute = small_layer_on_cpu
        else:
            compute = pna_layer
            is_last = is_last and self.towers == 1  # both are multiplied into one linear map
            plan = None if torch.compiler.is_compiling() else plan
        weights = self._weights(is_last)
        if plan is None:
            out = self._step_by_step(x, adjacency, edge, at, factors, weights)
        elif torch.is_autocast_enabled(x.device.type):
            x, edge, at, *own = converted(x, edge, at, *weights)
            with torch.autocast(x.device.type, enabled=False):
                out = compute(plan, x, adjacency, edge, at, factors, Weights(*own))
        else:
            out = compute(plan, x, adjacency, edge, at, factors, weights)
        out = out.flatten(1)
        if is_last:
            return out
        if len(self.post) > 1:
            out = out.unflatten(1, (self.towers, -1))
        for k, layer in list(enumerate(self.post))[1:]:
            out = call(f"post[{k}]", layer, self.act(out), self.F_out)
        out, lin = out.flatten(1), self.lin
        if lin is None:
            return out
        if reads_lin:
            return mixing_layer(plan, out, lin.weight, lin.bias)
        return call("lin", lin, out)

    def prepared(self) -> Callable[..., Tensor]:
        """The layer for many calls with the present weights, which a narrow layer rearranges."""
        if not self._is_narrow or self._called_part() is not None:
            return self
        if not (fast_paths.is_on("split") and fast_paths.is_on("prepared")):
            return self
        return self._prepared()

    def _prepared(self) -> PreparedPNA:
        """A narrow layer with its weights rearranged."""
        lin = self.lin
        assert lin is not None
        with torch.autocast(lin.bias.device.type, enabled=False):
            form, weights = self._form, self._weights(self.towers == 1)
            if self.towers == 1:
                parts = split(form, weights)
            else:
                parts = join_towers(form, weights, self._shares, lin.weight, lin.bias)
        return PreparedPNA(
            parts, self.neighbourhood, self._form.views, self._swapped, self._request
        )

    @property
    def _is_narrow(self) -> bool:
        """Whether joining the towers is faster: a narrow layer with one layer in M and in U."""
        width = max(self.towers * self.F_in, self.in_channels, self.out_channels)
        alone = self._is_linear and len(self.post) == 1
        if width > NARROW_LAYER or not alone or not self._reads_lin:
            return False
        return self.towers == 1 or fast_paths.is_on("joined_towers")

    def _plan(self, x: Tensor, factors: Tensor) -> LayerPlan | None:
        """The plan of the fused layer, one step of autograd; None if it cannot be used."""
        if self._request is None or not self._is_linear:
            return None
        if in_transform() or factors.requires_grad:
            return None
        backend = choose(x.device)
        if backend == "reference" or (backend == "triton" and x.dtype == torch.float64):
            return None
        if not (has_kernels(backend) and fast_paths.is_on("degree_linear")):
            return None
        return self._plans[backend] if fast_paths.is_on("fused") else None

    def _step_by_step(
        self,
        x: Tensor,
        adjacency: Adjacency,
        edge: Tensor | None,
        at: Tensor | None,
        factors: Tensor,
        weights: Weights,
    ) -> Tensor:
        """The layer as separate operations, for all transforms of torch: (nodes, towers, F_out)."""
        with torch.autocast(x.device.type, enabled=False):
            parts = split(self._form, weights)
        if at is not None and at.is_floating_point():
            at = at.to(working_type(x))
        term = as_given(*edge_term(edge, at, parts.edge))
        products = project_each(x, *weights_of_x(parts, self._swapped), self._shares)
        out = next(products)
        every = self.neighbourhood.aggregators
        for which, mix in zip(self._form.views, parts.mixes, strict=True):
            aggregators = [every[i] for i in which]
            see: Any = aggregate_shifted if self._is_linear else self._aggregate_messages
            results, shift, times = see(products, adjacency, aggregators, term)
            results = results.unflatten(2, (self.towers, self.F_in))
            out = degree_linear(results, mix, factors, adjacency, out, shift, times)
        return out

    @property
    def _shares(self) -> int:
        """Into how many shares the input is divided."""
        return self.towers if self.divide_input else 1

    @property
    def _is_linear(self) -> bool:
        """Whether M is one linear layer, which can be split."""
        return len(self.pre) == 1

    @property
    def _reads_lin(self) -> bool:
        """Whether the weight and bias of the mixing layer can be used without calling it."""
        lin = self.lin
        if lin is None or not may_be_read(lin, nn.Linear):
            return False
        return lin.bias is not None and lin.in_features == self.out_channels

    def _called_part(self) -> str | None:
        """The name of the first part that must be called as a module; None if there is none."""
        for name, layer in named_layers("pre", self.pre) + named_layers("post", self.post):
            if not may_be_read(layer, TowerLinear):
                return name
        encoder = self.edge_encoder
        if encoder is None or (may_be_read(encoder, nn.Linear) and encoder.bias is not None):
            return None
        return "edge_encoder"

    def _weights(self, with_mixing: bool) -> Weights:
        """The weights of M and U, and of the mixing layer if it is to be applied as well."""
        pre, post, encoder = first_of(self.pre), first_of(self.post), self.edge_encoder
        lin = self.lin if with_mixing else None
        weights = Weights(
            pre.weight,
            pre.bias,
            post.weight,
            post.bias,
            *((None, None) if lin is None else (lin.weight, lin.bias)),
            *((None, None) if encoder is None else (encoder.weight, encoder.bias)),
        )
        parts = (weights.pre, weights.post, weights.encoder)
        names = ("pre[0]", "post[0]", "edge_encoder")
        for name, weight, shape in zip(names, parts, self._shapes, strict=True):
            if weight is not None and weight.shape != shape:
                raise ValueError(
                    f"got {name} with a weight of shape {tuple(weight.shape)}, expected {shape}, "
                    "as the layer was made; replace it with one of that shape"
                )
        as_they_are = 2 * self.F_in + (self.edge_dim or 0)  # inputs of M without an encoder
        if encoder is None and weights.pre.shape[2] != as_they_are:
            raise ValueError(
                f"got edge_encoder = None, expected a module that takes (edges, {self.edge_dim}) "
                f"to (edges, {self.F_in}), as the layer was made; to give M the edge features as "
                "they are, make it with encode_edges=False"
            )
        return weights

    def _aggregate_messages(
        self,
        products: Iterator[Tensor],
        adjacency: Adjacency,
        aggregators: list[Aggregator],
        edge: EdgeFeatures,
    ) -> tuple[Tensor, Tensor | None, Sequence[int]]:
        """Aggregates of stored messages, for an M of several layers; nothing is left to add."""
        senders, receivers = adjacency.edge_index
        messages = next(products)[senders] + next(products)[receivers]
        if isinstance(edge, tuple):
            first, second = edge
            edge = first @ second if second.is_floating_point() else first[second.long()]
        if edge is not None:
            messages = messages + edge.view_as(messages)
        for k, layer in enumerate(self.pre[1:], 1):
            messages = call(f"pre[{k}]", layer, self.act(messages), self.F_in)
        messages = messages.flatten(1)
        nothing = messages.new_zeros((adjacency.num_senders, messages.shape[1]))
        return aggregate(nothing, adjacency, aggregators, messages), None, ()

    def memory(
        self, num_nodes: int, num_edges: int, training: bool = True, *, table: bool = True
    ) -> int:
        """About how many bytes a call needs at its peak on a GPU, besides x and the edge_index.

        This includes the Adjacency, all intermediate tensors, stored messages (also if parts are
        called as modules) and, with `training`, a backward pass with the gradient of x. Features
        are assumed to have the dtype of the parameters.

        Args:
            num_nodes: nodes of the graph.
            num_edges: edges of the graph.
            training: whether a backward pass follows.
            table: whether edge features wider than 16 are given as (table, index), not per edge.
        """
        dense = self.edge_dim is not None and self.edge_dim > NARROW and not table
        called = self._called_part() is not None
        return memory.estimate(self, num_nodes, num_edges, training, dense, called)


def _views(
    aggregators: list[Aggregator], swap_extrema: bool
) -> tuple[list[bool], tuple[tuple[int, ...], ...]]:
    """Groups of aggregators, those that see M(x_i, x_j) and those that see M(x_j, x_i).

    Returns whether each group is swapped, and the indices of its aggregators.
    """
    swapped = [swap_extrema and isinstance(aggregator, Max | Min) for aggregator in aggregators]
    sides = [side for side in (False, True) if side in swapped]
    return sides, tuple(tuple(i for i, s in enumerate(swapped) if s == side) for side in sides)


def _request(aggregators: list[Aggregator]) -> Request | None:
    """The request to the kernels, if they can compute all aggregators; otherwise None."""
    request, indices = one_pass(aggregators)
    exact = list(indices.values()) == list(range(len(aggregators)))
    return request if exact and all(map(is_shifted_by_kernel, aggregators)) else None


def _check_towers(in_channels: int, out_channels: int, towers: int, divide_input: bool) -> None:
    if divide_input and in_channels % towers != 0:
        raise ValueError(
            f"got in_channels={in_channels} to divide among {towers} towers, expected a multiple "
            f"of {towers}; or pass divide_input=False, so that every tower sees all of them"
        )
    if out_channels % towers != 0:
        raise ValueError(
            f"got out_channels={out_channels} from {towers} towers, expected a multiple of {towers}"
        )


def _register(name: str, aggregators: str, scalers: str, restriction: Restriction) -> None:
    make = partial(PNAConv, aggregators=aggregators.split(), scalers=scalers.split())
    register(name, Entry(make, act="leaky_relu", restriction=restriction))


_register("pna", "mean std max min", "identity amplification attenuation", "recurrence")
_register("pna-no-scalers", "mean std max min", "identity", "recurrence")
_register("pna-moments", "mean std moment_3", "identity amplification attenuation", "all")
_register("mpnn-sum", "sum", "identity", "recurrence")
_register("mpnn-max", "max", "identity", "recurrence")
_register("mpnn-mean-max-min", "mean max min", "identity", "all")
