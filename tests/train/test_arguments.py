"""Models with aggregators as objects, also of users, are trained, saved, resumed and loaded."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pna
from pna.aggregators import Aggregator, Moment, Softmax
from pna.cli import app
from pna.train import ModelSettings, Run, Settings, evaluate, predict, train
from pna.train.arguments import decode, encode
from pna.train.models import build
from pna.train.run import load_population
from pna.train.sweep import Plan, Point, Space
from tests.train.cases import random_graphs

GRAPHS = random_graphs(6, 3)
SETTINGS = Settings(members=2, epochs=2, batch_size=4, lr=0.01)


class Midrange(Aggregator):
    shift = "once"

    def aggregate(self, hood):
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


@dataclass(frozen=True)
class PowerMean(Aggregator):
    power: float | Tensor = 2.0
    name_of_it: str = "power"
    shift = "unknown"

    def aggregate(self, hood):
        return hood.mean((hood.messages.abs() + 0.1) ** self.power)


def settings(*aggregators, architecture="stacked", **more):
    arguments = {"aggregators": list(aggregators), **more}
    if architecture == "stacked":
        arguments |= {"layers": 2}
    return ModelSettings("pna", architecture, 16, arguments=arguments)


OWN = [Midrange, PowerMean]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """Of two members, with a learned parameter of a user's aggregator."""
    model = settings("mean", Midrange, PowerMean(nn.Parameter(torch.tensor(1.5))), Moment(4))
    folder = tmp_path_factory.mktemp("run")
    path = folder / "graphs.safetensors"
    GRAPHS.save(path)
    return train(path, folder / "run", model, SETTINGS, device="cpu")


def test_a_run_of_users_aggregators_is_loaded_with_their_classes(run):
    models = [pna.load(run.folder, member, aggregators=OWN) for member in range(2)]
    powers = [dict(m.named_parameters())["convolutions.0.conv.neighbourhood.aggregator_2_power"]
              for m in models]  # fmt: skip
    assert powers[0] != 1.5 and powers[1] != 1.5 and powers[0] != powers[1]
    alone = pna.load(run.folder / "best.safetensors", aggregators=OWN)
    assert sum(p.numel() for p in alone.parameters()) == run.summary["parameters"]
    population, _ = load_population(run, aggregators=OWN)
    assert len(population) == 2


