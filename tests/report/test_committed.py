"""The results that are kept with the code: their document says what their numbers do."""

from pathlib import Path

import pytest

from pna.paper.registry import EXPERIMENTS
from pna.paper.reproduce import Options, plan
from pna.report.experiments import write_markdown
from pna.report.read import ExperimentResult, find

RESULTS = Path(__file__).parents[2] / "results"


def test_the_document_is_that_of_the_numbers(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    copy.symlink_to(RESULTS)
    write_markdown(
        tmp_path / "README.md", {folder: ExperimentResult.read(folder) for folder in find(copy)}
    )
    made = (tmp_path / "README.md").read_text(encoding="utf-8")
    kept = (RESULTS / "README.md").read_text(encoding="utf-8")
    remedy = "write it again: pna report results --markdown results/README.md"
    assert _without_places(made) == _without_places(kept), remedy


def _without_places(text: str) -> list[str]:
    """Lines but for where figures are."""
    return [line for line in text.splitlines() if not line.startswith("![")]


@pytest.mark.parametrize("folder", find(RESULTS), ids=lambda f: f"{f.parent.name}-{f.name}")
def test_every_population_says_where_and_how_it_was_trained_and_is_not_trained_again(
    folder: Path,
) -> None:
    options = Options(*folder.name.split("-", 1))
    results, stored, _ = plan(EXPERIMENTS[folder.parent.name], folder, options)
    assert set(stored) == set(results.rows)
    for row in results.rows.values():
        where = row.facts["environment"]
        assert where["commit"] and where["commit"] != "unknown"
        assert where["torch"] and (where["gpu"] or where["cpu"])
        assert row.facts["settings"]["epochs"] > 0 and row.facts["seconds"] > 0
