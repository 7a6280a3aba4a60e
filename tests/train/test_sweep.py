"""Sweeps: points drawn by seed, trials on a real Ray, and going on from the folder alone."""

import csv
import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import pna.train
from pna.train.run import Run
from pna.train.settings import ModelSettings, Settings
from pna.train.sweep import LogRange, Plan, Space, Sweep, parse_values, sweep
from tests.train.cases import random_graphs

SETTINGS = Settings(members=2, epochs=2, batch_size=8)
MODEL = ModelSettings("gin", "recurrent", arguments={"depth": 2})
SPACE = Space(width=(4,), dropout=(0.0, 0.1))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "graphs.safetensors"
    random_graphs().save(path)
    return path


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="no ray: pip install 'pna[ray]'")
    pytest.importorskip("ray.tune", reason="no ray.tune: pip install 'pna[ray]'")
    from pna.train.ray_tune import token_authentication

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with token_authentication():
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=128 * 2**20,
        )
        yield
        ray.shutdown()


def test_values():
    assert parse_values("1e-4..1e-2") == LogRange(1e-4, 1e-2)
    assert parse_values("16,32, 64") == (16, 32, 64)
    assert parse_values("0.5") == (0.5,)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1e-2..1e-4", "the smaller one first"),
        ("0..1", "two numbers above 0"),
        ("1..inf", "two numbers above 0"),
        ("nan..1", "two numbers above 0"),
        ("1e-4..", "expected a range such as"),
        ("", "expected a range such as"),
        ("16,,32", "expected a range such as"),
        ("many", "expected a range such as"),
    ],
)
def test_values_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_values(text)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"lr": (0.0,)}, "got lr 0, expected numbers above 0"),
        ({"lr": (math.nan,)}, "got lr nan"),
        ({"weight_decay": (-1.0,)}, "at least 0"),
        ({"width": (16, 8.5)}, "whole numbers above 0"),
        ({"width": LogRange(8, 64)}, "got a range of widths"),
        ({"dropout": (1.0,)}, "from 0 up to 1"),
        ({"dropout": ()}, "of no values"),
    ],
)
def test_space_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        Space(**given)


def test_points_follow_from_seed_and_number():
    space = Space()
    points = [space.draw(3, k) for k in range(200)]
    assert points == [space.draw(3, k) for k in range(200)]
    assert points[0] != points[1] and points[0] != space.draw(4, 0)
    assert all(1e-4 <= p.lr <= 1e-2 and 1e-8 <= p.weight_decay <= 1e-4 for p in points)
    assert {p.width for p in points} == {16, 32, 64}
    assert {p.dropout for p in points} == {0.0, 0.1, 0.3}
    below = sum(p.lr < 1e-3 for p in points)  # half, as the logarithm has it
    assert 70 < below < 130
    other = Space(width=(8,)).draw(3, 0)
    assert (other.lr, other.weight_decay, other.dropout) == (
        *(points[0].lr, points[0].weight_decay, points[0].dropout),
    )


