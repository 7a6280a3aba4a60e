"""The trials of a sweep on Ray Tune, which assigns CPUs and GPUs and stops the worse trials.

Ray gets a grid of trial numbers and the results of each epoch. `pna.train.sweep` decides what a
trial is and where it is saved. Ray's own state is temporary: it is in a folder of its own while the
sweep runs, and is never read.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

import ray
import torch
from ray import tune
from ray._raylet import (
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    get_authentication_mode,
)

from pna.train.sweep import Sweep, Trial, run_trial

#: No usage reports, no handler of Ctrl-C, and no tables or logs but ours.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
#: Bytes; the smallest that Ray accepts, since a result is one line per epoch.
_OBJECT_STORE = 128 * 2**20
#: Seconds in which a cluster must answer, and in which Ray may try to join it (once a second).
_ANSWERS, _JOINS = 5.0, 3
#: Default port of `ray://`.
_CLIENT_PORT = 10001
#: ASHA keeps the best third of the trials at each of three rungs.
_REDUCTION, _RUNGS = 3, 3


def run(
    sweep: Sweep,
    address: str,
    cpus: int,
    gpus: float | None,
    on_trial: Callable[[Sweep, Trial], None] | None,
) -> None:
    """Run the waiting trials on a cluster, or on this machine if `address` is "local"."""
    with _connected(address):
        offered = ray.cluster_resources()
        gpus = min(1.0, offered.get("GPU", 0.0)) if gpus is None else gpus
        for name, wanted in (("CPU", cpus), ("GPU", gpus)):
            if wanted > offered.get(name, 0.0):
                raise ValueError(
                    f"got {wanted:g} {name}s for each trial, expected at most the "
                    f"{offered.get(name, 0.0):g} that there are"
                )
        # Ray's state is in the sweep, where all machines of a cluster see it
        with tempfile.TemporaryDirectory(
            prefix=".ray-", dir=sweep.folder, ignore_cleanup_errors=True
        ) as ray_folder:
            tuner = tune.Tuner(
                tune.with_resources(_trainable(sweep, cpus, gpus), {"cpu": cpus, "gpu": gpus}),
                param_space={"trial": tune.grid_search(sweep.waiting)},
                tune_config=tune.TuneConfig(scheduler=_scheduler(sweep)),
                run_config=tune.RunConfig(
                    name="ray",
                    storage_path=ray_folder,
                    verbose=0,
                    callbacks=[_Recorder(sweep, on_trial)],
                ),
            )
            tuner.fit()
        sweep.update()  # with ray:// the trials were recorded on the cluster


def check_address(address: str) -> None:
    """Raise unless something listens at the address: Ray itself would try for minutes."""
    if address in ("local", "auto"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port or (_CLIENT_PORT if parts.scheme else None)
    except ValueError:
        host = port = None
    if not host or not port:
        raise ValueError(
            f"got address {address!r}, expected local, auto, HOST:PORT or ray://HOST:PORT"
        )
    try:
        socket.create_connection((host, port), _ANSWERS).close()
    except OSError as error:
        raise ConnectionError(
            f"got address {address!r}, where nothing answers ({error}), expected that of a Ray "
            "cluster; ray start --head starts one and prints its address (the default port is 6379)"
        ) from error


def _trainable(sweep: Sweep, cpus: int, gpus: float) -> Callable[[dict[str, Any]], None]:
    """The function that Ray calls for each trial, in a separate process."""

    def trial(config: dict[str, Any]) -> None:
        torch.set_num_threads(cpus)
        run_trial(sweep, config["trial"], "cuda" if gpus else "cpu", tune.report)

    return trial


def _scheduler(sweep: Sweep) -> Any:
    """ASHA over epochs, or none."""
    if not sweep.plan.asha:
        return None
    epochs = sweep.plan.settings.epochs
    return tune.schedulers.ASHAScheduler(
        time_attr="epoch",
        metric="objective",
        mode="min",
        max_t=max(epochs, 1),
        grace_period=max(epochs // _REDUCTION**_RUNGS, 1),
        reduction_factor=_REDUCTION,
    )


class _Recorder(tune.Callback):
    """Records every trial that ends."""

    def __init__(self, sweep: Sweep, on_trial: Callable[[Sweep, Trial], None] | None) -> None:
        self._sweep, self._on_trial = sweep, on_trial

    def __getstate__(self) -> dict[str, Any]:
        """For the copy that Ray keeps, and uses on a cluster: it has no terminal."""
        return vars(self) | {"_on_trial": None}

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._record(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._record(trial, failed=True)

    def _record(self, trial: Any, failed: bool = False) -> None:
        ended = self._sweep.record(trial.config["trial"], trial.last_result or {}, failed)
        if self._on_trial is not None:
            self._on_trial(self._sweep, ended)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to the cluster of this process if there is one, else to that of the address."""
    os.environ.update(_ENVIRONMENT)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are reported by the sweep
    if ray.is_initialized():
        yield
        return
    is_local = address == "local"
    if not is_local:
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(_JOINS))
    with token_authentication() if is_local else nullcontext(), _started(address):
        yield


@contextmanager
def token_authentication() -> Iterator[None]:
    """A Ray started in this block accepts only clients with its new random token.

    Ray listens on every network interface and runs any code that it receives. The token is in the
    environment of this process, which Ray's processes inherit. It is in no file, and other users
    of the machine cannot read it. The user's own variables for Ray are restored afterwards.
    """
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    given = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    try:
        _read_authentication()
        if get_authentication_mode() != AuthenticationMode.TOKEN:
            raise RuntimeError(
                f"got Ray {ray.__version__} without token authentication, expected it to be on: "
                "others could run code here; install the version of Ray in constraints.txt"
            )
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(given)
        _read_authentication()


def _read_authentication() -> None:
    """Make Ray read its environment variables again; it caches them at import."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _started(address: str) -> Iterator[None]:
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(own if address == "local" else {}),
        )
    except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        token = (
            "; if the cluster was started with a token, set RAY_AUTH_MODE=token and the same "
            "RAY_AUTH_TOKEN here"
        )
        raise ConnectionError(
            f"got address {address!r}, and Ray says: {first}{'' if address == 'local' else token}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
