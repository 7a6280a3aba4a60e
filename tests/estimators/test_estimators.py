"""`PNARegressor` and `PNAClassifier` on molecules, with scikit-learn's tools around them."""

import gc
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import pna
from pna import GraphSet, PNAClassifier, PNARegressor
from pna.estimators import trained
from pna.train import predict
from pna.train.defaults import model_for, settings_for

pytest.importorskip("rdkit")
pytest.importorskip("ogb")
joblib = pytest.importorskip("joblib")
pd = pytest.importorskip("pandas")

SMILES = [f"{'C' * (1 + i % 5)}({'C' * (1 + i // 5)})O" for i in range(20)]
CARBONS = np.array([one.count("C") for one in SMILES], float)
SIZE = np.where(CARBONS > 5, "large", "small")
TINY: dict[str, Any] = {"members": 2, "epochs": 2, "hidden": 4, "layers": 1, "random_state": 0}


@pytest.fixture(scope="module")
def regressor() -> PNARegressor:
    return PNARegressor(**TINY).fit(SMILES, CARBONS)


@pytest.fixture(scope="module")
def classifier() -> PNAClassifier:
    return PNAClassifier(**TINY).fit(SMILES, SIZE)


def test_scikit_learn_is_imported_when_it_is_used(monkeypatch):
    assert not {"PNARegressor", "PNAClassifier"} & {*vars(pna)}
    monkeypatch.delitem(sys.modules, "pna.estimators")
    monkeypatch.delattr(pna, "estimators")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pna\[sklearn\]'"):
        _ = pna.PNARegressor
    with pytest.raises(AttributeError, match="has no attribute 'PNARegresor'"):
        _ = pna.PNARegresor


def test_defaults_are_those_of_pna_train(regressor):
    graphs = regressor._graphs(SMILES)
    settings, model = settings_for(graphs, {}), model_for(graphs, "pna", {})
    own = PNARegressor()
    assert own.patience == settings.patience
    assert own.hidden == model.hidden and own.members == settings.members
    few = PNARegressor(members=1).fit(SMILES, range(len(SMILES))).run_.config
    for name in ("lr", "epochs", "batch_size"):
        assert getattr(few.settings, name) == getattr(settings, name)
    assert few.model.arguments["layers"] == model.arguments["layers"]


def test_all_kinds_of_molecules_give_the_same_predictions(regressor):
    from rdkit import Chem

    expected = regressor.predict(SMILES)
    frame = pd.DataFrame({"id": range(20), "Canonical_SMILES": SMILES})
    for X in (
        np.array(SMILES),
        np.array(SMILES, object)[:, None],  # a selected column
        pd.Series(SMILES, index=range(5, 25)),
        frame,
        [Chem.MolFromSmiles(one) for one in SMILES],
        regressor._graphs(SMILES),
    ):
        np.testing.assert_allclose(regressor.predict(X), expected, rtol=1e-5)


def test_a_column_of_smiles_by_name():
    frame = pd.DataFrame({"smiles": ["not one"] * 20, "mol": SMILES})
    own = PNARegressor(**TINY, smiles="mol").fit(frame, CARBONS)
    assert own.predict(frame).shape == (20,)
    with pytest.raises(ValueError, match="expected one called smiles"):
        PNARegressor(**TINY).fit(frame[["mol"]], CARBONS)


def test_predictions_are_means_of_the_members_of_the_run(regressor):
    graphs = regressor._graphs(SMILES)
    members = [predict(regressor.run_, graphs, member).graph["y"] for member in (0, 1)]
    np.testing.assert_allclose(regressor.predict(SMILES), (members[0] + members[1]) / 2)
    np.testing.assert_allclose(
        regressor.predict_std(SMILES), np.abs(members[0] - members[1]) / 2, atol=2e-6
    )


@pytest.mark.slow
def test_it_learns():
    """Slow: 60 epochs."""
    given = TINY | {"epochs": 60, "hidden": 16, "batch_size": 8, "lr": 1e-2}
    assert PNARegressor(**given).fit(SMILES, CARBONS).score(SMILES, CARBONS) > 0.8


def test_scores(regressor, classifier):
    assert regressor.score(SMILES, CARBONS) == r2_score(CARBONS, regressor.predict(SMILES))
    assert classifier.score(SMILES, SIZE) == accuracy_score(SIZE, classifier.predict(SMILES))
    some = np.where(np.arange(20) % 2, CARBONS, np.nan)
    odd = r2_score(CARBONS[1::2], regressor.predict(SMILES[1::2]))
    assert regressor.score(SMILES, some) == pytest.approx(odd, abs=1e-5)


