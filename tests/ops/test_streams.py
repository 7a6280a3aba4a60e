"""When works are joined, told by works that only write down that they are."""

from __future__ import annotations

import pytest
import torch

from pna.ops.streams import DeferredJoins, SideStream


class Work(SideStream):
    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.joined, self.kept = False, ()

    def hold(self, *held):
        self.kept += held

    def join(self):
        self.joined = True


def test_works_of_parameters_of_their_own_are_joined_at_the_end():
    later, weights, other = DeferredJoins(), [torch.ones(2), None, torch.ones(3)], torch.ones(2)
    later.own([weights[0], weights[2], other])
    with later:
        first, second = DeferredJoins.claim(weights), DeferredJoins.claim([other])
    works = Work(), Work()
    first.join(works[0], "read by the first")
    second.join(works[1])
    assert not any(work.joined for work in works)
    assert works[0].kept == ("read by the first",)
    later.join()
    assert all(work.joined for work in works)


def test_works_of_a_parameter_that_two_have_are_joined_at_once():
    """Their gradients are added up before the end."""
    shared, own, later = torch.ones(2), torch.ones(2), DeferredJoins()
    later.own([shared, own])
    with later:
        claims = [DeferredJoins.claim(given) for given in ([shared, own], [shared])]
    for claim in claims:
        work = Work()
        claim.join(work)
        assert work.joined


def test_works_of_weights_that_are_made_of_parameters_are_joined_at_once():
    """Autograd reads their gradients next."""
    parameter, work, later = torch.ones(2), Work(), DeferredJoins()
    later.own([parameter])
    with later:
        claim = DeferredJoins.claim([parameter, 2 * parameter])
    claim.join(work)
    assert work.joined


@pytest.mark.parametrize("inside", [False, True], ids=["none", "after it"])
def test_works_that_none_will_join_later_are_joined_at_once(inside):
    if inside:
        with DeferredJoins():
            pass
    work = Work()
    DeferredJoins.claim([torch.ones(2)]).join(work)
    assert work.joined


def test_inner_before_outer():
    outer, inner, weight = DeferredJoins(), DeferredJoins(), torch.ones(2)
    work = Work()
    outer.own([weight])
    with outer:
        with inner:
            pass
        DeferredJoins.claim([weight]).join(work)
    inner.join()
    assert not work.joined
    outer.join()
    assert work.joined


def test_what_a_layer_joins_itself_is_joined_at_the_end_too():
    later, works = DeferredJoins(), (Work(), Work())
    with later:
        DeferredJoins.claim([]).join_later(works[0])
    assert not works[0].joined
    later.join()
    assert works[0].joined
    DeferredJoins.claim([]).join_later(works[1])
    assert works[1].joined
