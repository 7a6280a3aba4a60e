"""The base class of every graph convolution of this package."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from pna.adjacency import (
    BYTES_PER_EDGE,
    BYTES_PER_NODE,
    WITHOUT_TORCHSCRIPT,
    Adjacency,
    as_adjacency,
)
from pna.nn.conv.inputs import EdgeFeatures, check_edges, check_features, check_graph, check_sizes
from pna.nn.hooks import all_are_hooked, is_hooked

Edges = Tensor | Adjacency | Sequence[Adjacency]

#: Methods that PyG's `MessagePassing` calls, and no layer here does.
OF_MESSAGE_PASSING = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")


def refuse_scripting(module: nn.Module) -> NoReturn:
    """Raise, because a module cannot be compiled by `torch.jit.script`."""
    raise TypeError(f"got {type(module).__name__} in torch.jit.script, {WITHOUT_TORCHSCRIPT}")


class Conv(nn.Module):
    """A layer whose forward does all of its work; parts of it cannot be overridden one by one.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        edge_dim: features of an edge; None if edges have no features.
        **sizes: other arguments that must be whole numbers of at least 1.
    """

    takes_edge_features: ClassVar[bool] = True
    #: Arguments that the representation shows after the channels.
    _shown: ClassVar[tuple[str, ...]] = ()
    #: Rows of features in training: for each node and each edge, those that are kept for the
    #: backward pass, then those that exist at the peak besides. Fitted to measurements.
    _memory_rows: ClassVar[tuple[float, float, float, float]] = (2, 0, 4, 0)
    _own_methods: ClassVar[frozenset[str]] = frozenset()
    _warned = False

    def __init_subclass__(cls, own_methods: Sequence[str] = (), **kwargs: Any) -> None:
        """`own_methods`: names of `MessagePassing` that mean something else in this class."""
        super().__init_subclass__(**kwargs)
        cls._own_methods = cls._own_methods.union(own_methods)
        for name in OF_MESSAGE_PASSING:
            if hasattr(cls, name) and name not in cls._own_methods:
                raise TypeError(
                    f"got {cls.__name__}.{name}, which would never be called, expected a subclass "
                    f"without {', '.join(OF_MESSAGE_PASSING)}: these layers compute messages "
                    "inside their kernels; override forward and use pna.aggregate, or pass an "
                    "aggregator of your own"
                )

    def __init__(
        self, in_channels: int, out_channels: int, edge_dim: int | None = None, **sizes: int
    ) -> None:
        super().__init__()
        if edge_dim is not None and not self.takes_edge_features:
            raise ValueError(
                f"got edge_dim={edge_dim}, expected None: {type(self).__name__} does not support "
                "edge features; leave it out, or use GATConv, GINConv, MoNetConv or GatedGCNConv"
            )
        check_sizes(in_channels=in_channels, out_channels=out_channels, edge_dim=edge_dim, **sizes)
        self.in_channels: Any = in_channels  # a pair in a layer between two types of nodes
        self.out_channels, self.edge_dim = out_channels, edge_dim

    def reset_parameters(self) -> None:
        """Draws the weights of all parts anew."""
        modules: Iterable[Any] = self.modules()
        for module in modules:
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def memory(
        self,
        num_nodes: int | tuple[int, int],
        num_edges: int,
        training: bool = True,
        *,
        table: bool = True,
    ) -> int:
        """About how many bytes a call needs at its peak, as `PNAConv.memory`: a coarse estimate."""
        nodes = num_nodes if isinstance(num_nodes, int) else max(num_nodes)
        _, _, per_node, per_edge = self._memory_rows
        more = (per_node * nodes + per_edge * num_edges) * self._row_bytes
        kept = self.kept_memory(num_nodes, num_edges, table=table) if training else 0
        return BYTES_PER_EDGE * num_edges + BYTES_PER_NODE * nodes + kept + round(more)

    def kept_memory(
        self, num_nodes: int | tuple[int, int], num_edges: int, *, table: bool = True
    ) -> int:
        """The part of `memory` that is kept from the forward pass to the backward pass."""
        nodes = num_nodes if isinstance(num_nodes, int) else max(num_nodes)
        per_node, per_edge, _, _ = self._memory_rows
        return round((per_node * nodes + per_edge * num_edges) * self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row of features, of the input or the output."""
        width: int = max(self.in_channels, self.out_channels)
        return width * next(self.parameters()).element_size()

    def _checked(
        self,
        x: Any,
        edge_index: Edges,
        edge_attr: EdgeFeatures,
        weight: Tensor,
        basis: bool = False,
    ) -> Adjacency:
        """The adjacency, after all inputs are checked; x must have the dtype of `weight`."""
        check_features(x, self.in_channels, weight)
        adjacency = as_adjacency(edge_index, x.shape[0])
        check_graph(x, adjacency)
        check_edges(edge_attr, adjacency, self.edge_dim, weight, basis)
        return adjacency

    def __prepare_scriptable__(self) -> NoReturn:
        """`torch.jit.script` calls this first."""
        refuse_scripting(self)

    def _warn_once(self, part: str) -> None:
        """Warn, the first time, that parts are called as modules, which is slower."""
        if self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        if all_are_hooked():
            cause = f"every module has hooks, including the parts of {self}"
            remedy = "remove the hooks that were registered for every module"
        else:
            cause = f"{part} of {self} has hooks or was replaced"
            remedy = (
                "remove the hooks (of pruning: torch.nn.utils.prune.remove), or put them on the "
                "layer itself"
            )
        warnings.warn(
            f"{cause}: all parts are now called as modules, on tensors that are otherwise never "
            f"made. This is slower and takes more memory. For full speed {remedy}",
            stacklevel=5 + is_hooked(self),  # where the layer is called; torch calls hooks deeper
        )

    def __repr__(self) -> str:
        shown = "".join(f", {name}={getattr(self, name)}" for name in self._shown)
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}{shown})"
