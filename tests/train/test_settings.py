"""Settings as they are given, checked, written and read."""

from __future__ import annotations

import json

import pytest
import torch

from pna.train.settings import PRECISIONS, ModelSettings, Settings


def test_one_number_is_one_for_all_members():
    settings = Settings(members=3, lr=0.1, weight_decay=[1, 2, 3], seed=5)
    assert settings.of_members("lr") == [0.1] * 3
    assert settings.of_members("weight_decay") == [1.0, 2.0, 3.0]
    assert settings.seeds == [5, 6, 7]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(members=2, lr=(1, 2), task_weights=[[1.0, 2.0], [3.0, 4.0]], clip=1.0,
                 average=0.9, patience=None, schedule="cosine", optimiser="adamw"),
    ],
    ids=["usual", "all its own"],
)  # fmt: skip
def test_settings_survive_json(settings):
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings


def test_models_survive_json():
    model = ModelSettings("gin", "stacked", 8, "published", {"layers": 3}, 2, 1, 3, (0, 4, 2))
    assert ModelSettings.from_dict(json.loads(json.dumps(model.as_dict()))) == model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"members": 3, "lr": (1, 2)}, "got 2 numbers for lr, expected one, or one for each of 3"),
        ({"members": 2, "weight_decay": (1, 2, 3)}, "got 3 numbers for weight_decay"),
        ({"members": 2, "task_weights": [[1.0]]}, "task weights for 1 members, expected 2"),
        ({"members": 0}, "got members=0, expected at least 1"),
        ({"epochs": -1}, "got epochs=-1"),
        ({"batch_size": 0}, "got batch_size=0"),
        ({"plateau": 0}, "got plateau=0"),
        ({"lr": -0.1}, "got lr=(-0.1,), expected finite numbers of at least 0"),
        ({"lr": float("nan")}, "expected finite numbers of at least 0"),
        ({"lr": float("inf")}, "got lr=(inf,), expected finite numbers of at least 0"),
        ({"weight_decay": float("inf")}, "got weight_decay=(inf,), expected"),
        ({"min_lr": float("inf")}, "got min_lr=inf, expected"),
        ({"weight_decay": -1.0}, "got weight_decay"),
        ({"optimiser": "adamx"}, "unknown optimiser 'adamx'; did you mean 'adam"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"precision": "float16"}, "unknown precision"),
        ({"average": 1.0}, "expected a decay between 0 and 1"),
        ({"average": 0.0}, "expected a decay between 0 and 1"),
        ({"clip": 0.0}, "expected a norm above 0"),
        ({"seed": -1}, "got seed=-1, expected a number of at least 0 below 2**63"),
        ({"seed": 2**63}, "got seed=9223372036854775808"),
        ({"members": 2, "seed": 2**63 - 1}, "at least 0 and one for each further member below"),
        ({"data_seed": -1}, "got data_seed=-1"),
        ({"data_seed": 2**63}, "got data_seed"),
        ({"task_weights": [[1.0, -1.0]]}, "expected finite numbers of at least 0"),
        ({"task_weights": [[float("nan")]]}, "expected finite numbers of at least 0"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError) as error:
        Settings(**given)
    assert message in str(error.value)


@pytest.mark.parametrize("width", [0, -3])
def test_a_model_has_a_width(width):
    with pytest.raises(ValueError, match=rf"hidden={width}, expected .* at least 1; .*--hidden"):
        ModelSettings(hidden=width)


def test_settings_of_a_newer_version_are_refused():
    with pytest.raises(ValueError, match="settings has 'warp', which this version"):
        Settings.from_dict({"warp": 9})


@pytest.mark.parametrize("name", PRECISIONS)
def test_products_round_as_the_precision_says(name):
    """A layer gives the type that is declared: that of autocast, or of the weights."""
    precision = PRECISIONS[name]
    assert Settings(precision=name).precision == name
    layer = torch.nn.Linear(3, 2).to(precision.weights)
    with precision.context(torch.device("cpu")):
        out = layer(torch.ones(4, 3, dtype=precision.weights))
    assert out.dtype == (precision.autocast or precision.weights)
    expected = {"float32": "float32", "tf32": "float32", "float64": "float64"}
    assert str(out.dtype) == f"torch.{expected.get(name, name)}"
    assert precision.tf32 == (name == "tf32")