def test_without_the_classes_the_error_says_to_pass_them(run):
    message = r"aggregator Midrange, which .* pna\.load\(path, aggregators=\[Midrange\]\)"
    for use in (
        lambda: pna.load(run.folder),
        lambda: pna.load(run.folder, aggregators=[PowerMean]),
        lambda: evaluate(run, split="validation"),
        lambda: predict(run, GRAPHS),
        lambda: train(GRAPHS, run.folder, resume=True, epochs=3),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert run.summary["epochs"] == 2


def test_the_command_line_says_so_in_one_line(run):
    result = CliRunner().invoke(app, ["evaluate", str(run.folder), "--split", "validation"])
    assert result.exit_code == 1
    assert "pna.load(path, aggregators=[Midrange])" in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_evaluated_predicted_and_resumed_with_the_classes(run, tmp_path):
    found = evaluate(run, split="validation", aggregators=OWN, device="cpu")
    assert found.members == [0, 1]
    assert predict(run, GRAPHS, aggregators=OWN, device="cpu").graph
    model = settings("mean", Midrange, PowerMean(nn.Parameter(torch.tensor(1.5))), Moment(4))
    whole = train(GRAPHS, tmp_path / "whole", model, replace(SETTINGS, epochs=4), device="cpu")
    half = train(GRAPHS, tmp_path / "half", model, SETTINGS, device="cpu")
    train(GRAPHS, half.folder, resume=True, epochs=4, aggregators=OWN, device="cpu")
    assert half.summary["best"] == whole.summary["best"]


@pytest.mark.parametrize("architecture", ["recurrent", "standard", "stacked"])
def test_every_architecture(tmp_path, architecture):
    model = settings(Midrange, "std", PowerMean(1.5), architecture=architecture, towers=2)
    run = train(GRAPHS, tmp_path / "run", model, replace(SETTINGS, epochs=1), device="cpu")
    pna.load(run.folder, aggregators=OWN)


def test_the_aggregator_of_a_baseline(tmp_path):
    model = ModelSettings("sage", "stacked", 4, arguments={"aggregator": PowerMean, "layers": 2})
    run = train(GRAPHS, tmp_path / "run", model, replace(SETTINGS, epochs=1), device="cpu")
    assert "PowerMean" in repr(pna.load(run.folder, aggregators=OWN))


def test_members_have_parameters_of_their_own():
    """What is learned is made anew whenever a model is built."""
    given = nn.Parameter(torch.tensor(1.5))
    model = replace(settings(PowerMean(given)), in_channels=2, graph_targets=1, degrees=(0, 1, 2))
    first, second = build(model), build(model)
    own = [m.convolutions[0].conv.neighbourhood.aggregator_0_power for m in (first, second)]
    assert own[0] is not own[1] and own[0] is not given and own[0] == own[1] == given


ARGUMENTS = {
    "aggregators": [
        "mean", Moment(4, published=True), Softmax(nn.Parameter(torch.tensor([0.5, 2.0]))),
        PowerMean(torch.tensor(3.0, dtype=torch.float64), "p"), Midrange,
    ],
    "towers": 2, "mirror": ((1, 1.0),), "final": "none",
}  # fmt: skip


def test_descriptions_survive_a_file():
    described = encode(ARGUMENTS)
    assert encode(described) == described
    described["mirror"] = [[1, 1.0]]  # as JSON has it
    assert json.loads(json.dumps(described)) == described
    mean, moment, softmax, power, midrange = decode(described, OWN)["aggregators"]
    assert mean == "mean"
    assert (moment.order, moment.published) == (4, True)
    assert isinstance(softmax.temperature, nn.Parameter)
    assert softmax.temperature.tolist() == [0.5, 2.0] and softmax.weight is None
    assert type(power) is PowerMean and power.name_of_it == "p"
    assert power.power.dtype == torch.float64 and not isinstance(power.power, nn.Parameter)
    assert type(midrange) is Midrange


def test_settings_are_compared_by_description():
    assert settings(Moment(4)) == settings(Moment(4)) != settings(Moment(5))
    assert (
        settings(Midrange)
        == settings(Midrange())
        == ModelSettings.from_dict(json.loads(json.dumps(settings(Midrange).as_dict())))
    )


def test_the_plan_of_a_sweep_holds_descriptions():
    plan = Plan("graphs", "0", settings(Midrange), SETTINGS, Space(), seed=0, asha=True)
    held = json.loads(json.dumps(settings(Midrange).as_dict()))
    assert plan.as_dict()["model"] == held
    point = Point(lr=0.1, weight_decay=0.0, width=8, dropout=0.5)
    assert plan.at(point)[0].own_aggregators == (Midrange,)


def test_what_cannot_be_saved_is_refused_before_training():
    @dataclass(frozen=True)
    class Through(Aggregator):
        function: object
        shift = "unknown"

        def aggregate(self, hood):
            return hood.mean(self.function(hood.messages))

    with pytest.raises(TypeError, match="as function of the aggregator Through, expected a number"):
        settings(Through(torch.sin))


def test_two_aggregators_of_one_name_are_refused():
    other = type("Midrange", (Midrange,), {"shift": "once"})
    with pytest.raises(ValueError, match=r"two aggregators called Midrange.*rename"):
        settings(Midrange, other)
    mean = type("Mean", (Midrange,), {"shift": "once"})
    with pytest.raises(ValueError, match="two aggregators called Mean"):
        settings(mean)


@pytest.mark.parametrize("given", [Midrange(), "Midrange", int], ids=repr)
def test_what_is_no_class_is_refused(run, given):
    with pytest.raises(TypeError, match=r"expected classes derived .* the class itself"):
        pna.load(run.folder, aggregators=[given])


@pytest.mark.parametrize("given", ["Midrange", Midrange, Midrange()], ids=repr)
def test_what_is_no_list_is_refused(run, given):
    said = r"got aggregators=.*Midrange.*, expected a list .*; write aggregators=\[Midrange\]"
    for call in (
        lambda: pna.load(run.folder, aggregators=given),
        lambda: evaluate(run, split="validation", aggregators=given, device="cpu"),
        lambda: predict(run, GRAPHS, aggregators=given, device="cpu"),
        lambda: train(GRAPHS, run.folder, resume=True, aggregators=given, device="cpu"),
    ):
        with pytest.raises(TypeError, match=said):
            call()


@pytest.mark.parametrize(
    "damaged",
    [
        {"aggregator": "Moment", "arguments": {}},
        {"aggregator": "Moment", "arguments": {"order": 4, "size": 3}},
        {"aggregator": "Moment", "arguments": {"order": -1}},
        {"aggregator": "Moment", "arguments": [4]},
        {"aggregator": "Softmax", "arguments": {"temperature": {"tensor": "no"}}},
        {"aggregator": "Softmax", "arguments": {"temperature": {"tensor": 1.0, "dtype": "dtype",
                                                                "learned": True}}},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_descriptions(damaged):
    with pytest.raises(ValueError, match=r"got the aggregator .* which its class does not accept"):
        decode({"aggregators": [damaged]})
