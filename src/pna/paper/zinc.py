"""ZINC: the penalised logP of 12,000 molecules."""

from dataclasses import replace
from typing import Any

from pna.paper.claims import Claim, best, less, measured_as
from pna.paper.experiment import Variant
from pna.paper.improved import NO_AVERAGE, NO_COSINE, Change, changed, improved, no_decay
from pna.paper.real_world import BASELINES, GROUPS, RealWorld, names_in, with_towers

_MEASURED = measured_as("mae", "test, last epoch")
#: Trained with edge features, plateaus are waited for longer.
_EDGES: dict[str, Any] = {"plateau": 21, "weight_decay": 3e-6}
_NONE: dict[str, Any] = {"weight_decay": 3e-6}

_PLAIN = with_towers("pna", 70, 60, 50, **_EDGES)
_PLAIN_DEEP = with_towers("pna", 70, 70, 40, layers=16, group="deep", **_EDGES)

#: There are but four kinds of bonds: what wide embeddings of them cost buys one more layer.
_THIN: dict[str, Any] = {"edge_width": 8}
_WALKS = (16, 8)
_IMPROVED = improved(
    _PLAIN, 65, "random walks, a fifth layer", walks=_WALKS, epochs=300, lr=2e-3,
    optimiser="adamw", weight_decay=0.1,
    arguments=_THIN | {"layers": 5, "out_channels": 60},
)  # fmt: skip
_IMPROVED_DEEP = improved(
    _PLAIN_DEEP, 70, "random walks", walks=_WALKS, epochs=200, batch_size=64, lr=2e-3,
    optimiser="adamw", weight_decay=3e-2, arguments=_THIN | {"out_channels": 65},
)  # fmt: skip

_CHANGES = (
    Change("without walks", "without random walks", walks=(0, 0)),
    Change("without edge-walks", "without random walks of edges", walks=(16, 0)),
    Change("without depth", "without one more layer", hidden=70,
           arguments={"layers": 4, "out_channels": 65}),
    NO_COSINE,
    NO_AVERAGE,
    no_decay(_EDGES["weight_decay"]),
    Change("with virtual-node", "with a virtual node, narrower", hidden=60,
           arguments={"virtual_node": True, "out_channels": 55}),
)  # fmt: skip

#: Other models with the same ingredients; GIN and GCN take no edge features.
_TRAINING: dict[str, Any] = {
    name: _IMPROVED.changes[name] for name in ("epochs", "lr", "optimiser", "weight_decay")
}
_OTHERS_IMPROVED = (
    improved(
        with_towers("mpnn-sum", 100, 70, 50, **_EDGES), 95, "random walks, a fifth layer",
        walks=_WALKS, arguments=_THIN | {"layers": 5, "out_channels": 80}, **_TRAINING,
    ),
    *(improved(replace(plain, changes=_EDGES), hidden, "random walks, a fifth layer",
               walks=(_WALKS[0], 0), arguments={"layers": 5}, **_TRAINING)
      for plain in BASELINES
      for row, hidden in (("gin", 93), ("gcn", 130))
      if plain.row == row),
)  # fmt: skip


def _from_authors_weights(plain: Variant) -> Variant:
    return replace(
        plain,
        row=f"{plain.row} authors-weights",
        label=f"{plain.label}, the authors' initial weights",
        changes=plain.changes | {"init": "published-layers"},
    )


#: PNA and its nearest rivals, with and without edge features, have twice as many runs as the rest.
_CLOSE = ("pna", "pna-no-scalers", "mpnn-sum")

_ROWS = (
    *BASELINES,
    *(with_towers(row, 110, 80, weight_decay=1e-5) for row in ("mpnn-sum", "mpnn-max")),
    *(with_towers(row, 100, 70, 50, **_EDGES) for row in ("mpnn-sum", "mpnn-max")),
    with_towers("pna-no-scalers", 95, 90, **_NONE),
    with_towers("pna-no-scalers", 90, 80, 50, **_EDGES),
    with_towers("pna", 75, 70, **_NONE),
    _PLAIN,
    with_towers("mpnn-sum", 110, 110, 40, layers=16, group="deep", **_EDGES),
    _PLAIN_DEEP,
)
_ROWS = tuple(replace(v, members=8) if v.row in _CLOSE and v.group in GROUPS else v for v in _ROWS)

ZINC = RealWorld(
    "zinc",
    "ZINC: penalised logP of molecules, mean absolute error",
    (
        *_ROWS,
        _IMPROVED,
        _IMPROVED_DEEP,
        *(changed(_IMPROVED, change) for change in _CHANGES),
        *_OTHERS_IMPROVED,
        *(_from_authors_weights(plain) for plain in _ROWS
          if plain.row in ("pna", "mpnn-sum") and plain.group in GROUPS),
    ),
    groups=GROUPS | {"deep": "edge features, 16 layers"},
    metric="mae",
    loss="mae_in_units",
    claims=(
        Claim("PNA has the lowest error without edge features",
              best("pna", names_in("", _ROWS), _MEASURED)),
        Claim("PNA has the lowest error with edge features",
              best("pna edges", names_in("edges", _ROWS), _MEASURED)),
        Claim("Scalers help, with edge features",
              less("pna edges", "pna-no-scalers edges", _MEASURED)),
        Claim("PNA of 16 layers is ahead of MPNN-sum of 16 layers",
              less("pna deep", "mpnn-sum deep", _MEASURED)),
        Claim("Ours, not the paper's: improved, PNA has a lower error",
              less("pna improved edges", "pna edges", _MEASURED)),
        Claim("Ours, not the paper's: improved, PNA has a lower error than MPNN (sum), GIN and GCN "
              "with the same ingredients",
              best("pna improved edges", [v.name for v in _OTHERS_IMPROVED], _MEASURED)),
    ),
)  # fmt: skip
