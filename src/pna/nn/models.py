"""Complete models."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, cast, get_args

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency, as_adjacency, values_of
from pna.names import check_keywords, lookup
from pna.nn.activation import activation
from pna.nn.conv.inputs import EdgeFeatures, check_sizes
from pna.nn.conv.pna import PNAConv
from pna.nn.conv.pyg import need_pyg

Jump = Literal["last", "cat", "max", "lstm"]

_JUMPS = {name: name for name in get_args(Jump)}


class PNA(nn.Module):
    """Several `PNAConv` layers with normalisation, activation and dropout between them.

    The arguments and results are those of `torch_geometric.nn.models.PNA`. `load_state_dict` also
    takes the weights of PyG's model; with ``std="pyg"`` the results are the same.

    Args:
        in_channels: features of a node, or -1 to take them from the first call.
        hidden_channels: features of a node between layers.
        num_layers: number of layers.
        out_channels: features of a node in the output. Default: `hidden_channels`.
        dropout: probability of dropping a feature after a layer.
        act: activation after a layer: a name, a module, a function, or None.
        act_first: apply the activation before the normalisation, not after.
        act_kwargs: arguments of the activation.
        norm: "batch_norm", the name of another normalisation of PyG, which must be installed then,
            a module that is copied for every layer, or None.
        norm_kwargs: arguments of the normalisation.
        jk: how the outputs of all layers are combined before a final linear layer: "last", "cat",
            "max", or "lstm", which needs PyG. Default: the output of the last convolution is
            returned.
        **kwargs: arguments of `PNAConv`: aggregators, scalers, deg, edge_dim, towers, std, …

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair as in `PNAConv`; optional
        - **output**: (nodes, out_channels)
    """

    supports_edge_weight: Final = False
    supports_edge_attr: Final = True

    @check_keywords(PNAConv)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        act_first: bool = False,
        act_kwargs: dict[str, Any] | None = None,
        norm: str | nn.Module | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: Jump | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        check_sizes(
            in_channels=None if in_channels == -1 else in_channels,
            hidden_channels=hidden_channels,
            num_layers=num_layers,
            out_channels=out_channels,
        )
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.num_layers = num_layers
        self.out_channels = hidden_channels if out_channels is None else out_channels
        self.act, self.act_first = activation(act, act_kwargs), act_first
        self.dropout = nn.Dropout(dropout)
        self.jk_mode = None if jk is None else lookup("jk", jk, _JUMPS)
        widths = [in_channels, *[hidden_channels] * num_layers]
        if jk is None:
            widths[-1] = self.out_channels
        self.convs = nn.ModuleList(
            PNAConv(widths[i], widths[i + 1], **kwargs) for i in range(num_layers)
        )
        joints = num_layers - 1 if jk is None else num_layers
        self.norm, self.norm_kwargs = norm if isinstance(norm, str) else None, norm_kwargs
        made = _norm(norm, hidden_channels, norm_kwargs or {})
        self.norms = nn.ModuleList(copy.deepcopy(made) for _ in range(joints))
        self.supports_norm_batch = "batch" in inspect.signature(made.forward).parameters
        self.jk = self.lin = None
        if jk == "lstm":
            pyg = need_pyg('jk="lstm"')
            self.jk = pyg.JumpingKnowledge("lstm", hidden_channels, num_layers)
        if jk is not None:
            joined = hidden_channels * (num_layers if jk == "cat" else 1)
            self.lin = nn.Linear(joined, self.out_channels)
        self.register_load_state_dict_pre_hook(_rename_norms)

    @classmethod
    def from_pyg(cls, model: nn.Module) -> PNA:
        """A model with the weights and the results of a `torch_geometric.nn.models.PNA`.

        It has ``std="pyg"``. Layers that `PNAConv.from_pyg` does not support are refused.
        """
        source: Any = model
        if type(model).__name__ != "PNA" or not hasattr(model, "jk_mode") or isinstance(model, PNA):
            raise TypeError(
                f"got a {type(model).__module__}.{type(model).__name__}, expected a "
                "torch_geometric.nn.models.PNA"
            )
        made = cls(
            source.in_channels,
            source.hidden_channels,
            source.num_layers,
            source.out_channels,
            dropout=source.dropout.p,
            act=copy.deepcopy(source.act),
            act_first=source.act_first,
            norm=source.norm or source.norms[0],
            norm_kwargs=source.norm_kwargs,
            jk=source.jk_mode,
            **_PLACEHOLDER,
        )
        made.convs = nn.ModuleList(map(PNAConv.from_pyg, source.convs))
        return _finished(made, source, source.state_dict())

    def to_pyg(self) -> nn.Module:
        """A `torch_geometric.nn.models.PNA` with the weights and the results of this model.

        It raises if a layer uses what PyG does not have, as `PNAConv.to_pyg` does.
        """
        pyg, convs = need_pyg("to_pyg"), [conv.to_pyg() for conv in self._layers]
        made = pyg.models.PNA(
            convs[0].in_channels,
            self.hidden_channels,
            self.num_layers,
            self.out_channels,
            dropout=self.dropout.p,
            act=copy.deepcopy(self.act),
            act_first=self.act_first,
            norm=self.norm or next(iter(self.norms), None),
            norm_kwargs=self.norm_kwargs,
            jk=self.jk_mode,
            **_PLACEHOLDER,
        )
        made.convs = nn.ModuleList(convs)
        return _finished(made, self, self.pyg_state_dict())

    def pyg_state_dict(self) -> dict[str, Tensor]:
        """The state of this model under the names of PyG's; it raises where `to_pyg` does."""
        state = {k: v for k, v in self.state_dict().items() if not k.startswith("convs.")}
        for i, conv in enumerate(self._layers):
            state |= {f"convs.{i}.{k}": v for k, v in conv.pyg_state_dict().items()}
        for i, norm in enumerate(self.norms):
            if self.norm is not None and isinstance(norm, nn.BatchNorm1d):  # PyG's contains it
                for name in norm.state_dict():
                    state[f"norms.{i}.module.{name}"] = state.pop(f"norms.{i}.{name}")
        return state

    @property
    def _layers(self) -> Iterator[PNAConv]:
        return (cast(PNAConv, conv) for conv in self.convs)

    def reset_parameters(self) -> None:
        for module in (*self.convs, *self.norms, self.jk, self.lin):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency | Sequence[Adjacency],
        edge_weight: None = None,
        edge_attr: EdgeFeatures = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None,
        num_sampled_edges_per_hop: list[int] | None = None,
    ) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels).

        Args:
            x: node features.
            edge_index: (2, edges), or an `Adjacency`, which saves making one.
            edge_weight: must be None, as PNA does not use it; PyG's models have it here.
            edge_attr: edge features, as in `PNAConv`.
            batch: (nodes,) the graph of every node, for normalisations over a graph. Without it,
                all nodes are one graph.
            batch_size: number of graphs. Default: as `batch` says.
            num_sampled_nodes_per_hop: nodes that a neighbour loader sampled in each hop. Every
                layer then leaves out the nodes and edges that the output of the seeds does not
                need. Only the rows of the seeds are correct.
            num_sampled_edges_per_hop: sampled edges of each hop; needed together with the nodes.
        """
        if edge_weight is not None:
            raise ValueError(
                "got edge_weight, expected none: PNA has edge features, not weights; pass "
                "edge_attr=edge_weight[:, None] with edge_dim=1"
            )
        nodes, edges = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
        if (nodes is None) != (edges is None):
            raise ValueError(
                "got one of num_sampled_nodes_per_hop and num_sampled_edges_per_hop, expected both "
                "or none; a neighbour loader gives both"
            )
        if nodes is not None and self.jk_mode not in (None, "last"):
            raise ValueError(
                f"got num_sampled_nodes_per_hop for a model with jk={self.jk_mode!r}, expected "
                "None or 'last': layers leave out different nodes; leave both arguments out"
            )
        adjacency = as_adjacency(edge_index, x.shape[0])
        edge_attr = values_of(edge_index) if edge_attr is None else edge_attr
        results = []
        for i, conv in enumerate(self.convs):
            if nodes is not None and edges is not None and i > 0:
                x, adjacency, edge_attr = _trim(x, adjacency, edge_attr, nodes[-i], edges[-i])
            x = conv(x, adjacency, edge_attr)
            if i < len(self.norms):
                x = self._between(i, x, batch, batch_size)
                x = self.dropout(x)
            results.append(x)
        if self.jk_mode == "cat":
            x = torch.cat(results, 1)
        elif self.jk_mode == "max":
            x = torch.stack(results).max(0).values
        elif self.jk is not None:
            x = self.jk(results)
        return x if self.lin is None else self.lin(x)

    def _between(self, layer: int, x: Tensor, *of_norm: Tensor | int | None) -> Tensor:
        """The activation and the normalisation after a layer."""
        norm = self.norms[layer]
        x = self.act(x) if self.act_first else x
        x = norm(x, *of_norm) if self.supports_norm_batch else norm(x)
        return x if self.act_first else self.act(x)

    @torch.no_grad()
    def inference_per_layer(
        self, layer: int, x: Tensor, edge_index: Tensor, batch_size: int
    ) -> Tensor:
        """One step of `inference`: the output of a layer for the first `batch_size` nodes."""
        x = self.convs[layer](x, edge_index)[:batch_size]
        x = self._between(layer, x) if layer < len(self.norms) else x
        is_last = layer == self.num_layers - 1
        return self.lin(x) if is_last and self.lin is not None else x

    @torch.no_grad()
    def inference(self, loader: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The output of all nodes of a large graph, computed layer by layer on batches of nodes.

        The arguments are those of PyG's models. The loader must be a
        `torch_geometric.loader.NeighborLoader` of all nodes in order, with ``num_neighbors=[-1]``.
        """
        if self.training:
            raise ValueError("got a model in training, expected model.eval() before inference")
        if self.jk_mode not in (None, "last"):
            raise ValueError(
                f"got a model with jk={self.jk_mode!r}, expected None or 'last': inference keeps "
                "the outputs of one layer only; call the model on the whole graph"
            )
        if next(self._layers).edge_dim is not None:
            raise ValueError(
                "got a model with edge_dim, expected one without: inference loads no edge "
                "features, as in PyG; call the model on the whole graph"
            )
        return need_pyg("inference").models.basic_gnn.BasicGNN.inference(
            self, loader, *args, **kwargs
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"num_layers={self.num_layers})"
        )


