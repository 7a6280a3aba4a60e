"""Random cases of `pna.aggregate` for `fuzz`."""

from __future__ import annotations

import torch
from torch import Tensor

from pna import aggregators as table
from pna.testing.aggregate_case import AggregateCase
from pna.testing.draw import DTYPES, LAYOUTS, VALUES, Draw, draw_batch, draw_values
from pna.testing.draw_aggregators import draw_aggregator, drawn_aggregators
from pna.testing.edge_term import EdgeTerm
from pna.testing.settings import Settings
from pna.testing.tolerance import sum_type

#: What is compiled: each list takes minutes the first time, so there are few.
_COMPILED = (
    ("none", (table.Mean(), table.Std(), table.Max(), table.Min())),
    ("table", (table.Var(), table.Softmax(), table.NormalisedMean(), table.Min())),
    ("dense", (table.Moment(3), table.KthSmallest(2), table.Sum(), table.Max())),
)


def draw_case(draw: Draw, settings: Settings) -> AggregateCase:
    signature = draw.signature
    mode = signature.one_of(*settings.modes())
    largest = "window" if mode == "compile" else "small" if mode == "interpreter" else "hub"
    batch = draw_batch(draw, largest=largest)
    edges = len(batch.graph.senders)
    width = signature.one_of([1, 2, 3, 5, 8, 17, 33, 70, 130], [3, 3, 3, 3, 2, 2, 1, 0.5, 0.3])
    if edges * width > 200_000 or mode == "interpreter":
        width = draw.whole(1, 3)
    dtype = signature.one_of(DTYPES, [3, 5, 1.5, 1.5])
    form = signature.one_of(("none", "dense", "table", "coefficients"), [4, 2, 2, 2])
    chosen: tuple[table.Aggregator, ...] = ()
    if mode == "compile":
        form, chosen = signature.one_of(_COMPILED)
        dtype = torch.float32
    members = signature.one_of([1, 2, 3]) if mode == "vmap" else 1
    width = width * members
    kinds = [k for k in VALUES if k not in settings.without]
    kind = draw.one_of(kinds, [VALUES[k] for k in kinds])
    x = draw_values(draw, kind, batch.graph.num_senders, width, dtype, batch.of_sender)
    edge_dtype = dtype if mode == "compile" or signature.chance(0.8) else signature.one_of(DTYPES)
    edge_kind = draw.one_of(["normal", "ties", "constant", kind])
    if edge_kind in ("huge", "scales"):
        edge_kind = "normal"
    edge = _draw_edge(draw, form, edges, width, edge_dtype, edge_kind)
    result = dtype if form == "none" else torch.promote_types(dtype, edge_dtype)
    if not chosen:
        most = 3 if mode == "interpreter" else 6
        classes = signature.some_of(drawn_aggregators(mode, settings), most)
        chosen = tuple(draw_aggregator(draw, c, edges, width, sum_type(result)) for c in classes)
    shape = (batch.graph.num_receivers, len(chosen), width)
    upstream = draw.normal(*shape).to(result).double()
    layout = "plain" if mode in ("vmap", "compile") else signature.one_of(LAYOUTS)
    return AggregateCase(
        batch.graph, x, dtype, edge, chosen, upstream, layout, mode, members, settings.device
    )


def _draw_edge(
    draw: Draw, form: str, edges: int, width: int, dtype: torch.dtype, kind: str
) -> EdgeTerm:
    values: tuple[Tensor, ...] = ()
    if form == "dense":
        values = (draw_values(draw, kind, edges, width, dtype),)
    elif form == "table":
        types = draw.signature.whole(1, 5)
        values = (draw_values(draw, "normal", types, width, dtype), draw.below(types, edges))
    elif form == "coefficients":
        depth = draw.signature.whole(1, 4)
        sizes = ((edges, depth), (depth, width))
        values = tuple(draw_values(draw, "normal", *size, dtype) for size in sizes)
    return EdgeTerm(form, values, dtype)
