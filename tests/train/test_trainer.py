"""Members that break, stop and leave; padding; averages; what a checkpoint must hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import pna
from pna.data import shapes
from pna.ops.precision import is_exact, multiplied
from pna.train.population import Population
from pna.train.settings import Settings
from tests.train.cases import SMALL, assert_near, random_graphs, trainer_of, with_arguments

#: Adam divides gradients by their size and 1e-8, those that are 0 but for rounding too: of a shift
#: that a normalisation takes away again, say.
CLOSE = 1e-6

BASE = Settings(members=3, batch_size=5, lr=(1e-2,), epochs=50, patience=None)


def run(trainer, epochs, start=0):
    """Losses of training and validation, (epochs, members, tasks) each."""
    losses = [trainer.run_epoch(epoch) for epoch in range(start, start + epochs)]
    return [torch.stack(part) for part in zip(*losses, strict=True)]


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("dtype, lr", [(torch.float32, 1e30), (torch.float64, 1e200)], ids=str)
def test_a_member_that_explodes_is_broken_and_frozen(dtype, lr):
    """A step of this size leaves weights whose loss is not finite; the others do not notice."""
    graphs, model = random_graphs(), SMALL["gin recurrent"]
    wild = trainer_of(graphs, model, replace(BASE, lr=(1e-2, lr, 1e-2)), dtype=dtype)
    tame = trainer_of(graphs, model, BASE, dtype=dtype)
    run(wild, 3), run(tame, 3)
    state = wild.member_state
    assert state.broken.tolist() == [False, True, False]
    assert state.alive.tolist() == [True, False, True]
    frozen = wild.population.flat.detach()[1].clone()
    assert frozen.isfinite().all()
    assert wild.best.weights[1].isfinite().all()
    run(wild, 2, 3), run(tame, 2, 3)
    assert torch.equal(wild.population.flat[1], frozen)
    assert torch.equal(wild.population.flat[[0, 2]], tame.population.flat[[0, 2]])
    assert torch.equal(state.best[[0, 2]], tame.member_state.best[[0, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("lr", [1e3, 1e10, 1e18, 1e25, 1e38], ids="{:.0e}".format)
def test_weights_never_stop_being_finite(lr):
    """Whatever overflows first: the loss, the gradient, its square, or the step itself."""
    trainer = trainer_of(
        random_graphs(), SMALL["pna stacked"], replace(BASE, lr=(1e-2, lr, 1e-2)),
        dtype=torch.float32,
    )  # fmt: skip
    run(trainer, 6)
    assert trainer.population.flat.isfinite().all()
    assert trainer.best.weights.isfinite().all()
    assert trainer.member_state.alive[[0, 2]].all()


def test_a_nan_among_the_weights_breaks_only_its_member():
    graphs, model = random_graphs(), SMALL["pna recurrent"]
    hurt, whole = (trainer_of(graphs, model, BASE) for _ in range(2))
    hurt.population.flat.data[2, 7] = torch.nan
    before = hurt.population.flat.detach()[2].clone()
    training, _ = run(hurt, 2)
    expected, _ = run(whole, 2)
    assert hurt.member_state.broken.tolist() == [False, False, True]
    assert torch.equal(training[:, :2], expected[:, :2])
    assert torch.equal(hurt.population.flat[:2], whole.population.flat[:2])
    assert torch.equal(hurt.population.flat[2].isnan(), before.isnan())
    assert torch.equal(hurt.population.flat[2].nan_to_num(), before.nan_to_num())
    assert int(hurt.adam.steps[2]) == 0
    assert hurt.member_state.best[2] == torch.inf  # and it has no best


def test_members_leave_once_half_have_stopped():
    """The others go on as if nobody had left, and what is best of all is kept."""
    graphs, model = random_graphs(), with_arguments(SMALL["gin recurrent"], dropout=0.2)
    settings = replace(BASE, members=4, lr=(1e-2, 1e-3, 5e-3, 2e-3), average=0.9)
    leaving, staying = (trainer_of(graphs, model, settings) for _ in range(2))
    chose = []
    for epoch in range(6):
        if epoch == 2:
            for trainer in (leaving, staying):
                trainer.member_state.alive[3] = False  # one of four stays
        if epoch == 4:
            for trainer in (leaving, staying):
                trainer.member_state.alive[1] = False
        chose.append(leaving.compact())
        for got, expected in zip(leaving.run_epoch(epoch), staying.run_epoch(epoch), strict=True):
            assert_near(got[[0, 2]], expected[[0, 2]], CLOSE)
            gone = [k for k in range(4) if k not in leaving.ids.tolist()]
            assert got[gone].isnan().all() and not got[leaving.ids].isnan().any()
    assert chose == [False, False, False, False, True, False]
    assert leaving.ids.tolist() == [0, 2] and staying.ids.tolist() == [0, 1, 2, 3]
    assert len(leaving.population) == len(leaving.adam.steps) == len(leaving.average.weights) == 2
    assert_near(leaving.population.flat, staying.population.flat[[0, 2]], CLOSE)
    assert_near(
        leaving.best.weights, staying.best.weights, CLOSE
    )  # of all, those that left as they were
    assert leaving.member_state.best_epoch.tolist() == staying.member_state.best_epoch.tolist()
    for name, buffer in leaving.best.buffers.items():
        assert_near(buffer, staying.best.buffers[name], CLOSE, name)


def test_members_stop_each_by_its_own_patience():
    """As many epochs after its best as it was given; another may go on for longer."""
    settings = replace(BASE, members=4, lr=(1e-2, 0.0, 3e-2, 1e-1), patience=2)
    trainer = trainer_of(random_graphs(), SMALL["gin recurrent"], settings)
    stopped: dict[int, int] = {}
    least = [float("inf")] * 4
    best = [0] * 4
    for epoch in range(12):
        _, validation = trainer.run_epoch(epoch)
        for k, loss in enumerate(validation.mean(1).tolist()):
            if k not in stopped and loss < least[k]:
                least[k], best[k] = loss, epoch + 1
            if k not in stopped and epoch + 1 - best[k] == 2:
                stopped[k] = epoch + 1
            assert bool(trainer.member_state.alive[k]) is (k not in stopped)
    assert stopped and trainer.member_state.best_epoch.tolist() == best


def test_members_that_have_stopped_do_not_move():
    settings = replace(BASE, lr=(1e-2, 0.0, 1e-2), patience=1)
    trainer = trainer_of(random_graphs(), SMALL["pna stacked"], settings)
    trainer.member_state.alive[0] = False
    before, best = trainer.population.flat.detach().clone(), trainer.best.weights.clone()
    run(trainer, 2)
    assert torch.equal(trainer.population.flat[0], before[0])
    assert torch.equal(trainer.best.weights[0], best[0])
    assert not torch.equal(trainer.population.flat[2], before[2])


@pytest.mark.parametrize("alive", [[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], ids=str)
def test_no_member_leaves_while_most_are_alive_or_none_is(alive):
    trainer = trainer_of(random_graphs(), SMALL["pna stacked"], replace(BASE, members=4))
    trainer.member_state.alive.copy_(torch.tensor(alive, dtype=torch.bool))
    assert not trainer.compact()
    assert trainer.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("name, missing", [(name, i % 2 == 0) for i, name in enumerate(SMALL)])
def test_padded_training_is_training(name, missing):
    """Losses, weights and running statistics, with dropout, of batches that leave some over. Every
    second model has missing targets."""
    graphs = random_graphs(train=11, missing=missing)
    model = with_arguments(SMALL[name], dropout=0.2)
    settings = replace(BASE, members=2, batch_size=4)
    plain = trainer_of(graphs, model, settings)
    padded = trainer_of(graphs, model, settings, pad=True)
    shapes = []
    inner = padded.training._step
    padded.training._step = lambda batch: (shapes.append(batch.real is not None), inner(batch))
    for got, expected in zip(run(padded, 2), run(plain, 2), strict=True):
        assert_near(got, expected, CLOSE)
    assert any(shapes)
    assert_near(padded.population.flat, plain.population.flat, CLOSE)
    for key, buffer in padded.population.buffers.items():
        assert_near(buffer, plain.population.buffers[key], CLOSE, key)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("depth", ["diameter", "adaptive", "2log2N"])
def test_padded_training_is_training_at_every_depth(depth):
    graphs = random_graphs(train=7, validation=3)
    model = with_arguments(SMALL["gin recurrent"], dropout=0.2, depth=depth, tolerance=0.05)
    settings = replace(BASE, members=1, batch_size=4)
    plain = trainer_of(graphs, model, settings)
    padded = trainer_of(graphs, model, settings, pad=True)
    for got, expected in zip(run(padded, 2), run(plain, 2), strict=True):
        assert_near(got, expected, CLOSE)
    assert_near(padded.population.flat, plain.population.flat, CLOSE)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("name", ["gat recurrent", "gin recurrent"])
def test_training_with_fronts_is_training(triton, monkeypatch, name):
    """Of a population, batch normalisations included."""
    monkeypatch.setattr(shapes, "_STEP", 8)
    graphs = random_graphs(train=12, validation=2, sizes=(3, 9))
    settings = replace(BASE, members=2, batch_size=6)
    where = {"device": str(triton.device), "capture": False}
    padded = trainer_of(graphs, SMALL[name], settings, pad=True, **where)
    fronts, inner = [], padded.training._step
    padded.training._step = lambda batch: (fronts.append(len(batch.fronts)), inner(batch))
    got = run(padded, 1)
    assert min(fronts) > 0
    with pna.backend("reference"):
        plain = trainer_of(graphs, SMALL[name], settings, **where)
        expected = run(plain, 1)
    for one, other in zip(got, expected, strict=True):
        assert_near(one, other, CLOSE)
    assert_near(padded.population.flat, plain.population.flat, CLOSE)
    for key, buffer in padded.population.buffers.items():
        assert_near(buffer, plain.population.buffers[key], CLOSE, key)


def test_best_is_what_was_at_the_least_validation_loss():
    trainer = trainer_of(random_graphs(), SMALL["gin recurrent"], replace(BASE, lr=(0.05,)))
    least = torch.full((3,), torch.inf, dtype=torch.float64)
    best = trainer.best.weights.clone()
    buffers = {name: b.clone() for name, b in trainer.best.buffers.items()}
    when = [0] * 3
    for epoch in range(6):
        _, validation = trainer.run_epoch(epoch)
        total = validation.mean(1)
        for k in range(3):
            if total[k] < least[k]:
                least[k], when[k] = total[k], epoch + 1
                best[k] = trainer.population.flat[k].detach()
                for name, buffer in trainer.population.buffers.items():
                    buffers[name][k] = buffer[k]
    assert torch.equal(trainer.best.weights, best)
    assert all(torch.equal(trainer.best.buffers[name], b) for name, b in buffers.items())
    assert trainer.member_state.best_epoch.tolist() == when
    torch.testing.assert_close(trainer.member_state.best, least)


def test_the_average_is_what_is_validated_and_kept():
    settings = replace(BASE, members=2, average=0.5, lr=(0.05,))
    trainer = trainer_of(random_graphs(), SMALL["pna stacked"], settings)
    trainer.run_epoch(0)
    assert torch.equal(trainer.best.weights, trainer.average.weights)
    assert not torch.equal(trainer.best.weights, trainer.population.flat)
    assert trainer.best.buffers
    for name, buffer in trainer.best.buffers.items():
        assert torch.equal(buffer, trainer.average.buffers[name])
        assert not torch.equal(buffer, trainer.population.buffers[name])


def test_tf32_is_for_training_alone(monkeypatch):
    """Forward, backward and validation; and as torch was told, before and after."""
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(("forward", is_exact()))
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(("backward", is_exact()))
            return grad

    apply = Population.apply
    monkeypatch.setattr(Population, "apply", lambda *arguments: Watched.apply(apply(*arguments)))
    for precision in ("tf32", "float32"):
        settings = replace(BASE, precision=precision)
        trainer = trainer_of(random_graphs(), SMALL["pna recurrent"], settings)
        for before in ("high", "highest"):
            with multiplied(exactly=before == "highest"):
                run(trainer, 1)
                assert torch.get_float32_matmul_precision() == before
        expected = precision == "float32"
        assert set(seen) == {("forward", expected), ("backward", expected)}
        seen.clear()


def test_bfloat16_trains_weights_of_float32():
    settings = replace(BASE, members=2, precision="bfloat16")
    trainer = trainer_of(random_graphs(), SMALL["pna recurrent"], settings, dtype=torch.float32)
    plain = trainer_of(
        random_graphs(), SMALL["pna recurrent"], replace(settings, precision="float32"),
        dtype=torch.float32,
    )  # fmt: skip
    got, expected = run(trainer, 3), run(plain, 3)
    assert trainer.population.flat.dtype == torch.float32
    assert got[0].isfinite().all() and not trainer.member_state.broken.any()
    for a, b in zip(got, expected, strict=True):
        assert_near(a, b, 0.15)
        assert not torch.equal(a, b)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("left", [False, True], ids=["all members", "after some have left"])
def test_state_is_all_that_training_goes_on_from(left):
    graphs, model = random_graphs(), with_arguments(SMALL["gin recurrent"], dropout=0.2)
    settings = replace(BASE, members=4, average=0.9, schedule="plateau", plateau=2, even=True)
    trainer = trainer_of(graphs, model, settings)
    run(trainer, 2)
    if left:
        trainer.member_state.alive[[0, 3]] = False
        assert trainer.compact()
    held = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    again = trainer_of(graphs, model, replace(settings, seed=77))
    again.load_state_dict(held)
    assert int(again.member_state.epoch) == 2
    for got, expected in zip(run(again, 2, 2), run(trainer, 2, 2), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "other",
    [
        {"members": 2},
        {"average": 0.5},  # one tensor more
    ],
    ids=str,
)
def test_states_of_other_settings_are_refused(other):
    graphs, model = random_graphs(), SMALL["pna stacked"]
    held = trainer_of(graphs, model, replace(BASE, **other)).state_dict()
    with pytest.raises((ValueError, IndexError)):
        trainer_of(graphs, model, replace(BASE, members=3)).load_state_dict(held)


def test_states_of_other_models_are_refused():
    graphs = random_graphs()
    held = trainer_of(graphs, replace(SMALL["pna stacked"], hidden=8), BASE).state_dict()
    with pytest.raises(ValueError, match="another model"):
        trainer_of(graphs, SMALL["pna stacked"], BASE).load_state_dict(held)


def test_task_weights_of_another_number_are_refused():
    settings = replace(BASE, members=2, task_weights=((1.0,) * 3, (1.0,) * 3))
    with pytest.raises(ValueError, match="got 3 task weights for a member, expected 6"):
        trainer_of(random_graphs(), SMALL["pna stacked"], settings)


def test_bfloat16_with_graphs_of_very_different_sizes():
    """Those are read out in groups, which autocast must leave alone."""
    graphs = random_graphs(train=9, validation=3, sizes=(3, 4))
    large = random_graphs(train=1, validation=1, sizes=(40, 41), seed=1)
    settings = replace(BASE, precision="bfloat16", batch_size=10)
    both = type(graphs).concat([graphs, large])
    trainer = trainer_of(both, SMALL["pna recurrent"], settings, dtype=torch.float32)
    training, validation = run(trainer, 2)
    assert training.isfinite().all() and validation.isfinite().all()