#: Arguments of layers that are replaced.
_PLACEHOLDER: dict[str, Any] = dict(aggregators=["mean"], scalers=["identity"], deg=torch.ones(1))


def _finished(made: nn.Module, source: nn.Module, state: dict[str, Tensor]) -> Any:
    """The model with the device, dtype, weights and modes of another; what is frozen stays so."""
    parameter = next(source.parameters())
    made.to(parameter.device, parameter.dtype).load_state_dict(state)
    modes = {_place(name): module.training for name, module in source.named_modules()}
    frozen = {_place(name) for name, p in source.named_parameters() if not p.requires_grad}
    for name, module in made.named_modules():
        if not name.startswith("convs."):  # which were converted with theirs
            module.training = modes.get(_place(name), source.training)
    for name, parameter in made.named_parameters():
        if not name.startswith("convs."):
            parameter.requires_grad_(_place(name) not in frozen)
    return made


def _place(name: str) -> str:
    """The name of a part without that of PyG's wrapper of a batch normalisation."""
    return name.replace(".module", "")


def _norm(norm: str | nn.Module | None, width: int, arguments: dict[str, Any]) -> nn.Module:
    if norm is None or isinstance(norm, nn.Module):
        return nn.Identity() if norm is None else norm
    if not isinstance(norm, str):
        raise TypeError(
            f"got norm={norm!r}, expected a name such as 'batch_norm', or a module to copy for "
            "every layer"
        )
    name = _plain(norm)
    if name in ("batch", "batchnorm") and "allow_single_element" not in arguments:
        return nn.BatchNorm1d(width, **arguments)
    pyg = need_pyg(f"norm={norm!r}")
    known = [_plain(kind) for kind in pyg.norm.__all__]
    lookup("norm", name, dict.fromkeys([*known, *(k.removesuffix("norm") for k in known)]))
    return pyg.resolver.normalization_resolver(norm, width, **arguments)


