"""Examples of the documentation run, and the reference has every public name with an example."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))

#: Modules whose imports are all public.
FACADES = (
    *("pna", "pna.nn", "pna.aggregators", "pna.train", "pna.theory", "pna.testing", "pna.data"),
    "pna.estimators",
)
#: Public names of modules that have others too.
PUBLIC = {
    "pna.degree": ("Power", "Linear"),
    "pna.nn.aggr": ("DegreeScalerAggregation",),
    "pna.data.batch": ("Batch",),
    "pna.data.describe": ("describe", "Description", "Split", "Target"),
    "pna.data.division": ("FoldOptions",),
    "pna.data.folds": ("fold_of", "with_folds"),
    "pna.data.graph_tables": ("GraphColumns",),
    "pna.data.laplacian": ("with_laplacian", "laplacian_eigenvectors", "heat_kernels"),
    "pna.data.molecule_table": ("from_table", "numeric_columns", "standardised"),
    "pna.data.molhiv": ("molhiv",),
    "pna.data.multitask": ("multitask",),
    "pna.data.pyg": ("AttachAdjacency",),
    "pna.data.special_rows": ("RowRules",),
    "pna.data.superpixels": ("mnist", "cifar10", "neighbours", "Neighbours"),
    "pna.data.table": ("Table",),
    "pna.data.texts": ("Texts",),
    "pna.data.walks": ("with_walks", "return_probabilities", "arrival_probabilities"),
    "pna.data.zinc": ("zinc",),
}


def run_examples(page: Path) -> dict[str, Any]:
    """Execute the Python blocks of a Markdown page in order, and return what they defined.

    Every block stays at its line of the page, which tracebacks show. `make docs` runs notebooks.
    """
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    block_of_python = r"^```python\n(.*?)^```$"
    for block in re.finditer(block_of_python, text, re.DOTALL | re.MULTILINE):
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(page), "exec"), names)
    return names


def has_examples(page: Path) -> bool:
    return re.search(r"^```python$", page.read_text("utf-8"), re.MULTILINE) is not None


def test_blocks_share_names_and_keep_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n```python\na = 1\n```\n```\nnot python\n```\n```python\nb = a + 1\n```\n")
    assert run_examples(page)["b"] == 2
    page.write_text("# A\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_examples(page)
    assert caught.traceback[-1].lineno == 2  # counted from 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        str(page.relative_to(ROOT))
        for page in (ROOT / "README.md", *PAGES)
        if "upstream" not in page.parts and has_examples(page)
    ],
)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch_geometric", "rdkit", "ogb", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # for what they write
    assert run_examples(ROOT / page)


@pytest.mark.parametrize(
    "page",
    ["README.md", "CHANGELOG.md", *(str(page.relative_to(ROOT)) for page in PAGES)],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", *(str(page.relative_to(ROOT)) for page in PAGES)])
def test_files_that_are_named_exist(page: str) -> None:
    """Recipes and explanations name files, which may be renamed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|examples|benchmarks)/[\w./-]*)`", text)
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def exported(module: str) -> list[str]:
    """Names that a module has for its users: its `__all__`, or else what it imports or defines."""
    found = importlib.import_module(module)
    if module in PUBLIC:
        return list(PUBLIC[module])
    return [
        name
        for name in getattr(found, "__all__", vars(found))
        if not name.startswith("_")
        and not isinstance(getattr(found, name), ModuleType)
        and getattr(found, name).__module__.startswith("pna.")
        and getattr(found, name).__module__ != "pna.names"  # helpers of the modules themselves
    ]


def public_names() -> list[str]:
    pytest.importorskip("torch_geometric")
    return [f"{module}.{name}" for module in (*FACADES, *PUBLIC) for name in exported(module)]


def entries() -> dict[str, str]:
    """Sections of the reference by the names that they show."""
    shown = {}
    for page in REFERENCE:
        for section in re.split(r"^#+ .*\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            for name in re.findall(r"^\.\. auto(?!module)\w+:: ([\w.]+)$", section, re.MULTILINE):
                shown[name] = section
            for module in re.findall(r"^\.\. automodule:: ([\w.]+)$", section, re.MULTILINE):
                shown |= {f"{module}.{name}": "" for name in exported(module)}
    return shown


def test_public_names_have_docstrings() -> None:
    lacking = []
    for path in public_names():
        module, name = path.rsplit(".", 1)
        member = getattr(importlib.import_module(module), name)
        own = vars(member).get("__doc__") if inspect.isclass(member) else member.__doc__
        if not own:
            lacking.append(path)
    assert lacking == []


def test_reference_has_every_public_name_and_no_other() -> None:
    names = set(public_names())
    assert sorted(names - entries().keys()) == [], "add a section to docs/reference/"
    assert sorted(entries().keys() - names) == [], "not public: remove the section"


def test_every_public_name_has_an_example() -> None:
    """In the docstring, or in a block of Python of its section (which `test_examples_run` runs)."""
    sections = entries()
    lacking = []
    for path in public_names():
        module, name = path.rsplit(".", 1)
        docstring = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        blocks = re.findall(
            r"^```python\n(.*?)^```$", sections.get(path, ""), re.DOTALL | re.MULTILINE
        )
        if ">>>" not in docstring and not any(re.search(rf"\b{name}\b", block) for block in blocks):
            lacking.append(path)
    assert lacking == [], "show how to use it, in its section of docs/reference/"


def test_examples_of_docstrings_run() -> None:
    """With the graph and features of docs/reference/aggregators.md at hand."""
    given = run_examples(ROOT / "docs" / "reference" / "aggregators.md")
    for path in public_names():
        module, name = path.rsplit(".", 1)
        member = getattr(importlib.import_module(module), name)
        globs = given | vars(importlib.import_module(member.__module__))
        for test in doctest.DocTestFinder(recurse=False).find(member, path, globs=globs):
            assert doctest.DocTestRunner().run(test).failed == 0, path


def test_documentation_loads_nothing_from_the_network(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    loaded = importlib.util.spec_from_file_location(
        "offline", ROOT / "docs" / "_ext" / "offline.py"
    )
    assert loaded is not None and loaded.loader is not None
    offline = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(offline)
    page = tmp_path / "page.html"
    page.write_text("<a href='https://pna.org'>a link</a><script src='_static/a.js'></script>")
    assert offline.remote_sources(tmp_path) == []
    page.write_text('<script async="async" src="https://cdn.org/mathjax.js"></script>')
    assert offline.remote_sources(tmp_path) == [
        'page.html: <script async="async" src="https://cdn.org/mathjax.js'
    ]
