"""What a list of names, classes and objects stands for."""

import math
import re

import pytest

from pna.ops.aggregators import (
    NAMES,
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
)

KNOWN = "mean, sum, max, min, var, std, softmax, softmin, normalised_mean, moment_3"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mean", Mean),
        ("sum", Sum),
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
