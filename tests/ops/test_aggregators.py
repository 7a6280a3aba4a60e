"""What a list of names, classes and objects stands for."""

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import pna
from pna.ops.aggregators import (
    BUILT_IN,
    FUSED,
    NAMES,
    SHIFTS,
    Aggregator,
    KthSmallest,
    Max,
    Mean,
    Min,
    Moment,
    NormalisedMean,
    Softmax,
    Softmin,
    Std,
    Sum,
    Var,
    resolve,
    shift_of,
)
from pna.ops.request import KINDS

KNOWN = ", ".join([*NAMES, "moment_3"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mean", Mean),
        ("sum", Sum),
        ("add", Sum),
        ("max", Max),
        ("min", Min),
        ("var", Var),
        ("std", Std),
        ("softmax", Softmax),
        ("softmin", Softmin),
        ("normalised_mean", NormalisedMean),
    ],
)
def test_name_and_class_stand_for_the_defaults(name, kind):
    assert NAMES[name] is kind
    by_name, by_class = resolve([name, kind])
    assert type(by_name) is type(by_class) is kind
    assert vars(by_name) == vars(by_class) == vars(kind())


def test_defaults_are_those_of_the_paper():
    assert (Std().epsilon, Std().clamp) == (1e-5, False)
    assert (Moment(3).epsilon, Moment(3).published) == (1e-5, False)
    assert (Softmax().temperature, Softmax().weight) == (1.0, None)


def test_objects_are_taken_as_they_are_in_any_order_and_number():
    std, moment, third = Std(1e-3), Moment(4, published=True), KthSmallest(3)
    resolved = resolve([std, "max", moment, Mean, third, "max", std])
    assert [type(a) for a in resolved] == [Std, Max, Moment, Mean, KthSmallest, Max, Std]
    assert (resolved[0], resolved[2], resolved[4], resolved[6]) == (std, moment, third, std)


@pytest.mark.parametrize("kind", [tuple, list])
def test_any_sequence(kind):
    assert [type(a) for a in resolve(kind(["mean", "std"]))] == [Mean, Std]


@pytest.mark.parametrize(("name", "order"), [("moment_3", 3), ("moment_4", 4), ("moment_12", 12)])
def test_moment_by_name(name, order):
    (moment,) = resolve([name])
    assert type(moment) is Moment
    assert (moment.order, moment.epsilon, moment.published) == (order, 1e-5, False)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_moments_below_the_third_have_names_of_their_own(order):
    for make in (lambda: resolve([f"moment_{order}"]), lambda: Moment(order)):
        with pytest.raises(ValueError, match=f"order {order}, .* 'mean' and 'std'"):
            make()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maen", "mean"),
        ("Max", "max"),
        ("normalized_mean", "normalised_mean"),
        ("soft_max", "softmax"),
        ("moment", "moment_3"),
        ("moment_n", "moment_3"),
        ("moment_3.5", "moment_3"),
        ("moment_-3", "moment_3"),
    ],
)
def test_unknown_name_gets_the_nearest(name, nearest):
    message = f"unknown aggregator {name!r}; did you mean {nearest!r}? Known: {KNOWN}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        resolve(["mean", name])


def test_unknown_name_unlike_any():
    with pytest.raises(ValueError, match=f"^unknown aggregator 'xyz'. Known: {KNOWN}$"):
        resolve(["xyz"])


@pytest.mark.parametrize("aggregators", [[], ()], ids=repr)
def test_empty_list(aggregators):
    with pytest.raises(
        ValueError, match="empty list of aggregators, expected at least one of mean"
    ):
        resolve(aggregators)


def test_bare_name_says_how_to_write_it():
    with pytest.raises(TypeError, match=r"aggregators 'mean', expected a list; write \['mean'\]"):
        resolve("mean")


@pytest.mark.parametrize("aggregators", [Mean(), Mean, None, {"mean"}], ids=repr)
def test_what_is_no_list(aggregators):
    with pytest.raises(TypeError, match="expected a list"):
        resolve(aggregators)


@pytest.mark.parametrize("aggregator", [3, None, dict, math.fsum, ["mean"]], ids=repr)
def test_what_is_no_aggregator(aggregator):
    with pytest.raises(TypeError, match="expected a name or one of the aggregator objects"):
        resolve(["mean", aggregator])


@pytest.mark.parametrize("kind", [Moment, KthSmallest])
def test_class_without_its_parameter(kind):
    with pytest.raises(TypeError, match="required"):
        resolve([kind])


@pytest.mark.parametrize("order", [2, 1, 0, -3, 3.0, "3", None], ids=repr)
def test_bad_order(order):
    with pytest.raises(ValueError, match=re.escape(f"order {order!r}, expected a whole number")):
        Moment(order)


@pytest.mark.parametrize("k", [0, -1, 1.0, "1", None], ids=repr)
def test_bad_k(k):
    with pytest.raises(ValueError, match=re.escape(f"k={k!r}, expected a whole number")):
        KthSmallest(k)


@pytest.mark.parametrize("epsilon", [0, -1e-5, math.nan], ids=repr)
@pytest.mark.parametrize("make", [Std, lambda epsilon: Moment(3, epsilon)], ids=["std", "moment"])
def test_bad_epsilon(make, epsilon):
    with pytest.raises(ValueError, match=f"epsilon={epsilon!r}, expected a number above 0"):
        make(epsilon)


