"""Every fast path of this package, and a switch for each of them.

    with fast_paths.without("few_nodes"):
        trainer.run_epoch(0)

Code that chooses between a fast path and its plain fallback asks `is_on`, last of all conditions.
`pna bench kernels` switches each path off in turn and times what that costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pna.names import lookup

CPU, CUDA = "cpu", "cuda"
BOTH = (CPU, CUDA)


@dataclass(frozen=True)
class FastPath:
    """One entry of the table. Nothing has a default.

    `needed_by` names the paths that cannot run without this one: they are off with it.
    """

    devices: tuple[str, ...]  # where it runs: "cpu", "cuda"
    file: str  # where it is queried, below src/pna
    replaces: str  # what runs without it, in one sentence
    needed_by: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.devices or not set(self.devices) <= set(BOTH):
            raise ValueError(f"got devices {self.devices}, expected some of {', '.join(BOTH)}")
        if not self.replaces.endswith("."):
            raise ValueError(
                f"got {self.replaces!r}, expected a sentence that ends with a full stop"
            )


#: Named by the modules that they live in, or by what they do where a module has several.
FAST_PATHS: dict[str, FastPath] = {
    # The graph
    "build": FastPath(
        BOTH, "adjacency.py",
        "An Adjacency made by torch's sorts after a check that waits, in place of C or Triton.",
        (),
    ),
    # The aggregation
    "cpu": FastPath(
        (CPU,), "ops/aggregate.py",
        "Statistics by the reference, which makes every message, in place of the C kernel.",
        ("fused",),
    ),
    "statistics": FastPath(
        (CUDA,), "ops/aggregate.py",
        "Statistics by the reference, which makes every message, in place of the Triton kernels.",
        ("fused", "small", "few_nodes", "divided", "recurrence", "fronts"),
    ),
    "short_rows": FastPath(
        (CUDA,), "ops/triton/sender_gradients.py",
        "A backward pass that walks each short row by itself, four edges at a time.",
        ("sums_by_kind",),
    ),
    "sums_by_kind": FastPath(
        (CUDA,), "ops/triton/sender_gradients.py",
        "A kernel of its own for the gradient of an edge table, apart from that of x.",
        (),
    ),
    "kind_gradient": FastPath(
        (CUDA,), "ops/triton/edge_gradients.py",
        "A walk over the edges of every type; gradients of all messages, in chunks, for a basis.",
        (),
    ),
    "add_up": FastPath(
        (CUDA,), "ops/triton/sums.py",
        "`torch.sum` over the parts of a sum.",
        (),
    ),
    "edges": FastPath(
        BOTH, "ops/edges.py",
        "Plain indexing from nodes to edges, with scattered sums back.",
        (),
    ),
    # The degree-scaled product
    "degree_linear": FastPath(
        BOTH, "ops/degree_linear.py",
        "One matrix product for each scaler, as defined.",
        ("fused", "small", "small_cpu", "grouped", "few_nodes", "divided", "recurrence",
         "degree_groups", "narrow_linear", "scaled_linear", "degree_spread"),
    ),
    "degree_groups": FastPath(
        (CPU,), "ops/degree_groups.py",
        "One product for each scaler, also for nodes that share their degree.",
        (),
    ),
    "narrow_linear": FastPath(
        (CUDA,), "ops/triton/narrow_linear.py",
        "The general kernels of degree_linear, also for narrow towers.",
        ("recurrence",),
    ),
    "scaled_linear": FastPath(
        (CUDA,), "ops/triton/scaled_linear.py",
        "The general kernel of degree_linear, also for few nodes and few outputs.",
        (),
    ),
    "degree_spread": FastPath(
        (CUDA,), "ops/triton/degree_linear.py",
        "The general kernel of degree_linear for the gradient of z, also for few outputs.",
        (),
    ),
    "wide_linear": FastPath(
        (CUDA,), "ops/triton/degree_linear.py",
        "The general kernel of degree_linear for a single scaler, and torch for wide linear maps.",
        (),
    ),
    "factors": FastPath(
        (CUDA,), "nn/neighbourhood.py",
        "The scalers' factors in a dozen operations of torch.",
        (),
    ),
    # The layer
    "split": FastPath(
        BOTH, "nn/conv/pna.py",
        "The layer as the paper writes it: M is applied to every message.",
        ("fused", "few_nodes", "divided", "prepared", "recurrence", "fronts"),
    ),
    "fused": FastPath(
        BOTH, "nn/conv/pna.py",
        "The layer step by step, each step with its own node of autograd.",
        ("small", "small_cpu", "grouped", "few_nodes", "divided"),
    ),
    "small": FastPath(
        (CUDA,), "nn/conv/small.py",
        "The layer of a small graph in the order of large graphs.",
        (),
    ),
    "small_cpu": FastPath(
        (CPU,), "nn/conv/small_cpu.py",
        "The layer of a small graph in the order of large graphs.",
        (),
    ),
    "grouped": FastPath(
        (CPU,), "nn/conv/small_cpu.py",
        "The inputs of U with a column for each scaler, or in the order of large graphs.",
        (),
    ),
    "few_nodes": FastPath(
        (CUDA,), "nn/conv/fused.py",
        "The fused layer in the order of large graphs.",
        (),
    ),
    "divided": FastPath(
        (CUDA,), "nn/conv/fused.py",
        "A product for each part of M and U, where towers divide the input.",
        (),
    ),
    "edge_products": FastPath(
        (CPU,), "nn/conv/inputs.py",
        "Edge features of up to 16 columns multiplied inside the kernel, also for few messages.",
        (),
    ),
    "joined_towers": FastPath(
        BOTH, "nn/conv/pna.py",
        "A narrow layer with its towers one by one.",
        ("recurrence",),
    ),
    "prepared": FastPath(
        BOTH, "nn/conv/pna.py",
        "The weights of a narrow layer rearranged at every call, not once for all steps.",
        ("recurrence",),
    ),
    # Baselines
    "attention": FastPath(
        (CUDA,), "baselines/attention.py",
        "GAT with every message made.",
        ("fronts",),
    ),
    "gates": FastPath(
        (CUDA,), "baselines/gates.py",
        "GatedGCN with every message made.",
        (),
    ),
    "neighbour_sum": FastPath(
        (CUDA,), "baselines/neighbour_sum.py",
        "GCN and GIN by `pna.aggregate`, with the factors multiplied before and after it.",
        (),
    ),
    "small_tables": FastPath(
        (CUDA,), "baselines/edge_features.py",
        "Rows of a small table looked up by indexing, whose gradient is a scattered sum.",
        (),
    ),
    # Populations
    "linears": FastPath(
        (CUDA,), "population/linears.py",
        "`torch.nn.functional.linear`, batched over members by vmap.",
        ("divided", "recurrence", "small_tables", "wide_linear"),
    ),
    "gru": FastPath(
        (CUDA,), "population/gru.py",
        "The GRU in plain torch, in place of a Triton kernel.",
        ("recurrence",),
    ),
    "recurrence": FastPath(
        (CUDA,), "population/recurrence.py",
        "The recurrent architecture step by step, each with its own nodes of autograd.",
        (),
    ),
    "fronts": FastPath(
        (CUDA,), "data/padded.py",
        "All nodes in every step of the recurrent architecture, also those that are done.",
        (),
    ),
    "set2set": FastPath(
        (CUDA,), "population/set2set.py",
        "Set2Set in plain torch, in place of Triton kernels.",
        (),
    ),
    "set2set_cpu": FastPath(
        (CPU,), "population/set2set_cpu.py",
        "Set2Set in torch on padded graphs, in place of set2set.c.",
        (),
    ),
    "batch_norm": FastPath(
        (CUDA,), "population/batch_norm.py",
        "BatchNorm of real rows in plain torch, about forty kernels.",
        (),
    ),
    "dropout": FastPath(
        (CUDA,), "population/dropout.py",
        "The mask of dropout in about forty operations of torch.",
        (),
    ),
    "adam": FastPath(
        BOTH, "train/optimiser.py",
        "Adam in plain torch.",
        (),
    ),
    # The training step
    "capture": FastPath(
        (CUDA,), "train/trainer.py",
        "Every kernel launched from Python, in place of a CUDA graph.",
        ("streams",),
    ),
    "streams": FastPath(
        (CUDA,), "ops/streams.py",
        "All work of a captured step on one stream.",
        (),
    ),
    "assemble": FastPath(
        (CUDA,), "data/padded.py",
        "Padded batches put together by about fifty operations of torch.",
        ("ranking", "fronts"),
    ),
    "ranking": FastPath(
        (CUDA,), "data/padded.py",
        "Nodes sorted by degree by `torch.sort`.",
        ("fronts",),
    ),
}  # fmt: skip

# Plain variables: compiled code watches them, and all threads see them.
_off: frozenset[str] = frozenset()
_queried: set[str] | None = None


def is_on(name: str) -> bool:
    """Whether this fast path may be taken. Asked where it would be, after all other conditions."""
    if _queried is not None:
        _queried.add(name)
    return name not in _off


def is_off(name: str) -> bool:
    """Whether a path that another one needs is switched off. This does not count as asking."""
    return name in _off


def off() -> frozenset[str]:
    """The names of all fast paths that are switched off."""
    return _off


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Run without these fast paths inside a ``with`` block, on all threads.

    A captured step stays as it was captured: capture it inside the block.
    """
    global _off
    for name in names:
        lookup("fast path", name, FAST_PATHS)
    before, _off = _off, _off | frozenset(names)
    try:
        yield
    finally:
        _off = before


@contextmanager
def queried() -> Iterator[set[str]]:
    """Record the fast paths that are queried inside a ``with`` block, on or off."""
    global _queried
    before, _queried = _queried, set()
    found = _queried
    try:
        yield found
    finally:
        _queried = before
        if before is not None:
            before |= found
