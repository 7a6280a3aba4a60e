"""Functions take at most eight parameters: a longer list is a missing type."""

import ast
from functools import cache
from pathlib import Path

import pna

SOURCE = Path(pna.__file__).parent
MOST = 8

#: The functions that may take more, and why.
PYG = "takes the parameters of a PyG class"
OPTIONS = "its parameters are the options of a command"
SETTINGS = "its parameters are the settings of a model, saved with it by name"
EXCEPTIONS = {
    "nn/conv/pna.py:__init__": PYG,
    "nn/conv/simple.py:__init__": PYG,
    "nn/architectures/recurrent.py:__init__": SETTINGS,
    "nn/architectures/stacked.py:__init__": SETTINGS,
    "nn/architectures/standard.py:__init__": SETTINGS,
    "nn/models.py:__init__": SETTINGS,
    "data/molecule_table.py:from_table": OPTIONS,
    "data/graphset.py:from_arrays": "its parameters are the arrays of a graph set",
    "ops/operators.py:operator": "its parameters describe an operator, each by its name",
    "estimators/base.py:__init__": "scikit-learn wants every parameter by its name",
    "train/evaluation.py:evaluate": OPTIONS,
    "train/folds.py:cross_validate": OPTIONS,
    "train/loop.py:train": OPTIONS,
    "train/sweep.py:sweep": OPTIONS,
    "train/table_prediction.py:predict_table": OPTIONS,
}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any("jit" in text or "Kernel" in text for text in decorators)


@cache
def long_lists() -> dict[str, int]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node):
                count = len(parameters(node))
                if count > MOST:
                    found[f"{place}:{node.name}"] = count
    return found


def test_no_other_function_has_a_long_list_of_parameters():
    found = {name: count for name, count in long_lists().items() if name not in EXCEPTIONS}
    assert not found, (
        f"got {found}, expected at most {MOST} parameters each; put those that belong together in "
        "a named tuple or a frozen dataclass"
    )


def test_every_exception_is_one():
    assert not set(EXCEPTIONS) - set(long_lists())
