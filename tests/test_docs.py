"""Examples of the documentation run, and the reference shows every public name."""

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "docs" / "reference" / "build.py"


def run_examples(page: Path) -> dict[str, Any]:
    """Execute the Python blocks of a Markdown page in order, and return what they defined.

    Every block stays at its line of the page, which tracebacks then show.
    """
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(page), "exec"), names)
    return names


def test_blocks_share_names_and_keep_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n```python\na = 1\n```\n```\nnot python\n```\n```python\nb = a + 1\n```\n")
    assert run_examples(page)["b"] == 2
    page.write_text("# A\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_examples(page)
    assert caught.traceback[-1].lineno == 2  # counted from 0


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "docs/from-pyg.md", "docs/multitask.md", "docs/training.md"),
        *("docs/theory.md", "docs/advise.md", "docs/aggregate.md"),
    ],
)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in ("docs/from-pyg.md", "docs/multitask.md"):
        pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)  # for what they write
    assert run_examples(ROOT / page)


@pytest.mark.parametrize(
    "page",
    ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert missing == []


def _public() -> dict[str, tuple[str, ...]]:
    pytest.importorskip("pdoc")
    pytest.importorskip("torch_geometric")
    return runpy.run_path(str(BUILD))["PUBLIC"]


def test_public_names_have_docstrings() -> None:
    lacking = []
    for module, names in _public().items():
        found = importlib.import_module(module)
        for name in names:
            member = getattr(found, name, None) or importlib.import_module(f"{module}.{name}")
            own = vars(member).get("__doc__") if inspect.isclass(member) else member.__doc__
            if not own:
                lacking.append(f"{module}.{name}")
    assert lacking == []


def test_imported_names_are_public() -> None:
    """What `pna` and `pna.nn` import for their users is in the reference."""
    for module in ("pna", "pna.nn", "pna.aggregators"):
        found = importlib.import_module(module)
        imported = {
            name
            for name, value in vars(found).items()
            if not name.startswith("_") and not isinstance(value, ModuleType)
        }
        assert imported <= set(_public()[module])


def test_reference_shows_public_names_alone(tmp_path: Path) -> None:
    public = _public()
    command = [sys.executable, str(BUILD), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pdoc" not in done.stderr  # no warning of an annotation or a name it cannot resolve
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html")}
    assert pages == {"index.html"} | {f"{name.replace('.', '/')}.html" for name in public}
    for module, names in public.items():
        page = (tmp_path / f"{module.replace('.', '/')}.html").read_text(encoding="utf-8")
        shown = set(re.findall(r'<section id="(\w+)">', page))
        assert shown == {name for name in names if f"{module}.{name}" not in public}
