"""The run of a fitted estimator: it can be pickled, and removes a temporary folder itself."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pna.train.prediction import Ensemble
from pna.train.run import BEST, CONFIG, ENVIRONMENT, METRICS, SUMMARY, Run

#: The files of a run that predictions and reports need: all but the checkpoint to resume from.
KEPT = (CONFIG, ENVIRONMENT, METRICS, BEST, SUMMARY)
_PREFIX = "pna-"


class TrainedRun(Run):
    """A `Run` that has its own folder, or a temporary one, which is removed with this object.

    A pickle has the bytes of the files `KEPT`: JSON, CSV and safetensors, and no pickled tensors.
    An unpickled run has them in a temporary folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._temporary = TemporaryDirectory(prefix=_PREFIX) if folder is None else None
        super().__init__(self._temporary.name if self._temporary else str(folder))
        self._models: dict[str, Ensemble] = {}

    def models(self, device: str | torch.device | None) -> Ensemble:
        """The trained members on a device, read once."""
        key = str(device)
        if key not in self._models:
            self._models[key] = Ensemble.of(self, device=device)
        return self._models[key]

    def copy_to(self, folder: Path) -> None:
        """Copy the files `KEPT`."""
        for name in KEPT:
            if (self.folder / name).is_file():
                copyfile(self.folder / name, folder / name)

    def __getstate__(self) -> dict[str, Any]:
        paths = [self.folder / name for name in KEPT]
        return {"files": {path.name: path.read_bytes() for path in paths if path.is_file()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrainedRun.__init__(self)
        for name in KEPT:
            if name in state["files"]:
                (self.folder / name).write_bytes(state["files"][name])
