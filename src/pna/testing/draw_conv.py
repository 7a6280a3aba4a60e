"""Random cases of `pna.nn.PNAConv` for `fuzz`."""

from __future__ import annotations

from typing import Any

import torch

from pna import aggregators as table
from pna.testing.conv_case import SCALERS, ConvCase
from pna.testing.draw import Draw, draw_batch, draw_values
from pna.testing.draw_aggregators import draw_aggregator, drawn_aggregators
from pna.testing.edge_term import EdgeTerm
from pna.testing.settings import Settings


def draw_case(draw: Draw, settings: Settings) -> ConvCase:
    signature = draw.signature
    mode = signature.one_of(*settings.modes())
    batch = draw_batch(draw, square=True, largest="window" if mode == "compile" else "small")
    edges, nodes = len(batch.graph.senders), batch.graph.num_senders
    towers = signature.one_of([1, 2, 4], [3, 2, 1])
    width = towers * signature.one_of([1, 3, 5, 9])
    out = towers * signature.one_of([1, 4, 7])
    dtype = signature.one_of([torch.float64, torch.float32, torch.bfloat16], [2, 5, 1])
    if mode == "compile":
        dtype, width, out, towers = torch.float32, 6, 4, 2
    kinds = [k for k in ("normal", "scales", "offset") if k not in settings.without]
    x = draw_values(draw, draw.one_of(kinds), nodes, width, dtype, batch.of_sender)
    aggregators: list[Any] = []
    for kind in signature.some_of(drawn_aggregators(mode, settings), 4):
        aggregator = draw_aggregator(draw, kind, edges, width, torch.float32)
        if isinstance(aggregator, table.Softmax):  # learned ones are cases of pna.aggregate
            aggregator = kind(draw.one_of([1.0, -1.5]), None)
        elif isinstance(aggregator, table.Moment):  # odd ones are decided by rounding at degree 2
            aggregator = table.Moment(draw.one_of([4, 6]))
        elif isinstance(aggregator, table.Std) and signature.chance(0.5):
            aggregator = "std"
        aggregators.append(aggregator)
    scalers = tuple(dict.fromkeys(signature.some_of(list(SCALERS), 3)))
    histogram = torch.bincount(batch.graph.in_degree(), minlength=2)
    histogram[1] += 1
    options: dict[str, Any] = {"towers": towers}
    form = signature.one_of(["none", "dense", "table"])
    if mode == "compile":
        form, aggregators = "none", ["std", table.Mean(), table.Max(), table.Softmax()]
        scalers, histogram = ("identity", "amplification"), torch.tensor([1, 2, 3])
    edge = EdgeTerm()
    if form != "none":
        edge_dim = signature.one_of([1, 4, 20])
        options["edge_dim"] = edge_dim
        if signature.chance(0.3):
            options["encode_edges"] = False
        types = signature.whole(1, 5)
        rows = edges if form == "dense" else types
        features = draw_values(draw, "normal", rows, edge_dim, dtype)
        index = () if form == "dense" else (draw.below(types, edges),)
        edge = EdgeTerm(form, (features, *index), dtype)
    if mode != "compile":
        choices = {
            "pre_layers": 2, "post_layers": 2, "divide_input": True, "train_norm": True,
            "std": "pyg", "swap_extrema": True, "mixing": False,
        }  # fmt: skip
        options |= {k: v for k, v in choices.items() if signature.chance(0.2)}
    upstream = draw.normal(nodes, out).to(dtype).double()
    return ConvCase(
        batch.graph, batch.of_sender, x, edge, dtype, tuple(aggregators), scalers, options,
        histogram, upstream, mode, settings.device,
    )  # fmt: skip