def _plain(name: str) -> str:
    """A name as PyG compares it."""
    return name.lower().translate({ord(c): None for c in "-_ "})


def _trim(
    x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures, nodes: int, edges: int
) -> tuple[Tensor, Adjacency, EdgeFeatures]:
    """Without the last of the nodes and edges, which a neighbour loader sampled last."""
    num_nodes, num_edges = x.shape[0] - nodes, adjacency.num_edges - edges
    edge_index, degree = adjacency.edge_index[:, :num_edges], adjacency.degree[:num_nodes]
    if isinstance(edge_attr, tuple | list):
        edge_attr = (edge_attr[0], edge_attr[1][:num_edges])
    elif edge_attr is not None:
        edge_attr = edge_attr[:num_edges]
    trimmed = Adjacency.from_edge_index(edge_index, num_nodes, degree)
    return x[:num_nodes], trimmed, edge_attr


def _rename_norms(model: PNA, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Remove the name of PyG's wrapper from the batch normalisations of a state dict."""
    for i, norm in enumerate(model.norms):
        begin = f"{prefix}norms.{i}.module."
        if isinstance(norm, nn.BatchNorm1d):
            for name in [name for name in state if name.startswith(begin)]:
                state[f"{prefix}norms.{i}.{name.removeprefix(begin)}"] = state.pop(name)