def test_aggregators_cannot_change_under_a_model():
    with pytest.raises(AttributeError, match="cannot assign"):
        Std().epsilon = 1.0


# The table


def test_every_class_of_the_package_is_in_the_table():
    found, todo = set(), [Aggregator]
    while todo:
        todo += todo.pop().__subclasses__()
        found |= {kind for kind in todo if kind.__module__ == "pna.ops.aggregators"}
    assert found == set(BUILT_IN)


def test_every_aggregator_is_public():
    assert {*pna.ops.aggregators.__all__} == {"Aggregator", *(kind.__name__ for kind in BUILT_IN)}


def test_the_table_and_the_kernels_know_the_same_statistics():
    assert sorted(FUSED.values()) == sorted(KINDS)


def test_weights_of_a_softmax_change_how_it_is_shifted():
    """They may all be 0 at a node."""
    assert (Softmax().shift, Softmin().shift) == ("once", "once")
    assert (Softmax(weight=torch.ones(3)).shift, Softmin(weight=torch.ones(3)).shift) == (
        "as ones",
        "as ones",
    )


# Aggregators of users


def definition(self, hood):
    return hood.mean(hood.messages)


@pytest.mark.parametrize("base", [Aggregator, Mean, Softmax], ids=lambda base: base.__name__)
def test_a_class_without_its_own_shift_is_refused(base):
    """That of a base class may not be right for it any more."""
    with pytest.raises(
        TypeError, match=r"Mine with no shift of its own, expected .* attribute"
    ) as e:
        type("Mine", (base,), {"aggregate": definition})
    assert all(f"{name!r}: {meaning}" in str(e.value) for name, meaning in SHIFTS.items())


@pytest.mark.parametrize("shift", ["twice", 1, ["once"], True], ids=repr)
def test_a_class_with_an_unknown_shift_is_refused(shift):
    with pytest.raises(TypeError, match=re.escape(f"Mine with shift={shift!r}, expected")):
        type("Mine", (Aggregator,), {"aggregate": definition, "shift": shift})


@pytest.mark.parametrize("wrong", [{}, {"aggregate": None}, {"aggregate": 3}], ids=repr)
def test_a_class_without_a_definition_is_refused(wrong):
    with pytest.raises(TypeError, match=r"Mine without a definition, expected a method aggregate"):
        type("Mine", (Aggregator,), {"shift": "once", **wrong})


def test_a_shift_that_depends_on_parameters_is_checked_when_it_is_used():
    @dataclass(frozen=True)
    class Mine(Aggregator):
        rule: str
        aggregate = definition

        @property
        def shift(self):
            return self.rule

    assert shift_of(Mine("once")) == "once"
    with pytest.raises(TypeError, match="Mine with shift='often'"):
        shift_of(Mine("often"))


def test_the_kernel_of_a_base_class_is_not_taken_for_a_subclass():
    class Cubes(Mean):
        shift = "unknown"

        def aggregate(self, hood):
            return hood.mean(hood.messages**3)

    x = torch.arange(3.0)[:, None]
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[1, 2], [0, 0]]), 3)
    assert pna.aggregate(x, adjacency, [Cubes, "mean"])[0].flatten().tolist() == [4.5, 1.5]


def test_classes_and_objects_of_users_are_taken():
    class Mine(Aggregator):
        """Without parameters it need be no dataclass."""

        scale: ClassVar[float] = 2.0
        shift = "once"
        aggregate = definition

    mine = Mine()
    first, second = resolve([Mine, mine])
    assert type(first) is Mine and second is mine


@pytest.mark.parametrize("shadow", ["annotated", "init"])
def test_parameters_that_are_no_fields_are_refused(shadow):
    """A model could not save them."""

    class Annotated(Aggregator):
        power: float = 2.0
        shift = "once"
        aggregate = definition

    class Init(Aggregator):
        shift = "once"
        aggregate = definition

        def __init__(self, power=2.0):
            object.__setattr__(self, "power", power)

    kind = {"annotated": Annotated, "init": Init}[shadow]
    for given in (kind, kind()):
        with pytest.raises(TypeError, match=r"no dataclass, .*write @dataclass\(frozen=True\)"):
            resolve([given])


@pytest.mark.parametrize("given", [Aggregator, Aggregator()], ids=["class", "object"])
def test_the_base_class_is_no_aggregator(given):
    with pytest.raises(TypeError, match="expected a name or one of the aggregator objects"):
        resolve([given])


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda _, hood: hood.messages, ValueError, r"shape \(2, 1\) from Mine.aggregate, expected "
         r"\(3, 1\): one row for each receiver"),
        (lambda _, hood: hood.mean(hood.messages).half(), TypeError, "float16 from Mine.aggregate"),
        (lambda _, hood: None, TypeError, r"NoneType from Mine.aggregate, expected a tensor \(rec"),
    ],
)  # fmt: skip
def test_results_of_a_wrong_shape_or_type_are_refused(wrong, error, message, backend):
    mine = type("Mine", (Aggregator,), {"shift": "unknown", "aggregate": wrong})
    edges = torch.tensor([[1, 2], [0, 0]], device=backend.device)
    adjacency = pna.Adjacency.from_edge_index(edges, 3)
    with pytest.raises(error, match=message):
        pna.aggregate(torch.ones(3, 1, device=backend.device), adjacency, [mine])
