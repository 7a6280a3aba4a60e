"""The PNA layer, with PyG's signature and less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pna import fast_paths
from pna.adjacency import Adjacency, as_adjacency, values_of
from pna.degree import DegreeStats, Linear, Power
from pna.names import check_keywords, lookup
from pna.nn.activation import activation
from pna.nn.conv import lazy, memory, pyg
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.fused import edge_term, mixing_layer, pna_layer, project, project_each
from pna.nn.conv.inputs import (
    NARROW,
    EdgeFeatures,
    check_bipartite,
    check_edges,
    check_features,
    check_graph,
    check_pair,
    converted,
    edge_inputs,
    widths_of,
    working_type,
)
from pna.nn.conv.message_passing import recognise
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

#: From which row of ``edge_index`` messages flow to which, as in PyG.
Flow = Literal["source_to_target", "target_to_source"]

_FLOWS = {flow: flow for flow in get_args(Flow)}

#: The usual flow.
FLOW: Flow = "source_to_target"

#: Node features, or those of senders and of receivers.
Features = Tensor | tuple[Tensor, Tensor]

#: Along which edges a layer aggregates: incoming ones, or incoming and outgoing ones.
Direction = Literal["in", "both"]

_DIRECTIONS: dict[Direction, bool] = {"in": False, "both": True}


class Outgoing(nn.Module):
    """What `PNAConv` has for outgoing edges besides its own parts, which are for incoming ones."""

    def __init__(
        self, pre: nn.ModuleList, edge_encoder: nn.Module | None, neighbourhood: Neighbourhood
    ) -> None:
        super().__init__()
        self.pre, self.edge_encoder, self.neighbourhood = pre, edge_encoder, neighbourhood


class PNAConv(Conv):
    """Principal Neighbourhood Aggregation: x_i' = U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji)).

    ⊕ is every scaler times every aggregator. M and U are one linear layer each, or several with
    `pre_layers`, `post_layers` > 1. `towers` of them run in parallel, then one linear layer mixes
    their outputs. The arguments and shapes are those of PyG's `PNAConv`, and with ``std="pyg"``
    the results too.

    With one layer in M, M is split into the parts of the receiver, the sender and the edge. On a
    large graph no tensor then has a row of features for each edge: if edge features wider than 16
    are given for each, the products of a block of receivers exist at a time. On a small graph of a
    GPU, where launches of kernels take most of the time, the gradients of all messages and the
    inputs of U are stored. Aggregators without a kernel (moments, softmax, k-th smallest, your own)
    compute the messages of a block of receivers at a time. With more layers in M, all messages are
    stored: several tensors of shape (edges, towers × features).

    The weights of the parts (`pre`, `post`, `edge_encoder`) are used directly; the parts are not
    called. If one of them was replaced, or it or every module has hooks, all parts are called as
    modules, on messages that are stored. This is slower, and a warning says so once.

    Between two types of nodes, x is a pair: the features of senders and of receivers. The messages
    then have the width of the senders' features.

    With ``direction="both"`` the layer also aggregates along outgoing edges:
    x_i' = U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji), ⊕'_{i→j} M'(x_i, x_j, e_ij)). The scalers of ⊕' use
    out-degrees. M', its edge encoder and its δ are parts of their own, in `outgoing`.

    Args:
        in_channels: features of a node, or a pair: features of a sender and of a receiver. -1 takes
            a number from the first call.
        out_channels: features of a node in the output.
        aggregators: names or objects of `pna.aggregators`, or your own.
        scalers: names or objects, as in `pna.scale`.
        deg: histogram of in-degrees over the training set, or a `DegreeStats`; may be None if the
            only scaler is the identity. With ``direction="both"``, a pair: of in-degrees and of
            out-degrees.
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
        direction: "in" to aggregate along incoming edges, "both" also along outgoing ones.
        flow: "source_to_target", or "target_to_source" to turn all edges round.

    Shapes:
        - **x**: (nodes, in_channels), or a pair (senders, in_channels[0]) and (receivers,
          in_channels[1]); **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair of tensors, see `forward`; optional
        - **output**: (nodes, out_channels)
    """

    _shown = ("towers", "edge_dim")
    #: Whether an explainer of PyG masks the messages; set by the explainer.
    explain: bool | None = None
    _deferred: tuple[dict[str, Any], Any] | None = None  # of a layer with in_channels=-1

    @check_keywords()
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggregators: Sequence[str | Aggregator | type[Aggregator]],
        scalers: Sequence[str | Power | Linear],
        deg: Tensor | DegreeStats | Sequence[Tensor | DegreeStats] | None,
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
        direction: Direction = "in",
        flow: Flow = FLOW,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        is_lazy = lazy.is_unknown(in_channels)
        in_channels = (towers, towers) if is_lazy else in_channels  # until the first call
        layers = {"pre_layers": pre_layers, "post_layers": post_layers}
        self._widths = of_sender, of_receiver = widths_of(in_channels)
        super().__init__(of_sender, out_channels, edge_dim, towers=towers, **layers)
        if isinstance(in_channels, tuple | list):
            self.in_channels = self._widths
        both = lookup("direction", direction, _DIRECTIONS)
        degrees = _degrees(deg, both)
        _check_towers(self._widths, out_channels, towers, divide_input)
        _check_types_of_nodes(self._widths, both, swap_extrema)
        self.towers, self.divide_input = towers, divide_input
        self.swap_extrema, self.direction = swap_extrema, direction
        self.flow = lookup("flow", flow, _FLOWS)
        self.F_in = of_sender // towers if divide_input else of_sender
        self._own = of_receiver // towers if divide_input else of_receiver
        self.F_out = out_channels // towers
        self.neighbourhood = Neighbourhood(aggregators, scalers, degrees[0], train_norm, std)
        self.act = activation(act, act_kwargs)
        results = self.neighbourhood.num_aggregators * self.neighbourhood.num_scalers * self.F_in
        encoded = edge_dim is not None and encode_edges
        self.edge_encoder = nn.Linear(edge_dim, self.F_in) if edge_dim and encoded else None
        inputs = self._own + self.F_in + (self.F_in if encoded else edge_dim or 0)
        self.pre = tower_layers(towers, inputs, self.F_in, pre_layers)
        self.outgoing = None
        if both:
            self.outgoing = Outgoing(
                tower_layers(towers, inputs, self.F_in, pre_layers),
                nn.Linear(edge_dim, self.F_in) if edge_dim and encoded else None,
                Neighbourhood(
                    copy.deepcopy(aggregators), copy.deepcopy(scalers), degrees[1], train_norm, std
                ),
            )
        updated = self._own + results * len(degrees)
        self.post = tower_layers(towers, updated, self.F_out, post_layers)
        self.lin = nn.Linear(out_channels, out_channels) if mixing else None
        self._shapes = (
            (towers, self.F_in, inputs),
            (towers, self.F_out, updated),
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
        if is_lazy:
            lazy.defer(self, given)
        recognise(self)

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

        It has ``std="pyg"``. Not supported: aggregations that this package does not have, and an
        activation with weights. The layer may be one that `pna.patch_pyg` made.
        """
        if isinstance(conv, PNAConv) and type(conv).__module__ == "pna.nn.patched":
            conv = conv.to_pyg()
        layer = cls(**pyg.arguments_of(conv), std="pyg")
        pyg.adopt(layer, conv)
        return layer

    def to_pyg(self) -> nn.Module:
        """A `torch_geometric.nn.PNAConv` with the weights and the results of this layer.

        It raises if the layer uses what PyG does not have, such as the std of the paper, and says
        what that is.
        """
        return pyg.to_pyg(self)

    def pyg_state_dict(self) -> dict[str, Tensor]:
        """The state of this layer under the names of PyG's; it raises where `to_pyg` does."""
        return {name: value.detach() for name, value in pyg.pyg_state(self).items()}

    @staticmethod
    def get_degree_histogram(loader: Any) -> Tensor:
        """The histogram of in-degrees over all graphs of a loader, as PyG's `deg`."""
        return DegreeStats.from_graphs(loader).histogram

    def reset_parameters(self) -> None:
        if self._deferred is not None:
            return  # the first call draws the weights
        for side in self._sides:
            side.neighbourhood.reset_parameters()
            for layer in (*side.pre, side.edge_encoder):
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
        for layer in (*self.post, self.lin):
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()

    def forward(self, x: Features, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels).

        Args:
            x: node features, or a pair: features of senders and of receivers.
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
        x = tuple(x) if isinstance(x, list) else x
        edge_attr = values_of(edge_index) if edge_attr is None else edge_attr
        if self.flow == "target_to_source":
            edge_index = self._turned(x, edge_index)
        given = x[0] if isinstance(x, tuple) else x
        of_layer = bias if isinstance(bias, Tensor) else given
        adjacency = self._checked(x, edge_index, edge_attr, of_layer, basis=True)
        if called is not None:
            self._warn_once(called)
        if called is not None or self.explain or not fast_paths.is_on("split"):
            return plain_layer(self, x, adjacency, edge_attr)
        if in_transform() and self._is_narrow and isinstance(x, Tensor):
            return self._prepared()(x, adjacency, edge_attr)
        reads_lin = self._reads_lin
        is_last = reads_lin and len(self.post) == 1 and self.outgoing is None  # lin follows U[0]
        out, plan, is_last = self._updated(self, x, adjacency, edge_attr, is_last)
        if self.outgoing is not None:
            out = out + self._updated(self.outgoing, x, adjacency.reversed(), edge_attr, False)[0]
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

    def _updated(
        self,
        side: PNAConv | Outgoing,
        x: Features,
        adjacency: Adjacency,
        edge_attr: EdgeFeatures,
        with_mixing: bool,
    ) -> tuple[Tensor, LayerPlan | None, bool]:
        """What the first layer of U makes of x_i and the aggregates along one direction of edges.

        Returns (nodes, towers × F_out), the plan, and whether the mixing layer was applied too.
        `with_mixing` asks for it.
        """
        edge, at = edge_inputs(edge_attr, self.towers * self.F_in)
        of_nodes = x[0] if isinstance(x, tuple) else x
        factors = side.neighbourhood.factors(adjacency, of_nodes.dtype)
        plan, compute = self._way(x, adjacency, at, factors)
        if compute in (None, pna_layer):
            with_mixing = with_mixing and self.towers == 1  # U and lin become one linear map
        weights = self._weights(side, with_mixing)
        if compute is None or isinstance(x, tuple):
            out = self._step_by_step(side, x, adjacency, (edge, at), factors, weights)
        elif torch.is_autocast_enabled(x.device.type):
            x, edge, at, *own = converted(x, edge, at, *weights)
            with torch.autocast(of_nodes.device.type, enabled=False):
                out = compute(plan, x, adjacency, edge, at, factors, Weights(*own))
        else:
            out = compute(plan, x, adjacency, edge, at, factors, weights)
        return out.flatten(1), plan, with_mixing

    def _way(
        self, x: Features, adjacency: Adjacency, at: Tensor | None, factors: Tensor
    ) -> tuple[LayerPlan | None, Callable[..., Tensor] | None]:
        """The function that computes M, the aggregation and U in one step of autograd, and its
        plan; None if the operations must be separate."""
        plan = None if isinstance(x, tuple) else self._plan(x, factors)
        if isinstance(x, tuple) or plan is None:
            return None, None
        if is_small(plan, x, adjacency):
            return plan, small_layer
        if is_small_on_cpu(plan, x, adjacency, at, first_of(self.post).weight):
            return plan, small_layer_on_cpu
        return (None, None) if torch.compiler.is_compiling() else (plan, pna_layer)

    def _turned(self, x: Any, edge_index: Edges) -> Adjacency:
        """The graph in which the second row of `edge_index` sends to the first."""
        senders, receivers = x if isinstance(x, tuple) else (x, x)
        return as_adjacency(edge_index, (len(receivers), len(senders))).reversed()

    def _checked(
        self,
        x: Any,
        edge_index: Edges,
        edge_attr: EdgeFeatures,
        weight: Tensor,
        basis: bool = False,
    ) -> Adjacency:
        if not isinstance(x, tuple):
            if self._widths[0] != self._widths[1]:
                raise ValueError(
                    f"got one x, expected a pair: the layer was made with in_channels="
                    f"{self._widths}; pass (features of senders, features of receivers)"
                )
            check_features(x, self._widths[0], weight)
            adjacency = as_adjacency(edge_index, x.shape[0])
            check_graph(x, adjacency)
        elif self.outgoing is not None:
            raise ValueError(
                "got a pair x for a layer with direction='both', expected one tensor: along "
                "outgoing edges it would update the senders; make one layer for each direction"
            )
        else:
            adjacency = as_adjacency(edge_index, check_pair(x, self._widths, weight))
            check_bipartite(x, adjacency)
        check_edges(edge_attr, adjacency, self.edge_dim, weight, basis)
        return adjacency

    def prepared(self) -> Callable[..., Tensor]:
        """The layer for many calls with the present weights, which a narrow layer rearranges."""
        if not self._is_narrow or self._called_part() is not None or self.explain:
            return self
        if not (fast_paths.is_on("split") and fast_paths.is_on("prepared")):
            return self
        return self._prepared()

    def _prepared(self) -> PreparedPNA:
        """A narrow layer with its weights rearranged."""
        lin = self.lin
        assert lin is not None
        with torch.autocast(lin.bias.device.type, enabled=False):
            form, weights = self._form, self._weights(self, self.towers == 1)
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
        width = max(self.towers * self.F_in, *self._widths, self.out_channels)
        alone = self._is_linear and len(self.post) == 1 and self.outgoing is None
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
        side: PNAConv | Outgoing,
        x: Features,
        adjacency: Adjacency,
        edge: tuple[Tensor | None, Tensor | None],
        factors: Tensor,
        weights: Weights,
    ) -> Tensor:
        """The layer as separate operations, for all transforms of torch: (nodes, towers, F_out)."""
        sent, own = (x, x) if isinstance(x, Tensor) else x
        with torch.autocast(own.device.type, enabled=False):
            parts = split(self._form, weights)
        features, at = edge
        if at is not None and at.is_floating_point():
            at = at.to(working_type(own))
        term = as_given(*edge_term(features, at, parts.edge))
        of_x = weights_of_x(parts, self._swapped)
        if sent is own:
            products = project_each(own, *of_x, self._shares)
        else:
            products = map(
                project, (own, *[sent, own] * len(self._swapped)), *of_x, repeat(self._shares)
            )
        out = next(products)
        every = side.neighbourhood.aggregators
        see: Any = aggregate_shifted if self._is_linear else partial(self._see, side.pre)
        for which, mix in zip(self._form.views, parts.mixes, strict=True):
            aggregators = [every[i] for i in which]
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

    @property
    def _sides(self) -> list[PNAConv | Outgoing]:
        """The parts for incoming edges, and those for outgoing edges if there are any."""
        return [self] if self.outgoing is None else [self, self.outgoing]

    def _called_part(self) -> str | None:
        """The name of the first part that must be called as a module; None if there is none."""
        for name, layer in named_layers("post", self.post):
            if not may_be_read(layer, TowerLinear):
                return name
        for side in self._sides:
            prefix = "" if side is self else "outgoing."
            for name, layer in named_layers(f"{prefix}pre", side.pre):
                if not may_be_read(layer, TowerLinear):
                    return name
            encoder = side.edge_encoder
            if encoder is None or (may_be_read(encoder, nn.Linear) and encoder.bias is not None):
                continue
            return f"{prefix}edge_encoder"
        return None

    def _weights(self, side: PNAConv | Outgoing, with_mixing: bool) -> Weights:
        """The weights of M and U, and of the mixing layer if it is to be applied as well."""
        pre, post, encoder = first_of(side.pre), first_of(self.post), side.edge_encoder
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
        prefix = "" if side is self else "outgoing."
        names = (f"{prefix}pre[0]", "post[0]", f"{prefix}edge_encoder")
        for name, weight, shape in zip(names, parts, self._shapes, strict=True):
            if weight is not None and weight.shape != shape:
                raise ValueError(
                    f"got {name} with a weight of shape {tuple(weight.shape)}, expected {shape}, "
                    "as the layer was made; replace it with one of that shape"
                )
        as_they_are = self._own + self.F_in + (self.edge_dim or 0)  # inputs of M without an encoder
        if encoder is None and weights.pre.shape[2] != as_they_are:
            raise ValueError(
                f"got edge_encoder = None, expected a module that takes (edges, {self.edge_dim}) "
                f"to (edges, {self.F_in}), as the layer was made; to give M the edge features as "
                "they are, make it with encode_edges=False"
            )
        return weights if self.outgoing is None else self._share(side, weights)

    def _share(self, side: PNAConv | Outgoing, weights: Weights) -> Weights:
        """The weights with one direction's columns of U. x_i and the bias count as incoming."""
        results = self._form.scalers * self._form.aggregators * self.F_in
        keep, incoming, outgoing = weights.post.split([self._own, results, results], 2)
        if side is self:
            return weights._replace(post=torch.cat([keep, incoming], 2))
        post = torch.cat([torch.zeros_like(keep), outgoing], 2)
        return weights._replace(post=post, post_bias=torch.zeros_like(weights.post_bias))

    def _see(
        self,
        layers: nn.ModuleList,
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
        for k, layer in list(enumerate(layers))[1:]:
            messages = call(f"pre[{k}]", layer, self.act(messages), self.F_in)
        messages = messages.flatten(1)
        nothing = messages.new_zeros((adjacency.num_senders, messages.shape[1]))
        return aggregate(nothing, adjacency, aggregators, messages), None, ()

    def memory(
        self,
        num_nodes: int | tuple[int, int],
        num_edges: int,
        training: bool = True,
        *,
        table: bool = True,
    ) -> int:
        """About how many bytes a call needs at its peak on a GPU, besides x and the edge_index.

        This includes the Adjacency, all intermediate tensors, stored messages (also if parts are
        called as modules) and, with `training`, a backward pass with the gradient of x. Features
        are assumed to have the dtype of the parameters.

        Args:
            num_nodes: nodes of the graph, or a pair: senders and receivers.
            num_edges: edges of the graph.
            training: whether a backward pass follows.
            table: whether edge features wider than 16 are given as (table, index), not per edge.
        """
        called = self._called_part() is not None
        return memory.estimate(self, num_nodes, num_edges, training, self._dense(table), called)

    def kept_memory(
        self, num_nodes: int | tuple[int, int], num_edges: int, *, table: bool = True
    ) -> int:
        receivers = num_nodes if isinstance(num_nodes, int) else num_nodes[1]
        return memory.estimate_kept(self, receivers, num_edges, self._dense(table))

    def _dense(self, table: bool) -> bool:
        """Whether edge features are wide and given for every edge."""
        return self.edge_dim is not None and self.edge_dim > NARROW and not table

    def __repr__(self) -> str:
        shown = super().__repr__()  # the same as PyG's
        return shown if self.outgoing is None else f"{shown[:-1]}, direction={self.direction!r})"


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


def _degrees(deg: Any, both: bool) -> tuple[Any, ...]:
    """One statistics of degrees for each direction."""
    is_pair = isinstance(deg, tuple | list) and len(deg) == 2
    if deg is None or is_pair == both:
        return tuple(deg) if is_pair and both else (deg,) * (1 + both)
    if not both:
        return (deg,)
    raise TypeError(
        f"got deg of type {type(deg).__name__} with direction='both', expected a pair: statistics "
        "of in-degrees and of out-degrees; make them with pna.DegreeStats.from_graphs(graphs) and "
        "pna.DegreeStats.from_graphs(graphs, outgoing=True)"
    )


def _check_types_of_nodes(widths: tuple[int, int], both: bool, swap_extrema: bool) -> None:
    """Raise if senders and receivers have different widths, and an option cannot have that."""
    if widths[0] == widths[1] or not (both or swap_extrema):
        return
    if both:
        raise ValueError(
            f"got in_channels={widths} with direction='both', expected one number: along outgoing "
            "edges a layer between two types of nodes would update the senders; make one layer for "
            "each direction"
        )
    raise ValueError(
        f"got in_channels={widths} with swap_extrema=True, expected two equal numbers: max and min "
        "see senders in the place of receivers; bring them to one width"
    )


def _check_towers(
    widths: tuple[int, int], out_channels: int, towers: int, divide_input: bool
) -> None:
    for width in widths:
        if divide_input and width % towers != 0:
            raise ValueError(
                f"got in_channels={width} to divide among {towers} towers, expected a multiple of "
                f"{towers}; or pass divide_input=False, so that every tower sees all of them"
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
