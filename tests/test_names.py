"""Names are found, and misspelt ones are helped along."""

import re

import pytest

from pna.names import lookup

TABLE = {"mean": 1, "max": 2, "moment_3": 3}


def test_known_name():
    assert lookup("aggregator", "max", TABLE) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("maen", "unknown aggregator 'maen'; did you mean 'mean'? Known: mean, max, moment_3"),
        ("MEAN", "unknown aggregator 'MEAN'; did you mean 'mean'? Known: mean, max, moment_3"),
        ("xyz", "unknown aggregator 'xyz'. Known: mean, max, moment_3"),
        ("", "unknown aggregator ''. Known: mean, max, moment_3"),
    ],
)
def test_unknown_name(name, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lookup("aggregator", name, TABLE)