def test_without_ray(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "pna.train.ray_tune", raising=False)
    monkeypatch.delattr(pna.train, "ray_tune", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pna\[ray\]'"):
        sweep(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nothing_answers(data, tmp_path, form):
    """Is refused before Ray is asked, which would try for minutes, and before a folder is made."""
    pytest.importorskip("ray.tune", reason="no ray: pip install 'pna[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        address = form.format(free.getsockname()[1])
        with pytest.raises(ConnectionError, match=r"where nothing answers .* ray start --head"):
            sweep(data, tmp_path / "out", MODEL, SETTINGS, SPACE, address=address)
    assert not (tmp_path / "out").exists()


def test_addresses():
    pytest.importorskip("ray.tune", reason="no ray: pip install 'pna[ray]'")
    from pna.train.ray_tune import check_address

    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address(f"127.0.0.1:{server.getsockname()[1]}")
    for odd in ("somewhere", "host:port", ":6379", ""):
        with pytest.raises(ValueError, match="expected local, auto, HOST:PORT"):
            check_address(odd)


#: Runs code on the cluster at an address, as anyone on the network could.
CLIENT = """
import os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print("ran as", ray.get(ray.remote(num_cpus=0)(lambda: os.getuid()).remote()))
"""


def client(address, home, **variables):
    """The outcome of `CLIENT` in a process that has no token but by these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    quick = {"RAY_gcs_server_port_wait_time_s": "2"}
    return subprocess.run(
        [sys.executable, "-c", CLIENT, address],
        env=kept | quick | {"HOME": str(home)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nobody_is_let_in_without_the_token(tmp_path, monkeypatch):
    """A Ray of our own, and two clients of it. Takes half a minute: each starts Ray."""
    ray = pytest.importorskip("ray", reason="no ray: pip install 'pna[ray]'")
    from pna.train.ray_tune import _connected

    # Ray itself would write a token where every user can read it, or do without.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with _connected("local"):
        token = os.environ["RAY_AUTH_TOKEN"]
        address = ray.get_runtime_context().gcs_address
        refused = client(address, tmp_path, RAY_AUTH_MODE="disabled")
        assert refused.returncode != 0 and refused.stdout == ""
        let_in = client(address, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        assert let_in.stdout == f"ran as {os.getuid()}\n", let_in.stderr
        arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        written = [
            path.read_bytes()
            for folder in (tmp_path, ray._private.worker._global_node.get_session_dir_path())
            for path in Path(folder).rglob("*")
            if path.is_file()
        ]
        assert len(written) > 5 and not any(token.encode() in text for text in arguments + written)
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ


def test_every_ray_has_a_token_of_its_own():
    pytest.importorskip("ray", reason="no ray: pip install 'pna[ray]'")
    from pna.train.ray_tune import token_authentication

    tokens = set()
    for _ in range(2):
        with token_authentication():
            tokens.add(os.environ["RAY_AUTH_TOKEN"])
    assert len(tokens) == 2 and all(len(token) == 64 for token in tokens)


def held(tmp_path, trials=3):
    plan = Plan("graphs", "0", MODEL, SETTINGS, SPACE, seed=0, asha=True)
    return Sweep(tmp_path / "out", plan, trials)


def test_a_folder_knows_what_was_done(tmp_path):
    first = held(tmp_path)
    first.start()
    first.save()
    told = {"objective": 0.5, "epoch": 1, "seconds": 2.0}
    assert first.record(1, told).state == "stopped"
    assert first.record(2, {}, failed=True).error.startswith("its process was killed")
    again = held(tmp_path, trials=4)
    again.resume()
    assert [t.state for t in again.trials] == ["waiting", "stopped", "waiting", "waiting"]
    assert again.trials[1] == first.trials[1] and again.best is None
    with pytest.raises(ValueError, match="expected at least the 4"):
        held(tmp_path).resume()


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks")
def test_a_sweep_has_its_folder_to_itself(data, tmp_path, monkeypatch):
    """Another that would go on with it meanwhile would train its trials a second time."""
    given, refused = (data, tmp_path / "out", MODEL, SETTINGS, SPACE), []

    def run(*_):
        with pytest.raises(BlockingIOError, match="in which another process is writing"):
            sweep(*given, resume=True)
        refused.append(True)

    fake = SimpleNamespace(check_address=lambda _: None, run=run)
    monkeypatch.setattr(pna.train, "ray_tune", fake, raising=False)
    sweep(*given)
    assert refused
    with pytest.raises(FileNotFoundError, match="expected the folder of a sweep"):
        sweep(data, tmp_path / "none", MODEL, SETTINGS, SPACE, resume=True)


def test_another_sweep_is_refused(tmp_path):
    held(tmp_path).start()
    with pytest.raises(FileExistsError, match="is not empty"):
        held(tmp_path).start()
    plan = Plan("moved", "0", MODEL, SETTINGS, SPACE, seed=1, asha=False)
    with pytest.raises(ValueError, match="got other seed, asha than"):
        Sweep(tmp_path / "out", plan, 3).resume()
    with pytest.raises(FileNotFoundError, match=r"has no sweep\.json"):
        Sweep(tmp_path / "none", plan, 3).resume()


def test_the_former_name_of_the_callback_works(data, tmp_path):
    deprecated = pytest.warns(DeprecationWarning, match="say of sweep is now called report")
    refused = pytest.raises((ValueError, ModuleNotFoundError), match=r"got trials=0|pna\[ray")
    with deprecated, refused:
        sweep(data, tmp_path / "out", MODEL, SETTINGS, SPACE, trials=0, say=lambda *_: None)


def test_sweep(cluster, data, tmp_path):
    """Two trials; then one is spoilt, and one more is asked for."""
    out = tmp_path / "out"
    reported = []
    found = sweep(
        data,
        out,
        MODEL,
        SETTINGS,
        SPACE,
        trials=2,
        report=lambda _, trial: reported.append(trial.number),
    )
    assert [t.state for t in found.trials] == ["finished", "finished"]
    assert sorted(reported) == [0, 1] and found.best is not None
    for trial in found.trials:
        run = Run(found.folder_of(trial))
        assert trial.objective == sum(run.summary["best"]) / 2 and trial.epochs == 2
        assert run.config.settings.lr == (trial.point.lr,)
        assert run.config.settings.weight_decay == (trial.point.weight_decay,)
        assert run.config.model.hidden == 4
        assert run.config.model.arguments["dropout"] == trial.point.dropout
    best = json.loads((out / "best.json").read_text())
    assert best["objective"] == min(t.objective for t in found.trials)
    assert Run(out / best["folder"]).summary["epochs"] == 2
    assert sorted(p.name for p in out.iterdir()) == [
        *("best.json", "sweep.csv", "sweep.json", "trials"),
    ]

    # trial 1 as if it had been cut off, and its configuration lost
    for name in ("summary.json", "last.safetensors", "best.safetensors"):
        (out / "trials" / "001" / name).unlink()
    (out / "trials" / "001" / "config.json").write_text("{}")
    before = (out / "trials" / "000" / "metrics.csv").stat().st_mtime_ns
    again = sweep(data, out, MODEL, SETTINGS, SPACE, trials=3, resume=True)
    assert [t.state for t in again.trials] == ["finished", "failed", "finished"]
    assert "config.json" in again.trials[1].error
    assert again.trials[0] == found.trials[0]
    assert (out / "trials" / "000" / "metrics.csv").stat().st_mtime_ns == before
    with (out / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["finished", "failed", "finished"]
    assert float(rows[2]["objective"]) == again.trials[2].objective


def test_too_many_processors(cluster, data, tmp_path):
    with pytest.raises(ValueError, match="got 64 CPUs for each trial, expected at most the 2"):
        sweep(data, tmp_path / "out", MODEL, SETTINGS, SPACE, trials=1, cpus_per_trial=64)


def test_a_sweep_killed_as_it_began_can_be_begun_anew(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".sweep.json.99999.tmp").write_text("{")
    held(tmp_path).start()
    assert [path.name for path in folder.iterdir()] == ["sweep.json"]


def test_other_targets_are_another_sweep(tmp_path):
    held(tmp_path).start()
    plan = replace(held(tmp_path).plan, loss={"a": "mae"}, tasks=["a"])
    with pytest.raises(ValueError, match="got other loss, tasks than"):
        Sweep(tmp_path / "out", plan, 3).resume()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"version": "2"}', b"{}"]
)
def test_a_damaged_plan_is_named_with_a_remedy(tmp_path, content):
    begun = held(tmp_path)
    begun.start()
    (begun.folder / "sweep.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"sweep\.json, which cannot be read .*restore the file"):
        held(tmp_path).resume()
    assert (begun.folder / "sweep.json").read_bytes() == content


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b"stopped", b"stopped\xff,", 1),
        lambda text: text.replace(b"0.5", b"half", 1),
        lambda text: b"\xff\x00" * 9 + text[18:],
        lambda text: text[: text.index(b"0.5")],
        lambda text: b"".join(text.splitlines(keepends=True)[:2]),
    ],
    ids=["a cell more", "a word", "no header", "cut", "a row less"],
)
def test_a_damaged_table_is_named_by_its_line(tmp_path, damage):
    """Trials that were stopped early were run again without a word, and their rows lost."""
    begun = held(tmp_path)
    begun.start()
    begun.record(1, {"objective": 0.5, "epoch": 3, "seconds": 2.0})
    begun.folder_of(begun.trials[1]).mkdir(parents=True)
    path = begun.folder / "sweep.csv"
    path.write_bytes(damage(path.read_bytes()))
    before = {p.name: p.read_bytes() for p in begun.folder.iterdir() if p.is_file()}
    with pytest.raises(ValueError, match=r"sweep\.csv, line \d, .*restore the file, or remove it"):
        held(tmp_path).resume()
    assert {p.name: p.read_bytes() for p in begun.folder.iterdir() if p.is_file()} == before
    path.unlink()
    with pytest.warns(UserWarning, match="sweep.csv is missing: trials that were stopped early"):
        held(tmp_path).resume()
