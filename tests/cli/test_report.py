from pathlib import Path

import pytest
from typer.testing import CliRunner

from pna.cli import app, report
from tests.report.made import make
from tests.train.small_runs import molecules, small_run

run = CliRunner().invoke


@pytest.mark.slow
def test_a_page_and_figures_are_made(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    make(tmp_path / "parameters" / "paper-plain", "parameters")
    make(tmp_path / "graph-types" / "paper-plain", "graph-types")
    for _ in range(2):  # the second time in place of the first
        result = run(app, ["report", str(tmp_path)])
        assert result.exit_code == 0, result.output
    assert result.output == (
        f"drew 2 figures beside the scores of 2 results; the page is {tmp_path / 'report.html'}\n"
    )
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 2
    assert (tmp_path / "parameters" / "paper-plain" / "parameters.svg").is_file()
    one = tmp_path / "one.html"
    words = tmp_path / "words" / "all.md"
    words.parent.mkdir()
    asked = ["report", str(tmp_path / "graph-types"), "--out", str(one), "--markdown", str(words)]
    result = run(app, asked)
    assert result.exit_code == 0 and f"as Markdown {words}" in result.output
    assert "](../graph-types/paper-plain/graph-types.svg)" in words.read_text(encoding="utf-8")
    assert one.read_text(encoding="utf-8").count("<svg") == 1


def test_what_cannot_be_shown_is_an_error_in_a_line(tmp_path: Path) -> None:
    result = run(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: got {tmp_path}, which has no scores.csv")
    make(tmp_path / "a", "moments")
    result = run(app, ["report", str(tmp_path), "--out", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 1 and "there is no folder" in result.output
    assert not (tmp_path / "a" / "moments.svg").exists()  # nothing is drawn before that is seen


@pytest.mark.parametrize(
    "damage",
    [
        lambda facts: b"\xff" + facts,
        lambda facts: b"[" * 100_000,
        lambda facts: facts.replace(b'"seconds": ', b'"seconds": "long", "s": '),
        lambda facts: facts.replace(b'"broken": ', b'"broken": 3, "b": '),
        lambda facts: facts.replace(b'"epochs": ', b'"epochs": "all", "e": '),
    ],
    ids=["no text", "nested", "text for seconds", "a number for a list", "text for epochs"],
)
def test_damaged_facts_are_an_error_in_a_line(tmp_path: Path, damage) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    folder = make(tmp_path / "a", "parameters")
    facts = folder / "facts.json"
    facts.write_bytes(damage(facts.read_bytes()))
    result = run(app, ["report", str(tmp_path)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.output.startswith(f"error: got {facts}, which cannot be read (")
    assert "; restore the file" in result.output and result.output.count("\n") == 1


def test_links_that_lead_to_themselves(tmp_path: Path) -> None:
    """Among results they are passed by; as results they are refused."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    make(tmp_path / "a", "parameters")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert run(app, ["report", str(tmp_path)]).exit_code == 0
    result = run(app, ["report", str(tmp_path / "loop")])
    assert result.exit_code == 1 and result.output.startswith("error: got ")


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    result = run(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "pip install 'pna[plot]'" in result.output


def test_the_page_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    monkeypatch.setattr("pna.report.run_page.MOST_TARGETS", 1)
    graphs = molecules()
    trained = small_run(graphs, tmp_path / "run", members=1, epochs=1)
    moved = (tmp_path / "run.safetensors").rename(tmp_path / "moved.safetensors")
    result = run(app, ["report", str(trained.folder)])
    assert result.exit_code == 1 and "pass the path where the file is now" in result.output
    result = run(app, ["report", str(trained.folder), "--data", str(moved), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    page = trained.folder / "report.html"
    assert result.output == f"wrote {page}\n"
    assert "<h1>run</h1>" in page.read_text(encoding="utf-8")
    for wrong, problem in (
        ([trained.folder, "--markdown", "all.md"], "error: got --markdown for the run"),
        ([trained.folder, "--interval", "0.9", "--data", moved], "has no calibration rows"),
        ([tmp_path, "--interval", "0.9"], "which is not the folder of a run; leave them out"),
    ):
        result = run(app, ["report", *map(str, wrong)])
        assert result.exit_code == 1 and problem in result.output
