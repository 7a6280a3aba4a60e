"""A stand-in for DGL, which cannot be imported beside current versions of torch and torchdata.

It has the methods and properties of `dgl.DGLGraph` (2.1) that the converters use, with their names
and results: `edges` gives a pair of tensors, `batch_num_nodes` a tensor.
"""

import torch


class DGLGraph:
    def __init__(self, ends, nodes, etypes=(("_N", "_E", "_N"),), is_block=False):
        self._ends = tuple(torch.as_tensor(each, dtype=torch.int64) for each in ends)
        self._nodes = nodes  # a number, or those of sources and destinations
        self._batch = None
        self.canonical_etypes = list(etypes)
        self.is_block = is_block
        self.ndata, self.edata = {}, {}

    @property
    def etypes(self):
        return [name for _, name, _ in self.canonical_etypes]

    @property
    def ntypes(self):
        if self.is_block:
            return ["_N", "_N"]
        return sorted({name for first, _, last in self.canonical_etypes for name in (first, last)})

    @property
    def is_homogeneous(self):
        return len(self.ntypes) == 1 and len(self.etypes) == 1

    def edges(self, form="uv", order="srcdst"):
        assert form == "uv"
        if order == "eid":
            return self._ends
        places = torch.argsort(self._ends[0], stable=True)
        return tuple(each[places] for each in self._ends)

    def num_nodes(self):
        return sum(self._nodes) if self.is_block else self._nodes

    number_of_nodes = num_nodes

    def num_src_nodes(self):
        return self._nodes[0] if self.is_block else self._nodes

    def num_dst_nodes(self):
        return self._nodes[1] if self.is_block else self._nodes

    def batch_num_nodes(self):
        return torch.tensor([self.num_nodes()]) if self._batch is None else self._batch[0]

    def batch_num_edges(self):
        return torch.tensor([len(self._ends[0])]) if self._batch is None else self._batch[1]


DGLGraph.__module__ = "dgl.heterograph"  # where DGL has it


def batch(graphs):
    """`dgl.batch`."""
    sizes = [graph.num_nodes() for graph in graphs]
    first = [sum(sizes[:i]) for i in range(len(sizes))]
    ends = [
        torch.cat([graph._ends[side] + before for graph, before in zip(graphs, first, strict=True)])
        for side in (0, 1)
    ]
    joined = DGLGraph(ends, sum(sizes))
    joined._batch = tuple(
        torch.cat([getattr(graph, f"batch_num_{what}")() for graph in graphs])
        for what in ("nodes", "edges")
    )
    for frame in ("ndata", "edata"):
        for name in getattr(graphs[0], frame):
            rows = [getattr(graph, frame)[name] for graph in graphs]
            getattr(joined, frame)[name] = torch.cat(rows)
    return joined
