"""Labelled edges, which a model predicts, and the edges that may send messages meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pna.data.structure import sort_edges
from pna.names import lookup

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet

#: Which edges send messages. "all": every edge. "train": not those to be predicted later, see
#: `message_edges`.
MESSAGES = ("all", "train")

#: Metadata: whether the prediction of a labelled edge does not depend on the order of its ends.
UNDIRECTED = "undirected"

#: Metadata: whether the features of nodes are the logarithms of their degrees.
DEGREES = "degree_features"


def message_edges(graphs: GraphSet, messages: str, split: str | None) -> GraphSet:
    """The same graphs with the edges that send messages when a split is trained or predicted.

    With "train", a split has the edges of the splits before it: "validation" those of "train", and
    "test" those of both. The first split has its own. Edges without a split always send. None
    stands for the last split.
    """
    lookup("message edges", messages, dict.fromkeys(MESSAGES))
    if messages == "all":
        return graphs
    index = len(graphs.splits) - 1
    if split is not None:
        index = lookup("split", split, {name: i for i, name in enumerate(graphs.splits)})
    graphs = graphs.to("cpu")
    tags = graphs.split_of_message
    tags = torch.zeros(graphs.num_edges, dtype=torch.uint8) if tags is None else tags
    sends = tags < max(index, 1)
    owner = torch.repeat_interleave(torch.arange(len(graphs)), graphs.edge_counts)
    counts = torch.bincount(owner[sends], minlength=len(graphs))
    structure, _ = sort_edges(graphs.sizes, graphs.edges[:, sends], counts)  # they stay in order
    attr = graphs.edge_attr
    kept = replace(
        graphs,
        **vars(structure),
        edge_attr=None if attr is None else attr[sends],
        split_of_message=tags[sends],
    )
    return replace(kept, x=_degrees(kept)) if graphs.metadata.get(DEGREES) else kept


def _degrees(graphs: GraphSet) -> Tensor:
    """log(1 + degree) of the edges that send, (nodes, 1); of both directions, (nodes, 2)."""
    assert graphs.x is not None
    columns = (graphs.degree, graphs.out_degree)[: graphs.x.shape[1]]
    return torch.stack([column.to(graphs.x.dtype).log1p() for column in columns], 1)


def check_labels(tensors: Mapping[str, Tensor]) -> int:
    """The number of labelled edges of a graph set in a file; raises unless their ends are nodes."""
    names = ("label_offsets", "label_ends")
    held = [name for name in tensors if name.startswith("label_") or name == "y_edge"]
    if not held and "split_of_edge" not in tensors:
        return 0
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"it has labelled edges but no {' and no '.join(missing)}")
    starts, ends, nodes = (tensors[name] for name in (*names, "node_offsets"))
    if ends.dim() != 2 or ends.shape[1] != 2 or ends.dtype != torch.int32:
        raise ValueError("label_ends are not two numbers for each labelled edge")
    if starts.shape != nodes.shape or starts.dtype != torch.int64:
        raise ValueError("label_offsets are not those of the graphs")
    if starts[0] != 0 or starts[-1] != len(ends) or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"label_offsets do not lead from 0 to {len(ends)}")
    sizes = torch.repeat_interleave(nodes.diff(), starts.diff())[:, None]
    if bool(((ends < 0) | (ends >= sizes)).any()):
        raise ValueError("label_ends lead out of their graph")
    attr = tensors.get("label_attr")
    width = tensors["edge_attr"].shape[1:] if "edge_attr" in tensors else None
    if attr is not None and attr.shape != (len(ends), *(width or ())):
        raise ValueError("label_attr are not the features of the labelled edges")
    return len(ends)
