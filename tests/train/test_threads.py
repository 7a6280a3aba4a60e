"""Small batches of a CPU are trained on by one thread."""

from __future__ import annotations

import pytest
import torch

from pna.bench.molecules import molecules
from pna.train import threads
from pna.train.threads import one_thread, takes_one_thread

CPU = torch.device("cpu")


def test_few_nodes_and_edges_take_one_thread():
    graphs = molecules(40)
    size = (graphs.num_nodes + graphs.num_edges) / 40
    most = int(threads._MANY / size)
    assert takes_one_thread(graphs, 10**9, 1, CPU)  # all graphs are few
    assert not takes_one_thread(graphs, 40, 1, torch.device("cuda"))
    many = graphs[torch.arange(most + 40) % 40]
    assert takes_one_thread(many, most - 2, 1, CPU)
    assert not takes_one_thread(many, most + 2, 1, CPU)
    assert takes_one_thread(many, most // 4 - 2, 4, CPU)
    assert not takes_one_thread(many, most // 4 + 2, 4, CPU)


@pytest.mark.parametrize("wanted", [False, True])
def test_the_number_of_threads_is_restored(wanted):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), one_thread(wanted):
            assert torch.get_num_threads() == (1 if wanted else 2)
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
