"""The fuzz itself: it passes on what is right, and finds, shrinks and writes down what is not."""

import contextlib
import io

import pytest
import torch

import pna
from pna.aggregators import Std
from pna.ops.aggregators import BUILT_IN, FUSED
from pna.testing import aggregate_case, conv_case
from pna.testing.__main__ import main
from pna.testing.definition import FORMULAS
from pna.testing.draw import Draw
from pna.testing.execution import MODES, FuzzSettings
from pna.testing.fuzz import _CASES, _STRETCH, check, draw_case, fuzz

REFERENCE = FuzzSettings(mode=("reference",))


def test_smoke_of_the_definition():
    """As the command runs it."""
    assert main(["fuzz", "--minutes", "0.015", "--seed", "1", "--mode", "reference"]) == 0


def test_smoke_of_the_kernels():
    """Two seconds with the test above."""
    assert main(["fuzz", "--minutes", "0.015", "--seed", "1", "--mode", "c", "--mode", "vmap"]) == 0


def test_every_aggregator_with_a_kernel_has_a_formula():
    """`check_aggregator` tries the definitions of the others, which run as they are written."""
    assert set(FUSED) <= set(FORMULAS) <= set(BUILT_IN)


@pytest.fixture
def on_gpu(monkeypatch):
    """Settings of which cases can be drawn anywhere, though not run."""
    monkeypatch.setattr(FuzzSettings, "unavailable", lambda self, mode: None)
    return FuzzSettings("cuda", ("triton", "vmap"))


def test_cases_depend_on_seed_and_number_alone(on_gpu):
    for settings in (REFERENCE, on_gpu):
        first, again, other = (draw_case(3, n, settings) for n in (7, 7, 8))
        assert first.script({}) == again.script({}) != other.script({})


def compiled_for(case):
    """The choices for which Triton compiles kernels, but for sizes of graphs."""
    aggregators = [a if isinstance(a, Std | str) else type(a) for a in case.aggregators]
    shapes = [v.shape[1:] for v in case.edge.values] + [case.x.shape[1:], case.upstream.shape[1:]]
    more = [getattr(case, n, None) for n in ("layout", "members", "scalers", "options")]
    edge = (case.edge.form, case.edge.dtype, case.edge.combine)
    return str([case.mode, case.dtype, *edge, aggregators, shapes, more])


@pytest.mark.parametrize("module", [aggregate_case, conv_case])
def test_cases_on_a_gpu_share_compiled_kernels(monkeypatch, on_gpu, module):
    """Except for large graphs, which have few features."""
    monkeypatch.setattr("pna.testing.fuzz._CASES", ((module.draw_case, 1.0),))
    signatures = set()
    for begin in range(0, 8 * _STRETCH, _STRETCH):
        cases = [draw_case(0, n, on_gpu) for n in range(begin, begin + _STRETCH)]
        assert len({str(case.graph) for case in cases}) > _STRETCH / 2
        small = {compiled_for(case) for case in cases if len(case.graph.senders) < 1000}
        assert len(small) == 1
        signatures |= small
    assert len(signatures) == 8
    assert len({compiled_for(draw_case(0, n, REFERENCE)) for n in range(_STRETCH)}) > _STRETCH / 2


def plant(monkeypatch, defect):
    """Let `pna.aggregate` give what `defect` makes of its result."""
    whole = pna.aggregate

    def broken(x, adjacency, aggregators, edge=None, combine="add"):
        return defect(whole(x, adjacency, aggregators, edge, combine), x, adjacency)

    monkeypatch.setattr(pna, "aggregate", broken)
    monkeypatch.setattr("pna.testing.fuzz._CASES", ((aggregate_case.draw_case, 1.0),))


def found(seconds=20.0):
    failures = fuzz(0, seconds, REFERENCE)
    assert failures, "the defect was not found"
    return failures[0]


DEFECTS = {
    "5e-5 too large at degree 3": lambda out, x, adj: torch.where(
        (adj.degree == 3)[:, None, None], out * (1 + 5e-5), out
    ),
    "NaN at isolated nodes": lambda out, x, adj: out.masked_fill(
        (adj.degree == 0)[:, None, None], float("nan")
    ),
    "the largest number of the batch is added, times 1e-6": lambda out, x, adj: (
        out + 1e-6 * x.detach().abs().nan_to_num(0).max() if x.numel() else out
    ),
    "a gradient that is 1e-4 too small": lambda out, x, adj: out * (1 - 1e-4) + out.detach() * 1e-4,
}


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_and_shrunk(monkeypatch, defect):
    plant(monkeypatch, DEFECTS[defect])
    monkeypatch.setattr("pna.testing.fuzz._SHRINKING_SECONDS", 5.0)
    failure = found()
    assert len(failure.case.graph.senders) <= 6
    assert len(failure.case.aggregators) == 1


def printed_by(script):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script, {})
    return printed.getvalue()


def test_the_script_shows_the_failure(monkeypatch):
    """It prints the wrong number, and beside it the right one."""
    plant(monkeypatch, lambda out, x, adj: out + 1)
    failure = found()
    what, case, wrong = check(failure.case)
    assert "out" in wrong and what == failure.what
    assert printed_by(failure.script).startswith(f"out {case.run()['out'].tolist()}")
    assert f"# expected: {wrong['out'].value.tolist()}" in failure.script


@pytest.mark.parametrize("kind", [draw for draw, _ in _CASES], ids=lambda draw: draw.__module__)
def test_scripts_run_a_case_as_the_fuzz_does(kind):
    """Graphs without nodes or edges, all forms of edges and types are among the first ten."""
    for number in range(10):
        case, bounds = kind(Draw(0, number), REFERENCE).expected()
        script = case.script({"out": bounds["out"]})
        assert printed_by(script) == f"out {case.run()['out'].tolist()}\n"


def test_exit_status(monkeypatch, capsys):
    plant(monkeypatch, lambda out, x, adj: out + 1)
    assert main(["fuzz", "--minutes", "1", "--mode", "reference"]) == 1
    number = next(n for n in range(9) if len(draw_case(0, n, REFERENCE).graph.senders) > 0)
    assert main(["fuzz", "--case", str(number), "--mode", "reference"]) == 1
    assert "import pna" in capsys.readouterr().out


def test_modes_that_cannot_run_are_refused_in_a_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fuzz", "--mode", "triton"])
    assert ended.value.code == 2
    assert "--mode interpreter" in capsys.readouterr().err.splitlines()[-1]
    assert set(MODES) >= {"c", "triton", "vmap", "compile"}
