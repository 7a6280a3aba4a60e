"""What the regressor and the classifier have in common: parameters, training, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pna.data.graphset import GraphSet
from pna.data.molecule_features import RECORD, USUAL, MoleculeFeatures
from pna.data.molecule_table import standardised
from pna.estimators.inputs import (
    SPLITS,
    as_graph_set,
    has_graphs,
    labelled,
    validation_rows,
    with_weights,
)
from pna.estimators.trained import TrainedRun
from pna.files import is_new
from pna.stored import check, read_json
from pna.train.calibration import calibrations_of
from pna.train.defaults import MOLECULES, model_for, settings_for
from pna.train.loop import Report, train
from pna.train.prediction import in_units, mean_and_std
from pna.train.run import write_json

T = TypeVar("T", bound="GraphEstimator")

#: Parameters and classes of a saved estimator, beside the files of its run.
ESTIMATOR = "estimator.json"
_VERSION = 1


#: The parameters of estimators, for their docstrings.
PARAMETERS = """Args:
        members: number of models, which differ by their initial weights. Predictions are means.
        epochs: most epochs of training. Default: 30 from 6,000 molecules on, otherwise 50.
        patience: epochs without a better validation loss after which a member stops. Default: none.
        hidden: features of each node in the model.
        layers: number of layers. Default: 1 for fewer than 3,000 molecules with features of their
            own, otherwise 3.
        lr: learning rate. Default: 0.002 if the default is 1 layer, otherwise 0.001.
        batch_size: graphs per training step. Default: 128 from 6,000 molecules on, otherwise 64.
        features: names of `pna.data.molecule_features.FEATURES`, "ogb" first. A `GraphSet` keeps
            the features that it has.
        smiles: the column of SMILES if X is a table. Default: the one with that name.
        validation_fraction: fraction of the molecules on which the best epoch is selected.
        random_state: seed of the weights, of the order of molecules and of the validation set.
        device: a device of torch. Default: a GPU if there is one.
        verbose: print a line after every epoch.
        run_dir: folder in which each fit makes a new run folder. Default: a temporary folder, which
            is removed with the estimator.
