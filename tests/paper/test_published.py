import pytest

from pna.data.multitask.labels import SIX
from pna.paper.published import ORIGINS, Published, parse, published
from pna.paper.registry import EXPERIMENTS
from pna.paper.scores import BASELINE


def test_numbers_are_found_by_population_and_column() -> None:
    found = published("multitask")
    assert found.get("pna", "average") == -3.13
    assert found.get("gin", "laplacian") == -1.60
    assert found.get("mpnn-max", "overall") is None  # the authors' figures disagree
    assert found.get("nobody", "average") is None
    assert published("parameters").get("mpnn-max 20", "parameters") == 11186


def test_averages_are_of_the_tasks_beside_them() -> None:
    for row, values in published("multitask").rows.items():
        tasks = [values[task] for task in SIX]
        assert sum(v for v in tasks if v is not None) / 6 == pytest.approx(
            values["average"], abs=0.011
        ), row


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_are_populations_and_columns_are_measured(name: str) -> None:
    experiment = EXPERIMENTS[name]
    known = {variant.name for variant in experiment.variants} | {BASELINE}
    columns = {"average", "overall", "parameters", *SIX, *experiment.splits}
    found = published(name)
    assert set(found.rows) <= known
    assert {column for row in found.rows.values() for column in row} <= columns
    assert bool(found.source) == bool(found.rows)
    for row, values in found.rows.items():
        assert {found.origin(row, column) for column in values} <= set(ORIGINS)


def test_most_experiments_have_no_published_numbers() -> None:
    assert published("moments") == Published()


def test_a_row_may_have_another_origin_than_its_columns() -> None:
    found = published("zinc")
    assert found.origin("pna edges", "test") == "table"
    assert found.origin("pna edges", "parameters") == "specification"
    assert found.origin("pna deep", "test") == "specification"  # the repository has no such row
    assert "18 from a table in the authors' repository; 12 from the proj" in found.counted()


@pytest.mark.parametrize(
    "origins, message",
    [
        ({"a": "memory"}, "numbers of b do not say where they were taken from"),
        ({"a": "memory", "b": "hearsay"}, "got the origin 'hearsay' of b in t.json, expected one"),
        ({"a": "memory", "b": "memory", "y": "text"}, "got the origin 'text' of y"),
    ],
)
def test_a_number_without_a_known_origin_is_refused(origins: dict[str, str], message: str) -> None:
    table = {"source": "s", "notes": "", "columns": ["a", "b"], "rows": {"x": [1, None]}}
    with pytest.raises(ValueError, match=message):
        parse("t.json", table | {"origins": origins})


def test_a_file_of_another_shape_is_refused() -> None:
    table = {"source": "s", "notes": "", "columns": ["a", "b"], "origins": {}, "rows": {"x": [1]}}
    with pytest.raises(ValueError, match=r"1 numbers in row x of t\.json, expected one for each"):
        parse("t.json", table)
    with pytest.raises(ValueError, match="lacks or should not have origins, rows"):
        parse("t.json", {"source": "s", "notes": "", "columns": []})
