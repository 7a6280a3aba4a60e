"""Names are found, and misspelt ones are helped along."""

import ast
import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest

import pna
from pna.names import check_keywords, lookup

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


class Layer:
    @check_keywords()
    def __init__(self, width: int, *, depth: int = 1) -> None:
        """A layer."""
        self.made = (width, depth)


class Model:
    @check_keywords(Layer)
    def __init__(self, name: str, **kwargs: int) -> None:
        self.layer = Layer(**kwargs)


def test_known_keywords():
    assert Layer(2).made == (2, 1) and Layer(width=2, depth=3).made == (2, 3)
    assert Model("a", width=2, depth=3).layer.made == (2, 3)
    assert str(inspect.signature(Layer)) == "(width: int, *, depth: int = 1) -> None"
    assert Layer.__init__.__doc__ == "A layer."


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layer(2, dpeth=3), "'dpeth' of Layer; did you mean 'depth'? Known: width, depth"),
        (lambda: Layer(widht=2), "'widht' of Layer; did you mean 'width'? Known: width, depth"),
        (lambda: Layer(2, xyz=3), "'xyz' of Layer. Known: width, depth"),
        (
            lambda: Model("a", dept=3),
            "'dept' of Model; did you mean 'depth'? Known: name, width, depth",
        ),
        (lambda: Model(nam="a"), "'nam' of Model; did you mean 'name'? Known: name, width, depth"),
    ],
)
def test_unknown_keyword(make, message):
    with pytest.raises(TypeError, match=f"^unknown argument {re.escape(message)}$"):
        make()


SOURCE = Path(pna.__file__).parent
#: Class names with more than one meaning, and why.
SHARED = {
    "Linear": "a scaler, as users name it, and torch's layer with a vmap rule",
    "Recurrent": "a model, and its twin of PyG's layers in the benchmarks",
    "PNAConv": "the layer, and its form in place of PyG's, which has that name",
    "Molecules": "graphs, and a twin of PyG's model of them in the benchmarks",
}


def test_a_class_name_has_one_meaning():
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not {name: paths for name, paths in shared.items() if name not in SHARED}
    assert not SHARED.keys() - shared.keys()