def test_classes_of_any_labels(classifier):
    assert classifier.classes_.tolist() == ["large", "small"]
    probabilities = classifier.predict_proba(SMILES)
    assert probabilities.shape == classifier.predict_std(SMILES).shape == (20, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    likely = classifier.predict(SMILES)
    assert set(likely) <= {"large", "small"}
    np.testing.assert_array_equal(likely == "small", probabilities[:, 1] > probabilities[:, 0])
    several = PNAClassifier(**TINY).fit(SMILES, (CARBONS % 3 * 10).astype(int))
    assert several.classes_.tolist() == [0, 10, 20]
    assert several.predict_proba(SMILES).shape == (20, 3)
    assert set(several.predict(SMILES).tolist()) <= {0, 10, 20}


def test_several_targets_with_unknown_numbers():
    y = np.stack([CARBONS, 2 * CARBONS], 1)
    y[4:, 1] = np.nan
    own = PNARegressor(**TINY).fit(SMILES, y)
    assert own.predict(SMILES).shape == own.predict_std(SMILES).shape == (20, 2)
    column = PNARegressor(**TINY).fit(SMILES, CARBONS[:, None])
    assert column.predict(SMILES).shape == (20, 1)


def test_features_are_those_of_the_fit():
    own = PNARegressor(**TINY | {"members": 1}, features=("ogb", "descriptors"))
    own.fit(SMILES, CARBONS)
    before = own.predict(SMILES)
    own.set_params(features=("ogb",))
    np.testing.assert_array_equal(own.predict(SMILES), before)
    plain = PNARegressor(features=("ogb",))._graphs(SMILES)
    with pytest.raises(ValueError, match="got graphs with 0 graph features"):
        own.predict(plain)


def test_graph_sets_of_any_graphs_in_cross_validation():
    two = np.full(12, 2)
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    graphs = GraphSet.from_arrays(two, np.tile([[0, 1], [1, 0]], 12), two, x=x, y_graph=np.ones(12))
    scores = cross_val_score(PNARegressor(**TINY), graphs, x[::2, 0], cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()
    own = PNARegressor(**TINY).fit(graphs, x[::2, 0])
    with pytest.raises(ValueError, match="trained with other node features"):
        own.predict(SMILES)


def test_scikit_learn_searches_and_pipelines():
    stripped = FunctionTransformer(lambda X: [one.strip() for one in X])
    model = make_pipeline(stripped, PNAClassifier(**TINY | {"members": 1}))
    search = GridSearchCV(model, {"pnaclassifier__hidden": [4, 8]}, cv=2)
    search.fit([f" {one}\n" for one in SMILES], SIZE)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    best = search.best_estimator_[-1]
    assert best.run_.config.model.hidden == search.best_params_["pnaclassifier__hidden"]


def test_a_fit_that_fails_changes_nothing():
    own = PNAClassifier(**TINY).fit(SMILES, SIZE)
    before = own.predict(SMILES)
    with pytest.raises(ValueError, match="got epochs=0"):
        own.set_params(epochs=0).fit(SMILES, CARBONS)
    np.testing.assert_array_equal(own.predict(SMILES), before)


def test_weights_of_samples(regressor):
    molecules, weights = np.array(SMILES), np.arange(20) % 5 / 4

    def predicted(rows, weights):
        own = PNARegressor(**TINY).fit(molecules[rows], CARBONS[rows], sample_weight=weights)
        return own.predict(SMILES)

    usual, every, some = regressor.predict(SMILES), np.arange(20), np.flatnonzero(weights)
    np.testing.assert_array_equal(predicted(every, [0.3] * 20), usual)
    found = predicted(every, weights)
    assert (found != usual).all()
    np.testing.assert_array_equal(found, predicted(some, weights[some]))  # 0 leaves samples out
    for odd, message in (
        (-weights, "got -0.25 as sample_weight of graph 1"),
        (weights[:3], r"got sample_weight of shape \(3,\)"),
        (0 * weights, "got a sample_weight of zero for all molecules"),
    ):
        with pytest.raises(ValueError, match=message):
            predicted(every, odd)
    with pytest.raises(ValueError, match=r"got one class only, .*'small'"):
        PNAClassifier(**TINY).fit(SMILES, SIZE, sample_weight=SIZE == "small")


def test_random_state_repeats_a_fit(regressor):
    again = clone(regressor).fit(SMILES, CARBONS)
    np.testing.assert_array_equal(again.predict(SMILES), regressor.predict(SMILES))
    other = clone(regressor).set_params(random_state=1).fit(SMILES, CARBONS)
    assert (other.predict(SMILES) != regressor.predict(SMILES)).all()


def test_a_pickle_has_files_and_no_tensors(classifier, tmp_path):
    joblib.dump(classifier, tmp_path / "model.joblib")
    content = pickle.dumps(classifier)
    for file in classifier.run_.__getstate__()["files"].values():
        assert file in content
        content = content.replace(file, b"")
    assert b"torch" not in content
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict_proba(SMILES), classifier.predict_proba(SMILES))
    assert again.run_.folder != classifier.run_.folder


def test_files_of_a_pickle_stay_in_their_folder(regressor):
    state = regressor.run_.__getstate__()
    state["files"]["../outside.txt"] = b"no"
    run = trained.TrainedRun.__new__(trained.TrainedRun)
    run.__setstate__(state)
    assert {path.name for path in run.folder.iterdir()} <= {*trained.KEPT}
    assert not (run.folder.parent / "outside.txt").exists()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_saved_and_loaded(kind, request, tmp_path):
    fitted = request.getfixturevalue(kind)
    fitted.save(tmp_path / "model")
    again = type(fitted).load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(SMILES), fitted.predict(SMILES))
    assert again.get_params() == fitted.get_params()
    assert "y" in predict(tmp_path / "model", fitted._graphs(SMILES)).graph
    with pytest.raises(FileExistsError, match="expected a new folder"):
        fitted.save(tmp_path / "model")
    other = PNAClassifier if kind == "regressor" else PNARegressor
    with pytest.raises(ValueError, match=f"not a {other.__name__}"):
        other.load(tmp_path / "model")
    (tmp_path / "model" / "best.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"best\.safetensors"):
        type(fitted).load(tmp_path / "model")


@pytest.mark.parametrize("labels", [[False, True], [1.0, 2.0], [-3, 7], ["a", "ü"]])
def test_loaded_classes_keep_their_type(labels, tmp_path):
    own = PNAClassifier(**TINY | {"members": 1, "epochs": 1})
    own.fit(SMILES[:8], np.array(labels)[np.arange(8) % 2]).save(tmp_path / "model")
    again = PNAClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == labels and again.classes_.dtype == own.classes_.dtype


def test_a_constant_target_is_told():
    with pytest.warns(UserWarning, match=r"got y with one number only, 3: there is nothing to le"):
        PNARegressor(**TINY).fit(SMILES, [3.0] * len(SMILES))


def test_the_folders_of_runs(tmp_path, capsys):
    own = PNARegressor(**TINY, run_dir=tmp_path / "runs", verbose=True)
    own.fit(SMILES, CARBONS).fit(SMILES, CARBONS)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fit-1", "fit-2"}
    assert own.run_.folder == tmp_path / "runs" / "fit-2"
    assert len(capsys.readouterr().out.splitlines()) == 4
    temporary = PNARegressor(**TINY).fit(SMILES, CARBONS)
    folder: Path = temporary.run_.folder
    assert folder.is_dir()
    del temporary
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        (SMILES, CARBONS[:3], ValueError, "got 20 molecules in X and 3 rows in y"),
        ([*SMILES[:3], "C(", "x"], CARBONS[:5], ValueError,
         "got 'C\\(' at index 3 of X, and 1 more such texts"),
        ([*SMILES[:3], None], CARBONS[:4], TypeError, "got NoneType at index 3 of X"),
        (np.eye(3), CARBONS[:3], TypeError, "got ndarray at index 0"),
        ("CCO", [1.0], TypeError, "put a single molecule in a list"),
        ([], [], ValueError, "got no molecules"),
        (SMILES[:1], [1.0], ValueError, "got 1 sample, expected at least 2"),
        (SMILES, None, ValueError, "requires y to be passed"),
        (SMILES, SIZE, ValueError, "use PNAClassifier for labels"),
        (SMILES, [*CARBONS[:19], np.inf], ValueError, "got inf in y"),
        (SMILES, 1e6 + 1e-3 * CARBONS, ValueError, "too little for float32 at 1e.06; subtract"),
        (SMILES, [1.0, *[np.nan] * 19], ValueError, "got 1 known values of target 0"),
        (SMILES, CARBONS[:, None, None], ValueError, "got y of shape"),
    ],
)  # fmt: skip
def test_regressor_refuses(X, y, error, message):
    with pytest.raises(error, match=message):
        PNARegressor(**TINY).fit(X, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([None, *SIZE[1:]], "got an unknown label, NaN or None, at index 0 of y"),
        ([*CARBONS[:19], np.nan], "at index 19 of y"),
        (["a"] * 20, "got one class only, .*'a'"),
        (CARBONS + 0.5, "Unknown label type"),
        (None, "requires y to be passed"),
    ],
)
def test_classifier_refuses(y, message):
    with pytest.raises(ValueError, match=message):
        PNAClassifier(**TINY).fit(SMILES, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": 0}, "got epochs=0"),
        ({"validation_fraction": 1.0}, "got validation_fraction=1.0"),
        ({"members": 0}, "got members=0"),
        ({"features": ("descriptors",)}, "expected ogb first"),
    ],
)
def test_parameters_are_checked_by_fit(parameters, message):
    with pytest.raises(ValueError, match=message):
        PNARegressor(**TINY | parameters).fit(SMILES, CARBONS)


def test_methods_that_need_more(tmp_path):
    for method in ("predict", "predict_std"):
        with pytest.raises(NotFittedError):
            getattr(PNARegressor(), method)(SMILES)
    with pytest.raises(NotFittedError):
        PNAClassifier().save(tmp_path / "model")
    alone = PNARegressor(**TINY | {"members": 1}).fit(SMILES, CARBONS)
    with pytest.raises(ValueError, match="got an estimator with 1 trained member"):
        alone.predict_std(SMILES)
    with pytest.raises(FileNotFoundError, match=r"has no estimator\.json"):
        PNARegressor.load(alone.run_.folder)
