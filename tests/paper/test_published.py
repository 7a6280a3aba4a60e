import pytest

from pna.data.multitask.labels import SIX
from pna.paper.published import Published, parse, published
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


def test_most_experiments_have_no_published_numbers() -> None:
    assert published("moments") == Published()


def test_a_file_of_another_shape_is_refused() -> None:
    table = {"source": "s", "notes": "", "columns": ["a", "b"], "rows": {"x": [1]}}
    with pytest.raises(ValueError, match=r"1 numbers in row x of t\.json, expected one for each"):
        parse("t.json", table)
    with pytest.raises(ValueError, match="rows"):
        parse("t.json", {"source": "s", "notes": "", "columns": []})