"""


class GraphEstimator(BaseEstimator):
    """Trains an ensemble of PNA models, and keeps its run in `run_`. See `PARAMETERS`."""

    run_: TrainedRun

    def __init__(
        self,
        members: int = 5,
        *,
        epochs: int | None = None,
        patience: int | None = None,
        hidden: int = 64,
        layers: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        features: Sequence[str] = USUAL,
        smiles: str = "",
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        device: str | torch.device | None = None,
        verbose: bool = False,
        run_dir: str | Path | None = None,
    ) -> None:
        self.members = members
        self.epochs = epochs
        self.patience = patience
        self.hidden = hidden
        self.layers = layers
        self.lr = lr
        self.batch_size = batch_size
        self.features = features
        self.smiles = smiles
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.run_dir = run_dir

    def predict_std(self, X: Any) -> NDArray[np.float64]:
        """Standard deviation of the predictions of the members, in the shape of their mean.

        It says how much the members disagree, which is less than the error to expect.
        """
        _, std = self._predicted(X)
        members = len(self.run_.models(self.device).members)
        if members < 2:
            raise ValueError(
                f"got an estimator with {members} trained member, expected at least 2 for a "
                "standard deviation; fit with more (members)"
            )
        return self._in_shape(std)

    def save(self, path: str | Path) -> None:
        """Write a new folder with the run and the parameters; nothing in it is pickled.

        `pna predict` and `pna export` take this folder too.
        """
        check_is_fitted(self)
        folder = Path(path)
        if not is_new(folder):
            raise FileExistsError(
                f"got {folder}, which is not empty, expected a new folder; choose another"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.run_.copy_to(folder)
        parameters = self.get_params() | {
            "features": list(self._feature_names()),
            "device": None if self.device is None else str(self.device),
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }
        if not isinstance(self.random_state, int | None):
            parameters["random_state"] = None  # the state of a generator cannot be repeated
        stored = {"version": _VERSION, "estimator": type(self).__name__, "parameters": parameters}
        write_json(folder / ESTIMATOR, stored | self._facts())

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """An estimator from a folder of `save`, which must stay there."""
        folder = Path(path)
        if not (folder / ESTIMATOR).is_file():
            raise FileNotFoundError(
                f"got {folder}, which has no {ESTIMATOR}, expected the folder of a saved "
                "estimator; use pna.train.predict for the folder of another run"
            )
        try:
            content = read_json(folder / ESTIMATOR)
            check(content, {"version": int, "estimator": str, "parameters": dict[str, Any]})
            if content["estimator"] != cls.__name__ or content["version"] > _VERSION:
                raise ValueError(
                    f"it has a {content['estimator']} of version {content['version']}, not a "
                    f"{cls.__name__} of version {_VERSION}"
                )
            made = cls().set_params(**content["parameters"])
            made.features = tuple(made.features)
            made._restore(content)
        except ValueError as error:
            raise ValueError(
                f"got {folder / ESTIMATOR}, which cannot be used ({error}), expected what "
                f"{cls.__name__}.save wrote; restore the file"
            ) from error
        made.run_ = TrainedRun(folder)
        made.run_.models(made.device)  # raises if a file is missing or damaged
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # of numbers
        tags.input_tags.one_d_array = tags.input_tags.string = True
        return tags

    def _facts(self) -> dict[str, Any]:
        """What a saved estimator has besides its parameters."""
        return {}

    def _restore(self, content: Mapping[str, Any]) -> None:
        """Set the fitted attributes, except `run_`, from `_facts`."""

    def _feature_names(self) -> tuple[str, ...]:
        return (self.features,) if isinstance(self.features, str) else tuple(self.features)

    def _graphs(self, X: Any) -> GraphSet:
        """The graphs to train with."""
        return as_graph_set(X, MoleculeFeatures.parse(self._feature_names()), self.smiles)

    def _samples(
        self, X: Any, y: NDArray[Any], sample_weight: Any
    ) -> tuple[GraphSet, NDArray[Any]]:
        """The graphs and targets with a weight above 0; other samples are left out."""
        graphs = self._graphs(X)
        check_length(graphs, y)
        graphs = with_weights(graphs, sample_weight)
        if graphs.sample_weight is None:
            return graphs, y
        kept = graphs.sample_weight > 0
        return graphs[kept], y[kept.numpy()]

    def _graphs_to_predict(self, X: Any) -> GraphSet:
        """Graphs with the features that the models were trained with."""
        if has_graphs(X):
            return as_graph_set(X, MoleculeFeatures())
        config = self.run_.config
        of_graphs = config.model.graph_features > 0
        return as_graph_set(X, MoleculeFeatures.of_run(config.data, of_graphs), self.smiles)

    def _train(
        self,
        graphs: GraphSet,
        y: NDArray[np.float64],
        groups: NDArray[np.int64],
        loss: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Train on targets (graphs, columns); `groups` (graphs,) are validated in proportion."""
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"got epochs={self.epochs}, expected at least 1")
        random = check_random_state(self.random_state)
        chosen = validation_rows(groups, ~np.isnan(y), self.validation_fraction, random)
        data = standardised(labelled(graphs, y.astype(np.float32), chosen))
        data.metadata.update(metadata)
        seed = int(random.randint(2**31 - 1))
        given: dict[str, Any] = {"members": self.members, "patience": self.patience}
        given |= {name: value for name in _CHOSEN if (value := getattr(self, name)) is not None}
        usual = {} if RECORD in data.metadata else _OF_OTHER_GRAPHS
        settings = settings_for(data, usual | given | {"seed": seed, "data_seed": seed})
        sizes = {"hidden": self.hidden} | ({} if self.layers is None else {"layers": self.layers})
        model = model_for(data, "pna", sizes, loss)
        run = TrainedRun(None if self.run_dir is None else _new_folder(Path(self.run_dir)))
        report = _print_epoch if self.verbose else None
        train(
            data, run.folder, model, settings,
            loss=loss, splits=SPLITS, device=self.device, report=report,
        )  # fmt: skip
        summary = run.summary
        if summary is None or all(best is None for best in summary["best"]):
            raise ValueError(
                f"got no finite validation loss with lr={settings.lr[0]}, expected one; lower lr, "
                "or check y for numbers that are far off"
            )
        self.run_ = run

    def _predicted(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation of the members' predictions, (graphs, columns) each: targets, or the
        probabilities of classes. They are those of `pna predict`."""
        check_is_fitted(self)
        models = self.run_.models(self.device)
        outputs = models.outputs(self._graphs_to_predict(X))["graph"]
        calibrations = calibrations_of(self.run_, models.members, None)
        of_tasks = [
            mean_and_std(in_units(task, outputs), calibration.temperature)
            for task, calibration in zip(models.config.tasks, calibrations, strict=True)
        ]
        mean, std = (
            np.concatenate([c.reshape(outputs.shape[1], -1) for c in columns], 1)
            for columns in zip(*of_tasks, strict=True)
        )
        return mean, std

    def _in_shape(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns (graphs, columns) in the shape that users get."""
        return columns


#: Settings that suit the graphs by default.
_CHOSEN = ("epochs", "batch_size", "lr")
#: Defaults for graphs that are no molecules.
_OF_OTHER_GRAPHS = {name: MOLECULES[name] for name in ("epochs", "batch_size")}


def check_length(graphs: Sized, y: NDArray[Any]) -> None:
    """Raise unless there is a row of y for every graph."""
    if len(graphs) != len(y):
        raise ValueError(
            f"got {len(graphs)} molecules in X and {len(y)} rows in y, expected as many; give y a "
            "row for each molecule"
        )


def _new_folder(parent: Path) -> Path:
    """Make the first of fit-1, fit-2, … that is not there."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            (parent / f"fit-{number}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return parent / f"fit-{number}"


def _print_epoch(report: Report) -> None:
    losses = (np.nanmean(each) for each in (report.training, report.validation))
    training, validation = (f"{loss:.4g}" for loss in losses)
    print(
        f"epoch {report.epoch}/{report.epochs}: training loss {training}, validation loss "
        f"{validation}, {report.seconds:.2f} s"
    )
