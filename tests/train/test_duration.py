"""How long a training will likely take."""

import pytest

from pna.train import Report, Settings, duration
from pna.train.defaults import model_for
from tests.train.small_runs import molecules


def test_a_few_batches_are_tried(monkeypatch):
    graphs, tried = molecules(), []

    def train(part, out, *, settings, report, **arguments):
        tried.append((part, settings))
        for seconds in (9.0, 2.0):  # the first epoch is not counted
            report(Report(1, 2, seconds, [], [], [], [], [], []))

    monkeypatch.setattr(duration, "train", train)
    training = len(graphs.split("train"))
    settings = Settings(batch_size=2, epochs=30, patience=3)
    found = duration.likely_seconds(graphs, settings, model="pna")
    ((part, short),) = tried
    assert training > 8 and len(part.split("train")) == 8
    assert len(part.split("validation")) == round(len(graphs.split("validation")) * 8 / training)
    assert (short.epochs, short.patience, short.batch_size) == (2, None, 2)
    assert found == pytest.approx(2.0 * training / 8 * 30)


def test_it_trains_and_leaves_nothing():
    graphs, settings = molecules(), Settings(batch_size=4, epochs=3)
    model = model_for(graphs, "pna", {"hidden": 4, "layers": 1})
    found = duration.likely_seconds(graphs, settings, model=model)
    assert found is not None and found > 0


def test_batches_that_cannot_be_trained_on():
    graphs = molecules()
    assert duration.likely_seconds(graphs, Settings(), model="pna", tasks=["unknown"]) is None
    assert duration.likely_seconds(graphs, Settings(), splits=("train", "no such")) is None
