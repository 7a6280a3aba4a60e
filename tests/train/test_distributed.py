"""Two processes with the batches of one end with its weights."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pna.data.graphset import GraphSet
from pna.population.all_reduce import all_reduce_sum, world_size
from pna.train import loop
from pna.train.distributed import any_process, device_of, is_first, joined, wait_for_all
from pna.train.loop import train
from pna.train.run import BEST, LAST, Run
from pna.train.settings import ModelSettings, Settings
from tests import processes
from tests.train.cases import (
    SMALL,
    assert_near,
    labelled,
    one_graph,
    random_graphs,
    with_arguments,
)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)

#: Shares of different sizes in batches of 4, none for the second process in the last, of 1.
GRAPHS = random_graphs(train=9, validation=5, sizes=(2, 9), missing=True)
SETTINGS = {
    "members": 2, "epochs": 2, "batch_size": 4, "precision": "float64", "lr": [1e-2, 3e-3],
    "clip": 0.5, "average": 0.9, "patience": None,
}  # fmt: skip


def rank_of_two(port: int, rank: int, asked: list[dict[str, Any]]) -> None:
    """What `torchrun` would start: trains what is asked for, then says what sums are."""
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "RANK": str(rank), "LOCAL_RANK": str(rank)}  # fmt: skip
    torch.set_num_threads(1)
    told: list[int] = []
    with joined(torch.device("cpu")):
        for one in asked:
            train(**one, device="cpu", report=lambda r: told.append(r.epoch))
        x = torch.tensor([1.0 + rank, 2.0], requires_grad=True)
        total = all_reduce_sum(x)
        (total * torch.tensor([1.0, 10.0 * (1 + rank)])).sum().backward()
        vmapped = torch.func.vmap(all_reduce_sum)(torch.full((3, 2), float(rank + 1)))
        said = [any_process(rank == 1, x.device), any_process(False, x.device)]
    print(json.dumps({
        "first": is_first(), "rank": rank, "told": told, "total": total.tolist(),
        "grad": x.grad.tolist(), "vmapped": vmapped.tolist(), "said": said,
    }))  # fmt: skip


MODELS = {
    # batch normalisation of nodes and graphs, again and again, and dropout
    "gin": with_arguments(SMALL["gin recurrent"], dropout=0.2),
    "pna": with_arguments(SMALL["pna recurrent"], dropout=0.2, depth="diameter"),
    "stacked": with_arguments(SMALL["pna stacked"], dropout=0.2),
    "diffpool": SMALL["diffpool stacked"],
    "adaptive": with_arguments(SMALL["gin recurrent"], depth="adaptive", tolerance=0.05),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_two_processes(
    folder: Path,
    graphs: GraphSet,
    models: dict[str, ModelSettings],
    settings: Settings,
    work: Callable[..., None] = rank_of_two,
) -> tuple[dict[str, Run], list[processes.Ended]]:
    """Runs by name, and what became of each process."""
    graphs.save(folder / "graphs.safetensors")
    asked = [
        {"data": folder / "graphs.safetensors", "out": folder / name, "model": model,
         "settings": settings, "save_every": 0.0}
        for name, model in models.items()
    ]  # fmt: skip
    port, folders = free_port(), [folder / f"rank-{rank}" for rank in range(2)]
    for own in folders:
        own.mkdir()
    ranks = [processes.started(own, work, port, rank, asked) for rank, own in enumerate(folders)]
    done = [processes.ended(*both) for both in zip(ranks, folders, strict=True)]
    return {name: Run(folder / name) for name in models}, done


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict[str, Run], list[dict[str, Any]]]:
    """Runs of two processes by name, and what each process said."""
    folder = tmp_path_factory.mktemp("both")
    runs, done = in_two_processes(folder, GRAPHS, MODELS, Settings(**SETTINGS))
    for one in done:
        assert one.returncode == 0, one.stderr
    return runs, [json.loads(one.stdout.splitlines()[-1]) for one in done]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_train_what_one_does(both, tmp_path, name):
    """The first test waits for two processes that train all models."""
    runs, _ = both
    assert_same(runs[name], train(GRAPHS, tmp_path / "run", MODELS[name], Settings(**SETTINGS)))


def assert_same(run: Run, alone: Run) -> None:
    """The run of two processes, and that of one."""
    for file in (LAST, BEST):
        got, expected = run.read(file)[0], alone.read(file)[0]
        assert got.keys() == expected.keys()
        for key, tensor in expected.items():
            # Adam divides by the gradient's size, rounding in small ones and all
            assert_near(got[key], tensor, 1e-7, f"{key} of {file}")
    for row, wanted in zip(run.metrics(), alone.metrics(), strict=True):
        assert row["validation"] == pytest.approx(wanted["validation"], rel=1e-8)
        assert row["training"] == pytest.approx(wanted["training"], rel=1e-8)
    first, wanted = run.metrics()[0], alone.metrics()[0]
    assert first["training"] == pytest.approx(wanted["training"], rel=1e-9)
    assert run.summary["processes"] == 2


#: 31 training nodes of one graph in batches of 6: shares of 3, and none in the last batch of 1.
ONE = one_graph(62, 310)
SAMPLED = {
    "pna": with_arguments(SMALL["pna stacked"], graph_norm=False, dropout=0.2),
    "gin": ModelSettings("gin", "stacked", 4, arguments={"layers": 2}),
}


@pytest.mark.slow
def test_two_processes_sample_what_one_does(tmp_path):
    """Also with batch normalisation, although nodes occur in the samples of both processes. That
    of GIN is inside a convolution that computes more rows than the next layer needs."""
    settings = Settings(**SETTINGS | {"batch_size": 6, "sample": (4, 3)})
    runs, done = in_two_processes(tmp_path, ONE, SAMPLED, settings)
    assert [one.returncode for one in done] == [0, 0], done
    for name, run in runs.items():
        assert_same(run, train(ONE, tmp_path / f"{name}-alone", SAMPLED[name], settings))


@pytest.mark.slow
def test_two_processes_sample_the_edges_that_one_does(tmp_path):
    """The ends of edges of one process may be those of the other, and are normalised once."""
    edges, models = labelled(ONE), {"pna": SAMPLED["pna"]}
    settings = Settings(**SETTINGS | {"batch_size": 40, "sample": (4, 3)})
    runs, done = in_two_processes(tmp_path, edges, models, settings)
    assert [one.returncode for one in done] == [0, 0], done
    assert_same(runs["pna"], train(edges, tmp_path / "alone", SAMPLED["pna"], settings))


def rank_of_two_killed(port: int, rank: int, asked: list[dict[str, Any]]) -> None:
    """The second process is killed when its second epoch begins."""
    whole_epoch = loop._epoch

    def epoch(trainer: Any, done: int) -> Any:
        if done == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole_epoch(trainer, done)

    if rank == 1:
        loop._epoch = epoch
    rank_of_two(port, rank, asked)


@pytest.mark.slow
def test_a_killed_process_is_reported_and_the_run_resumes(tmp_path):
    settings = Settings(**SETTINGS | {"batch_size": 6, "sample": (4, 3)})
    models = {"pna": SAMPLED["pna"]}
    runs, done = in_two_processes(tmp_path, ONE, models, settings, rank_of_two_killed)
    assert done[1].returncode == -signal.SIGKILL and done[0].returncode == 1
    said = done[0].stderr.splitlines()[-1]
    assert re.search(
        r"another process of this training has ended .* \(epoch 2\); .* --resume", said
    )
    assert runs["pna"].read(LAST)[1]["epoch"] == 1
    resumed = train(ONE, runs["pna"].folder, resume=True)
    alone = train(ONE, tmp_path / "alone", SAMPLED["pna"], settings)
    for row, wanted in zip(resumed.metrics(), alone.metrics(), strict=True):
        assert row["validation"] == pytest.approx(wanted["validation"], rel=1e-8)


def test_only_the_first_writes_and_tells(both):
    runs, said = both
    assert [s["first"] for s in said] == [True, True]  # once the group is gone, each is alone
    assert [s["told"] for s in said] == [[1, 2] * len(MODELS), []]
    for run in runs.values():
        assert len(run.metrics()) == 2 * 2


def test_sums_over_processes_and_their_gradients(both):
    """x is [1, 2] and [2, 2]; the losses weigh the second sum by 10 and by 20."""
    _, said = both
    for of_rank in said:
        assert of_rank["total"] == [3.0, 4.0]
        assert of_rank["grad"] == [2.0, 30.0]
        assert of_rank["vmapped"] == [[3.0, 3.0]] * 3
        assert of_rank["said"] == [True, False]


def test_one_process_is_all_there_is():
    x = torch.tensor([1.0, 2.0])
    assert world_size() == 1 and is_first()
    assert all_reduce_sum(x) is x
    assert any_process(True, x.device) and not any_process(False, x.device)
    wait_for_all()
    with joined(torch.device("cpu")):
        assert world_size() == 1


@pytest.mark.parametrize("device, backend, own", [("cpu", "gloo", []), ("cuda", "nccl", [1])])
def test_processes_are_joined_by_the_device_asked_for(monkeypatch, device, backend, own):
    """On a machine with GPUs, where a CPU may be asked for too."""
    made, chosen = [], []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", made.append)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: made.append("left"))
    with joined(device_of(device)):
        assert made == [backend] and chosen == own
    assert made == [backend, "left"]
    assert device_of(None).type == "cuda"
